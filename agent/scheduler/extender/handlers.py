"""The handlers of the extender verbs filter, prioritize, preempt and bind, and the results that
they make of the feasibility of nodes.

`QueueingExtender` wraps the handlers: it adds the pods that find no node to the queue of
unschedulable pods, and keeps nominated nodes from pods of lower rank.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from agent.allocate.refusal import Refusal
from agent.model.pod.apiobjects import ApiPod, GroupError, PodGroup
from agent.model.pod_request import Needs, PodRequest, PodRequestError
from agent.scheduler.extender.equivalence_cache import EquivalenceCache, best_node
from agent.scheduler.extender.extender import (
    Extender,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import (
    UNKNOWN_NODE,
    Feasibility,
    Feasible,
    GroupRequirements,
    PodInfo,
    PodInfoCache,
    PodName,
    PodRequirements,
    RequirementsCheck,
)
from agent.scheduler.state.pods_api import BindError
from agent.scheduler.unschedulable.queue import UnschedulableQueue, queued_pod

MAX_DETAILED_REASONS: Final = 5
"""With more different reasons, amounts are omitted from the reasons."""


def filter_result(nodes: Sequence[str], results: Sequence[Feasibility]) -> ExtenderFilterResult:
    """The feasible nodes, and why the others are not. `results` are in the order of `nodes`."""
    # Nodes share results, and an identity is hashed faster than a value.
    distinct = {id(result): result for result in results}
    refusals = {key: each for key, each in distinct.items() if isinstance(each, Refusal)}
    if not refusals:
        return ExtenderFilterResult(nodes)
    feasible: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    # kube-scheduler counts the nodes of each reason and truncates long messages.
    many = len({refusal.text for refusal in refusals.values()}) > MAX_DETAILED_REASONS
    answers = {
        key: (
            unresolvable if refusal.unresolvable else failed,
            refusal.summary if many else refusal.text,
        )
        for key, refusal in refusals.items()
    }
    for node, result in zip(nodes, results, strict=True):
        if answer := answers.get(id(result)):
            group, reason = answer
            group[node] = reason
        else:
            feasible.append(node)
    return ExtenderFilterResult(feasible, failed, unresolvable)


def only_node(nodes: Sequence[str], node: str, reason: str) -> ExtenderFilterResult:
    """Returns only `node`, if it is among `nodes`. `reason` is why the others fail."""
    if node not in nodes:
        return no_nodes(nodes, reason)
    others = dict.fromkeys(nodes, reason)
    del others[node]
    return ExtenderFilterResult((node,), {}, others)


def no_nodes(nodes: Iterable[str], reason: str, resolvable: str = "") -> ExtenderFilterResult:
    """Returns none of the nodes, all for one reason. Eviction may help on node `resolvable`
    only."""
    unresolvable = dict.fromkeys(nodes, reason)
    failed = {resolvable: unresolvable.pop(resolvable)} if resolvable in unresolvable else {}
    return ExtenderFilterResult((), failed, unresolvable)


MAX_PRIORITY: Final = 10
"""The highest score of an extender (MaxExtenderPriority)."""


def priorities(
    nodes: Sequence[str], results: Sequence[Feasibility], *, decides: bool = True
) -> msgspec.Raw:
    """The list of HostPriority as JSON, in no order; infeasible nodes have no entry, which means 0.
    `results` are in the order of `nodes`.

    `decides`: only the best node, with the tie-break of `filter`, has the highest priority, so that
    the tie-break of kube-scheduler does not decide; the priorities of the others are scaled between
    the lowest and the highest score of the call. Otherwise nodes of equal score have equal
    priority, and other plugins decide among them.
    """
    feasible = {each for each in set(results) if isinstance(each, Feasible)}
    levels = _levels(feasible, MAX_PRIORITY - 1 if decides else MAX_PRIORITY)
    hosts: list[list[str]] = [[] for _ in range(MAX_PRIORITY + 1)]
    into = {result: hosts[level].append for result, level in levels.items()}
    for node, result in zip(nodes, results, strict=True):
        if result in into:
            into[result](node)
    if decides and (best := best_node(nodes, results)) is not None:
        hosts[levels[results[nodes.index(best)]]].remove(best)
        hosts[MAX_PRIORITY].append(best)
    entries = (_entries(score, of) for score, of in enumerate(hosts) if of)
    return msgspec.Raw(f"[{','.join(entries)}]".encode())


def _levels(feasible: set[Feasible], highest: int) -> dict[Feasibility, int]:
    """The priority of each result; the highest one for all if their scores are equal."""
    scores = [each.score for each in feasible] or [0]
    least, most = min(scores), max(scores)
    return {
        each: highest * (each.score - least) // (most - least) if most > least else highest
        for each in feasible
    }


def _entries(score: int, nodes: Sequence[str]) -> str:
    """The names of feasible nodes need no JSON escapes, since they are names of API objects."""
    return '{"Host":"' + f'","Score":{score}}},{{"Host":"'.join(nodes) + f'","Score":{score}}}'


_NO_PRIORITIES: Final = msgspec.Raw(b"[]")

Preempt = Callable[[ExtenderPreemptionArgs], ExtenderPreemptionResult]
Bind = Callable[[PodName, str], None]
"""Binds a pod to a node. Raises BindError."""

# Attempts to find a node, if another pod takes the node before it is reserved.
_ATTEMPTS: Final = 3
_GROUP_BATCH: Final = 128


class ExtenderHandlers:
    """Answers the four verbs by the state of the cluster and of groups. Safe for many threads."""

    def __init__(
        self,
        cluster: SchedulerCache,
        groups: GroupReservations,
        bind: Bind,
        pod_infos: PodInfoCache,
        cache: EquivalenceCache,
        preempt: Preempt,
        *,
        best_only: bool = True,
        placing: bool = False,
    ) -> None:
        """`best_only`: the filter returns only the best node for a pod that needs CPUs or devices,
        so that neither another plugin's score nor a tie-break decides. `placing`: a placement
        scores all pods, also those that need neither."""
        self._cluster = cluster
        self._groups = groups
        self._bind = bind
        self._pod_infos = pod_infos
        self._preempt = preempt
        best_of = Needs.CPUS | Needs.DEVICES | Needs.LISTED
        self._best_only = best_of if best_only else Needs.NOTHING
        self._cache = cache
        self._placing = placing

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        nodes = args.node_names
        try:
            info = self._pod_infos.of_filter(args.pod)
        except (PodRequestError, GroupError) as error:
            return no_nodes(nodes, str(error))
        kept = self._cluster.reservation(info.pod.uid)
        if kept is not None and kept.confirmed:
            reason = f"an earlier Binding to {kept.node} may take effect"
            return only_node(nodes, kept.node, reason)
        if info.group is not None:
            return self._filter_group(info, info.group, nodes)
        if self._all_nodes_fit(info.pod_request):
            return ExtenderFilterResult(nodes)
        if info.pod_request.needs & self._best_only:
            check = RequirementsCheck(self._cluster, PodRequirements(info.pod_request))
            best = self._cache.best(check, nodes)
            if best is not None:
                return ExtenderFilterResult((best,))
        return filter_result(nodes, self._results(info.pod_request, nodes))

    def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
        nodes = args.node_names
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError):
            return _NO_PRIORITIES
        if info.group is not None:
            with self._cluster.lock:
                node = self._groups.node(info.group)
            return priorities(
                nodes, [Feasible(0) if each == node else UNKNOWN_NODE for each in nodes]
            )
        if self._all_nodes_fit(info.pod_request):
            return _NO_PRIORITIES
        results = self._results(info.pod_request, nodes)
        return priorities(nodes, results, decides=self._placing or bool(info.pod_request.needs))

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        return self._preempt(args)

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        pod = PodName(args.pod_namespace, args.pod_name, args.pod_uid)
        try:
            self._bind(pod, args.node)
        except BindError as error:
            return ExtenderBindingResult(str(error))
        return ExtenderBindingResult()

    def _all_nodes_fit(self, pod_request: PodRequest) -> bool:
        """Whether all nodes are equal for a pod that needs no CPUs or devices from Topolet. Then
        the handlers do not read the names of the nodes, and other plugins' scores decide."""
        if pod_request.needs:
            return False
        if not pod_request.requests:
            return True
        return isinstance(
            self._cache.uniform(RequirementsCheck(self._cluster, PodRequirements(pod_request))),
            Feasible,
        )

    def _results(self, pod_request: PodRequest, nodes: Sequence[str]) -> list[Feasibility]:
        check = RequirementsCheck(self._cluster, PodRequirements(pod_request))
        return self._cache.results(check, nodes)

    def _filter_group(
        self, info: PodInfo, group: PodGroup, nodes: Sequence[str]
    ) -> ExtenderFilterResult:
        """Returns only the node of the group. Finds and reserves it if the group has none yet."""
        for _ in range(_ATTEMPTS):
            with self._cluster.lock:
                self._groups.expire()
                node = self._groups.node(group)
            if node is not None:
                return self._filter_member(info.pod_request, group, node, nodes)
            results = self._group_results(info.pod_request, group.size, nodes)
            best = best_node(list(results), list(results.values()))
            if best is None:
                return filter_result(list(results), list(results.values()))
            self._groups.prepare(group, info.pod_request, best)
        return no_nodes(nodes, f"{group.title}: its nodes were taken before they were reserved")

    def _group_results(
        self, pod_request: PodRequest, size: int, nodes: Sequence[str]
    ) -> dict[str, Feasibility]:
        """The check of a whole group takes long. It runs on the nodes with room for one member, by
        score and in batches, until a node has room for all."""
        of_one = dict(zip(nodes, self._results(pod_request, nodes), strict=True))
        feasible = {node: result for node, result in of_one.items() if isinstance(result, Feasible)}
        found = {node: result for node, result in of_one.items() if node not in feasible}
        ranked = sorted(feasible, key=lambda node: (feasible[node].key, node))
        check = RequirementsCheck(self._cluster, GroupRequirements(pod_request, size))
        for first in range(0, len(ranked), _GROUP_BATCH):
            batch = ranked[first : first + _GROUP_BATCH]
            results = self._cache.results_apart(check, batch)
            found.update(zip(batch, results, strict=True))
            if any(isinstance(each, Feasible) for each in set(results)):
                break
        return found

    def _filter_member(
        self, pod_request: PodRequest, group: PodGroup, node: str, nodes: Sequence[str]
    ) -> ExtenderFilterResult:
        with self._cluster.lock:
            ineligibility = self._cluster.ineligibility(node, pod_request)
        if ineligibility is not None:
            return no_nodes(nodes, ineligibility.text)
        rejection = self._groups.rejection(group, pod_request)
        if rejection is not None:
            return no_nodes(nodes, rejection.text, "" if rejection.unresolvable else node)
        return only_node(nodes, node, f"{group.title} is on node {node}")


