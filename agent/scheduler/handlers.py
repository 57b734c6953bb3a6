"""The handlers of the extender verbs filter, prioritize, preempt and bind, on the cluster's
state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.allocate.node_allocator.pod_request import Needs, PodRequest, PodRequestError
from agent.scheduler.binder import Binder, BindError
from agent.scheduler.binding_api import PodName
from agent.scheduler.cluster import SchedulerCache
from agent.scheduler.cycle_state import PodInfo, PodInfoCache
from agent.scheduler.equivalence_cache import UNKNOWN_NODE, EquivalenceCache, Feasibility, Feasible
from agent.scheduler.extender_results import (
    best_node,
    filter_result,
    no_nodes,
    only_node,
    priorities,
)
from agent.scheduler.extender_types import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)
from agent.scheduler.group_reservations import GroupReservations
from agent.scheduler.pod_group import GroupError, PodGroup
from agent.scheduler.requirements import GroupRequirements, PodRequirements, RequirementsCheck

Preempt = Callable[[ExtenderPreemptionArgs], ExtenderPreemptionResult]

# Attempts to find a node, where another pod takes the node before it is reserved.
_TRIES: Final = 3
_GROUP_AT_ONCE: Final = 128


class ExtenderHandlers:
    """Safe for many threads."""

    def __init__(
        self,
        cluster: SchedulerCache,
        groups: GroupReservations,
        binder: Binder,
        pod_infos: PodInfoCache,
        cache: EquivalenceCache,
        preempt: Preempt,
        *,
        best_alone: bool = True,
    ) -> None:
        """`best_alone`: the filter returns only the best node for a pod that needs CPUs or
        devices."""
        self._cluster = cluster
        self._groups = groups
        self._binder = binder
        self._pod_infos = pod_infos
        self._preempt = preempt
        self._best_alone = Needs.CPUS | Needs.DEVICES if best_alone else Needs.NOTHING
        self._cache = cache

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        nodes = args.node_names
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError) as error:
            return no_nodes(nodes, str(error))
        sent = self._cluster.reservation(info.pod.uid)
        if sent is not None and sent.sent:
            return only_node(
                nodes, sent.node, f"an earlier Binding to {sent.node} may still come true"
            )
        if info.group is not None:
            return self._filter_group(info, info.group, nodes)
        if self._all_nodes_fit(info.pod_request):
            return ExtenderFilterResult(nodes)
        answers = self._results(info.pod_request, nodes)
        return filter_result(
            nodes, answers, best_alone=bool(info.pod_request.needs & self._best_alone)
        )

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority] | msgspec.Raw:
        nodes = args.node_names
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError):
            return ()
        if info.group is not None:
            with self._cluster.lock:
                node = self._groups.node(info.group)
            return priorities(
                nodes, [Feasible(0) if each == node else UNKNOWN_NODE for each in nodes]
            )
        if self._all_nodes_fit(info.pod_request):
            return ()
        answers = self._results(info.pod_request, nodes)
        return priorities(nodes, answers, decides=bool(info.pod_request.needs))

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        return self._preempt(args)

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        pod = PodName(args.pod_namespace, args.pod_name, args.pod_uid)
        try:
            self._binder.bind(pod, args.node)
        except BindError as error:
            return ExtenderBindingResult(str(error))
        return ExtenderBindingResult()

    def _all_nodes_fit(self, pod_request: PodRequest) -> bool:
        """Whether all nodes are equal for a pod that needs no CPUs or devices from us. Then the
        handlers do not read the names of the nodes, and other plugins' scores decide."""
        if pod_request.needs:
            return False
        if not pod_request.requests:
            return True
        return isinstance(
            self._cache.uniform(RequirementsCheck(self._cluster, PodRequirements(pod_request))),
            Feasible,
        )

    def _results(self, pod_request: PodRequest, nodes: Sequence[str]) -> list[Feasibility]:
        with self._cluster.lock:
            self._groups.expire()
        return self._cache.results(
            RequirementsCheck(self._cluster, PodRequirements(pod_request)), nodes
        )

    def _filter_group(
        self, info: PodInfo, group: PodGroup, nodes: Sequence[str]
    ) -> ExtenderFilterResult:
        """Returns the one node of the group. Finds and reserves it where the group has none yet."""
        for _ in range(_TRIES):
            with self._cluster.lock:
                self._groups.expire()
                node = self._groups.node(group)
                if node is not None:
                    return self._filter_member(info.pod_request, group, node, nodes)
            answers = self._group_results(info.pod_request, group.size, nodes)
            best = best_node(list(answers), list(answers.values()))
            if best is None:
                return filter_result(list(answers), list(answers.values()), best_alone=True)
            with self._cluster.lock:
                if self._groups.node(group) is None:
                    self._groups.hold(group, info.pod_request, best)
        return no_nodes(nodes, f"{group.title}: its nodes are taken faster than they can be held")

    def _group_results(
        self, pod_request: PodRequest, size: int, nodes: Sequence[str]
    ) -> dict[str, Feasibility]:
        """The check of a whole group takes long: it runs on nodes with room for one member, in the
        order of their score, some at a time until one has room for all."""
        of_one = dict(zip(nodes, self._results(pod_request, nodes), strict=True))
        fits = {node: answer for node, answer in of_one.items() if isinstance(answer, Feasible)}
        found = {node: answer for node, answer in of_one.items() if node not in fits}
        ranked = sorted(fits, key=lambda node: (fits[node].key, node))
        check = RequirementsCheck(self._cluster, GroupRequirements(pod_request, size))
        for first in range(0, len(ranked), _GROUP_AT_ONCE):
            some = ranked[first : first + _GROUP_AT_ONCE]
            answers = self._cache.results(check, some)
            found.update(zip(some, answers, strict=True))
            if any(isinstance(each, Feasible) for each in set(answers)):
                break
        return found

    def _filter_member(
        self, pod_request: PodRequest, group: PodGroup, node: str, nodes: Sequence[str]
    ) -> ExtenderFilterResult:
        """The caller holds the lock."""
        ineligibility = self._cluster.eligible(node, pod_request)
        if ineligibility is not None:
            return no_nodes(nodes, ineligibility)
        lack = self._groups.rejection(group, pod_request)
        if lack is not None:
            return no_nodes(nodes, lack.reason, but="" if lack.unresolvable else node)
        return only_node(nodes, node, f"{group.title} is on node {node}")
