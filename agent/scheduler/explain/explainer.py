"""Explains pods by the state of the cluster: the verdict of every node with its reasons, the node
that the pod gets, and what in the pod itself prevents its placement.

Nodes are checked one after the other, as in the first filter of such a pod, without a cache and
without a change of the state. Of several pods, each is placed on a copy of its node before the next
one is explained. The checks are those of Topolet and the sums of the whole node. kube-scheduler's
other plugins (taints, affinity, volumes, ...) may still reject a node that has room here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Reason, Refusal
from agent.model.explanation import (
    BoundFacts,
    Cause,
    EvictionFacts,
    Explanation,
    GroupFacts,
    NameOf,
    NodeVerdict,
    ObjectField,
)
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiPod, GroupError, PodGroup
from agent.model.pod_request import Needs, PodRequestError
from agent.scheduler.explain import causes
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.preemption.victim_selection import NodeSnapshots, select_victims
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import PodInfo, parts, pod_info

INVALID: Final = "invalid-pod"
OTHER_SCHEDULER: Final = "other-scheduler"
BINDING_OPEN: Final = "binding-open"
CLAIM_REFUSED: Final = "claim-refused"
GROUP_WAITS: Final = "group-waits"
GROUP_ELSEWHERE: Final = "group-elsewhere"
GROUP_SIZE: Final = "group-size"
GROUP_FULL: Final = "group-full"
NO_ROOM_FOR_GROUP: Final = "no-room-for-group"
BUDGET_PROTECTS: Final = "budget-protects"
DRAINED: Final = "drained"
NOMINATED: Final = "nominated"

MAX_NODES: Final = 5_000
"""Nodes that one explanation checks."""
MAX_EVICTION_NODES: Final = 16
"""Nodes for which an explanation selects victims."""
_EVICTION_TRIALS: Final = 100
"""Sets of victims that are tried on each node."""
_PAUSE_SECONDS: Final = 0.00005
"""The pause after each node, in which the cluster's lock is free for binds and watches."""
# The group under which the missing members are tried. No real group has its empty name: the parts
# that are reserved for a real group may belong to another user.
_PLACEHOLDERS: Final = PodGroup("", "", 0)
_GROUP_FIELD: Final = "metadata.annotations[topolet.io/group]"


def by_title(uid: str, title: str) -> str:
    """Names every object; for a reader who may read all of them."""
    return title


def unnamed(uid: str, title: str) -> str:
    """Names no object; for a reader whose permissions are unknown."""
    return ""


class _Scope(msgspec.Struct, frozen=True):
    """The conditions of one explanation. `drained`: nodes that no pod may get. `until`: the
    deadline, by the monotonic clock. `name`: returns the name of an object for the reader.
    `copies`: the nodes on which the earlier pods of the request were placed."""

    drained: tuple[str, ...] = ()
    until: float = math.inf
    name: NameOf = unnamed
    copies: dict[str, NodeAllocator] = {}