MAX_CANDIDATES: Final = 128
"""Infeasible nodes kept for each pod for evictions; kube-scheduler sends them in another order each
time."""


class QueueingExtender:
    """Wraps the handlers of another Extender: fills the queue of unschedulable pods, and keeps
    nominated nodes from pods of lower rank."""

    def __init__(
        self,
        handlers: Extender,
        pod_infos: PodInfoCache,
        cluster: SchedulerCache,
        queue: UnschedulableQueue,
        *,
        preempting: Callable[[str, PodGroup | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`preempting` is called with a pod and its group when kube-scheduler preempts for it."""
        self._handlers = handlers
        self._pod_infos = pod_infos
        self._cluster = cluster
        self._queue = queue
        self._preempting = preempting
        self._clock = clock

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        nominated_nodes = self._nominated(args)
        if not nominated_nodes:
            result = self._handlers.filter(args)
        else:
            others = tuple(each for each in args.node_names if each not in nominated_nodes)
            result = self._handlers.filter(msgspec.structs.replace(args, node_names=others))
        if result.node_names:
            self._queue.remove(args.pod.uid)
        elif not result.error:
            self._enqueue(args, result)
        return _with_nominated(
            result, [each for each in args.node_names if each in nominated_nodes]
        )

    def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
        return self._handlers.prioritize(args)

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        result = self._handlers.preempt(args)
        if result.victims and self._preempting is not None:
            self._preempting(args.pod.uid, self._group(args.pod))
        return result

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        return self._handlers.bind(args)

    def _group(self, pod: ApiPod) -> PodGroup | None:
        try:
            return self._pod_infos.of(pod).group
        except (PodRequestError, GroupError):
            return None

    def _nominated(self, args: ExtenderArgs) -> frozenset[str]:
        """Returns the nodes that are nominated for other pods."""
        if not self._queue.has_nominations:
            return frozenset()
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError):
            return frozenset()
        # A pod without CPUs or devices from Topolet takes none of that room.
        if info.pod_request.needs is Needs.NOTHING:
            return frozenset()
        return self._queue.nominated_for_others(
            args.pod.uid, info.pod_request.priority, self._clock(), info.group
        )

    def _enqueue(self, args: ExtenderArgs, result: ExtenderFilterResult) -> None:
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError):
            return  # a change of a node does not help, and kube-scheduler watches the pod itself
        failed = result.failed_nodes
        group_node = self._cluster.group_node(info.group) if info.group is not None else None
        candidates = failed if group_node is None else failed.keys() & {group_node}
        found = queued_pod(
            info,
            self._cluster,
            self._clock(),
            tuple(itertools.islice(candidates, MAX_CANDIDATES)),
            args.pod.nominated,
        )
        found = msgspec.structs.replace(found, reasons=_frequent_reasons(result))
        self._queue.add(found, args.node_names if group_node is None else (group_node,))


def _frequent_reasons(result: ExtenderFilterResult) -> tuple[tuple[str, int], ...]:
    nodes = Counter(result.failed_nodes.values())
    nodes.update(result.failed_and_unresolvable_nodes.values())
    return tuple(nodes.most_common(MAX_DETAILED_REASONS))


def _with_nominated(
    result: ExtenderFilterResult, nominated_nodes: Sequence[str]
) -> ExtenderFilterResult:
    """Adds to the result why the nodes in `nominated_nodes` are excluded."""
    if not nominated_nodes:
        return result
    reasons = result.failed_and_unresolvable_nodes
    nominated = dict.fromkeys(nominated_nodes, "the node is nominated for a more important pod")
    return msgspec.structs.replace(result, failed_and_unresolvable_nodes={**reasons, **nominated})