class Explainer:
    """Explains pods by the state of the cluster. Safe for many threads.

    `scheduler`: the `spec.schedulerName` of the pods that Topolet places.
    `nominated`: returns the nodes that are nominated for more important pods."""

    def __init__(
        self,
        cluster: SchedulerCache,
        scheduler: str,
        *,
        budgets: Budgets | None = None,
        nominated: Callable[[PodInfo], frozenset[str]] = lambda info: frozenset(),
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._budgets = budgets or Budgets()
        self._nominated = nominated

    def explain_all(
        self,
        pods: Iterable[ApiPod],
        drained: Sequence[str] = (),
        *,
        until: float = math.inf,
        name: NameOf = unnamed,
    ) -> tuple[Explanation, ...]:
        """Explains each pod in turn, after the pods before it were placed. No pod gets a drained
        node. `until`: the deadline, by the monotonic clock; nodes that are not checked before it
        are left out. `name`: returns the name of an object for the reader."""
        scope = _Scope(tuple(drained), until, name)
        return tuple(self._explain(pod, scope) for pod in pods)

    def explain_waiting(self, info: PodInfo, *, until: float) -> Explanation:
        """Explains a pod that this scheduler rejected before."""
        return self._of_info(info, self._scheduler, _Scope(until=until))

    def unknown(self, nodes: Iterable[str]) -> list[str]:
        """Those of the nodes that do not exist."""
        return [each for each in nodes if self._cluster.node(each) is None]

    def _explain(self, pod: ApiPod, scope: _Scope) -> Explanation:
        try:
            info = pod_info(pod, self._cluster.pod_defaults)
        except (PodRequestError, GroupError) as error:
            objects = (ObjectField("Pod", pod.title, "metadata.annotations, or its requests"),)
            cause = Cause(INVALID, str(error), str(error), objects=objects)
            return Explanation(pod.title, pod.scheduler, causes=(cause,), drained=scope.drained)
        return self._of_info(info, pod.scheduler, scope)

    def _of_info(self, info: PodInfo, scheduler: str, scope: _Scope) -> Explanation:
        group = self._group(info)
        verdicts, winner, best = [], "", None
        names = self._node_names()
        nominated = self._nominated(info)
        for name in names[:MAX_NODES]:
            if time.monotonic() > scope.until:
                break
            verdict, offer = self._on_node(info, group, name, nominated, scope)
            verdicts.append(verdict)
            if offer is not None and (best is None or _rank(offer, name) < _rank(best, winner)):
                winner, best = name, offer
            time.sleep(_PAUSE_SECONDS)
        if best is not None:
            self._commit(winner, best, scope.copies)
        elif not scope.copies and (group is None or group.known):
            verdicts = self._with_evictions(info, verdicts, scope)
        own = self._own_causes(info, scheduler, group, winner)
        return Explanation(
            info.pod.title,
            scheduler,
            tuple(
                each.name.lower() for each in Needs if each in info.pod_request.needs and each.name
            ),
            own,
            group,
            self._bound(info),
            winner,
            tuple(verdicts),
            len(names) - len(verdicts),
            scope.drained,
        )

    def _node_names(self) -> list[str]:
        return sorted(each.name for each in self._cluster.nodes())

    def _group(self, info: PodInfo) -> GroupFacts | None:
        """The state of the pod's group. Nodes and members are included only if the pod is a known
        member: then its uid shows that the reader may read a pod of that group."""
        group, cluster = info.group, self._cluster
        if group is None:
            return None
        with cluster.lock:
            bound, waiting = cluster.bound_members(group), cluster.waiting_members(group)
            if info.pod.uid not in bound and info.pod.uid not in waiting:
                return GroupFacts(group.title, group.size)
            size = next((each.group.size for each in bound.values() if each.group), group.size)
            node = cluster.group_node(group) or ""
            return GroupFacts(group.title, size, len(bound), len(waiting), node)

    def _on_node(
        self,
        info: PodInfo,
        group: GroupFacts | None,
        name: str,
        nominated: frozenset[str],
        scope: _Scope,
    ) -> tuple[NodeVerdict, NodeOffer | None]:
        if name in scope.drained:
            return _refused(name, DRAINED, "the node counts as drained", "Node", name), None
        if name in nominated:
            text = "the node is nominated for a more important pod"
            return _refused(name, NOMINATED, text, "Node", name, "its nominated pod"), None
        if group is not None and group.node and name != group.node:
            text = f"{group.group} is on node {group.node}"
            return _refused(name, GROUP_ELSEWHERE, text, "Pod", info.pod.title, _GROUP_FIELD), None
        with self._cluster.lock:
            state = self._cluster.node(name)
            if state is None:
                gone = Refusal(Reason.NODE_UNKNOWN, detail="the node was deleted")
                return NodeVerdict(name, (causes.missing_cause(gone, name, info.pod.title),)), None
            lack = state.lack(info.pod_request.needs)
            if lack is None:
                allocator = scope.copies.get(name, state.allocator)
                return self._offer(allocator, info, group, scope.name)
            return NodeVerdict(name, (causes.missing_cause(lack, name, info.pod.title),)), None

    def _offer(
        self, allocator: NodeAllocator, info: PodInfo, group: GroupFacts | None, name_of: NameOf
    ) -> tuple[NodeVerdict, NodeOffer | None]:
        """The caller holds the lock."""
        name, request = allocator.properties.name, info.pod_request

        def title(uid: str) -> str:
            pod = self._cluster.pod(uid)
            return name_of(uid, pod.title) if pod is not None else ""

        missing = 1 if group is None else max(1, group.size - group.placed)
        if info.group is not None and group is not None and group.known:
            # The parts that are reserved for the group are free for its members.
            allocator = allocator.without([info.group.part(each) for each in range(group.size)])
        of_node = tuple(causes.node_resource_causes(allocator, request, missing))
        found = allocator.offer(request)
        if isinstance(found, Refusal):
            of_offer = causes.causes_of(found, allocator, request, title)
            return NodeVerdict(name, (*of_offer, *of_node), not found.unresolvable), None
        if of_node:
            return NodeVerdict(name, of_node, resolvable=True), None
        if info.group is not None and missing > 1:
            whole = allocator.offer_all(parts(_PLACEHOLDERS, request, missing))
            if isinstance(whole, Refusal):
                text = f"no room for all {missing} members that have no node: {whole.text}"
                objects = (
                    ObjectField("Pod", info.pod.title, _GROUP_FIELD),
                    ObjectField("Node", name, "its pods"),
                )
                summary = "no room for the whole group"
                cause = Cause(NO_ROOM_FOR_GROUP, text, summary, objects=objects)
                return NodeVerdict(name, (cause,), not whole.unresolvable), None
        return NodeVerdict(name, offer=causes.offer_facts(found)), found

    def _commit(self, node: str, node_offer: NodeOffer, copies: dict[str, NodeAllocator]) -> None:
        """Places the pod on a copy of the node."""
        with self._cluster.lock:
            state = self._cluster.node(node)
            if state is None:
                return
            if node not in copies:
                copies[node] = state.allocator.without(())
            copies[node].record(node_offer.assigned_pod())

    def _own_causes(
        self, info: PodInfo, scheduler: str, group: GroupFacts | None, winner: str
    ) -> tuple[Cause, ...]:
        """The causes in the pod itself: its scheduler, an earlier Binding, its group, its claim."""
        pod, found = info.pod.title, []
        if scheduler != self._scheduler:
            text = f"{scheduler or 'the default scheduler'} places this pod"
            text = f"{text}, and not {self._scheduler}"
            found.append(_cause(OTHER_SCHEDULER, text, ("Pod", pod, "spec.schedulerName")))
        reservation = self._cluster.reservation(info.pod.uid)
        if reservation is not None and reservation.confirmed:
            text = f"an earlier Binding to {reservation.node} may take effect"
            found.append(_cause(BINDING_OPEN, text, ("Node", reservation.node, "nothing: wait")))
        if group is not None and info.group is not None:
            found += _group_causes(group, info, winner)
        return (*found, *self._refused_claim(info))

    def _refused_claim(self, info: PodInfo) -> tuple[Cause, ...]:
        """Why the agent of the pod's node refuses its CPU claim."""
        cluster, uid = self._cluster, info.pod.uid
        with cluster.lock:
            pod = cluster.pod(uid)
            state = cluster.node(pod.node) if pod is not None else None
            if pod is None or state is None or pod.assigned is None:
                return ()
            _, reason = state.claim_refusals().get(uid, ("", ""))
            if not reason:
                return ()
            claimed = pod.assigned.allocation.cpus
            reserved = [
                each for each in causes.reservations(state.allocator) if each.cpus & claimed
            ]
        field = f"metadata.annotations[{RESOURCE_STATUS}]"
        of_pod = ObjectField("Pod", info.pod.title, field)
        objects = (*(place for each in reserved for place in each.objects), of_pod)
        text = f"node {pod.node} refuses the claim of CPUs {claimed}: {reason}"
        if "reserved" not in reason:
            text = "; ".join(
                [text, *(f"{each.who} reserves CPUs {each.cpus}" for each in reserved)]
            )
        summary = "its node refuses its claim of CPUs"
        return (Cause(CLAIM_REFUSED, text, summary, objects=objects),)

    def _bound(self, info: PodInfo) -> BoundFacts | None:
        with self._cluster.lock:
            pod = self._cluster.pod(info.pod.uid)
            if pod is None or pod.assigned is None:
                return None
            allocation = pod.assigned.allocation
            by_type: dict[str, tuple[int, ...]] = {}
            for kind, minor in sorted(pod.assigned.devices):
                by_type[kind] = (*by_type.get(kind, ()), minor)
            nodes = tuple(sorted(allocation.amounts))
            return BoundFacts(pod.node, str(allocation.cpus), nodes, by_type)

    def _with_evictions(
        self, info: PodInfo, verdicts: Sequence[NodeVerdict], scope: _Scope
    ) -> list[NodeVerdict]:
        """Adds the pods whose eviction would make room, to the first nodes where this may help."""
        found, tried = [], 0
        for each in verdicts:
            late = tried >= MAX_EVICTION_NODES or time.monotonic() > scope.until
            if each.resolvable and info.pod_request.preempts and not late:
                tried += 1
                each = self._with_eviction(info, each, scope.name)
            found.append(each)
        return found

    def _with_eviction(self, info: PodInfo, verdict: NodeVerdict, name: NameOf) -> NodeVerdict:
        snapshot = NodeSnapshots(self._cluster).take(verdict.node, info.pod_request, info.group)
        if snapshot is None:
            return verdict
        chosen = select_victims(
            snapshot.allocator,
            snapshot.potential_victims,
            self._cluster.requirements(info),
            self._budgets,
            resources=snapshot.resources,
            trials=_EVICTION_TRIALS,
        )
        if chosen is None:
            return verdict
        covering: dict[str, list[Budget]] = {}
        for each in chosen.victims:
            for budget in self._budgets.covering(each.namespace, each.name, each.labels):
                covering.setdefault(budget.title, []).append(budget)
        full = [each[0] for each in covering.values() if len(each) > each[0].allowed]
        budgets = [name(each.uid, each.title) for each in full]
        victims = [name(each.uid, each.title) for each in chosen.victims]
        facts = EvictionFacts(
            len(victims),
            chosen.violations,
            len(full),
            tuple(filter(None, victims)),
            tuple(filter(None, budgets)),
        )
        found = verdict.causes
        if chosen.violations:
            found = (*found, _protected(facts, budgets))
        return msgspec.structs.replace(verdict, causes=found, eviction=facts)


def _rank(node_offer: NodeOffer, node: str) -> tuple[Any, ...]:
    return -node_offer.score, node_offer.order, node


def _group_causes(group: GroupFacts, info: PodInfo, winner: str) -> list[Cause]:
    size = info.group.size if info.group is not None else group.size
    where = ("Pod", info.pod.title, _GROUP_FIELD)
    if size != group.size:
        text = f"{group.group} has size {group.size}, not {size}"
        return [_cause(GROUP_SIZE, text, where)]
    if group.placed >= group.size:
        return [_cause(GROUP_FULL, f"{group.group} has all {group.size} members", where)]
    if not winner and group.known:
        place = f"node {group.node}" if group.node else "one node"
        text = f"{group.group} waits for room for {group.size - group.placed} pods on {place}"
        if group.known < group.size:
            text = f"{text}; {group.size - group.known} members do not exist"
        return [_cause(GROUP_WAITS, text, where)]
    return []


def _protected(facts: EvictionFacts, budgets: Iterable[str]) -> Cause:
    number = facts.protecting
    subject = f"{number} PodDisruptionBudget{'s protect' if number != 1 else ' protects'}"
    text = f"{subject} {facts.protected} of the {facts.pods} pods whose eviction would make room"
    summary = "PodDisruptionBudgets protect pods whose eviction would make room"
    objects = (ObjectField("PodDisruptionBudget", each, "spec") for each in budgets)
    return Cause(BUDGET_PROTECTS, text, summary, objects=tuple(dict.fromkeys(objects)))


def _cause(code: str, text: str, *places: tuple[str, str, str]) -> Cause:
    return Cause(code, text, text, objects=tuple(ObjectField(*each) for each in places))


def _refused(
    node: str, code: str, text: str, kind: str, name: str, field: str = "spec.unschedulable"
) -> NodeVerdict:
    return NodeVerdict(node, (_cause(code, text, (kind, name, field)),))
