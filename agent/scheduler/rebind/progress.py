"""Makes the first status of a rebind, its plan or the reasons why there is none; and decides the
next step of a rebind that has a plan, from the status of its object and the present
allocations of the node's pods. The next leader decides the same, because nothing else is read.

The moves are made in their order, each only while the CPUs of its target have no other owner. They
are undone in reverse order if the deadline has passed, if another client changed the allocation of
a pod of the plan, or if another pod got CPUs that the plan needs. Moves of deleted pods are left
out. If a move can't be undone either, the phase is Unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import AssignedPod, assigned_pod_of
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.rebind.arrangement import Measures
from agent.allocate.rebind.planner import NoPlan, PodMove, moved_allocation, placed_node, plan
from agent.model import bounds
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.pod.annotations import (
    REBIND,
    REBIND_NEVER,
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
    status_text,
)
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.resource_request import ResourceRequest
from agent.model.pod_request import PodRequestError, request_of
from agent.model.rebind_resource import (
    RebindPhase,
    RebindRequest,
    RebindStatus,
    StatusMeasures,
    StatusMove,
    StatusPlan,
    time_text,
)


def pod_now(pod: ApiPod) -> PodNow:
    """The pod with its allocation."""
    held = assigned_pod_of(pod).allocation
    return PodNow(pod.uid, pod.title, status_of(held), held.cpus, pod.resource_version)


def first_status(
    request: RebindRequest,
    properties: NodeProperties,
    pods: Sequence[ApiPod],
    reservations: Iterable[AssignedPod],
    now: float,
) -> RebindStatus:
    """The status with the plan, or with the reason why there is none.

    `pods`: the pods of the node that are not terminal.
    `reservations`: the amounts that Reservations hold on the node.
    `now`: seconds since 1970."""
    allocator = NodeAllocator(properties, [*map(assigned_pod_of, pods), *reservations])
    node = placed_node(allocator, requests_of(pods), fixed_pods(pods, request.excluded_namespaces))
    if isinstance(node, NoPlan):
        return RebindStatus(RebindPhase.FAILED, _text(node))
    planned = plan(node, request.max_pods)
    if isinstance(planned, NoPlan):
        return RebindStatus(RebindPhase.SUCCEED, _text(planned))
    moves = _moves(properties.cpus, allocator, planned.moves)
    before, after = status_measures(planned.before), status_measures(planned.after)
    written = StatusPlan(time_text(now), before=before, after=after, moves=moves)
    if request.dry_run:
        reason = f"dry run; pods to move: {len(planned.uids)}"
        return RebindStatus(RebindPhase.SUCCEED, reason, plan=written)
    return RebindStatus(RebindPhase.PENDING, f"pods to move: {len(planned.uids)}", plan=written)


def requests_of(pods: Iterable[ApiPod]) -> dict[str, ResourceRequest]:
    """The requests by uid, without pods whose request can't be read: they are not moved."""
    found = {}
    for pod in pods:
        try:
            found[pod.uid] = request_of(pod).resources
        except PodRequestError:
            continue
    return found


def fixed_pods(pods: Iterable[ApiPod], excluded_namespaces: Set[str]) -> dict[str, str]:
    """Why pods are not moved, by uid."""
    return {pod.uid: why for pod in pods if (why := _why_fixed(pod, excluded_namespaces))}


def _why_fixed(pod: ApiPod, excluded_namespaces: Set[str]) -> str:
    if pod.mirror:
        return "it is a static pod"
    if pod.deleted:
        return "it is being deleted"
    if pod.annotations.get(REBIND) == REBIND_NEVER:
        return f"its annotation {REBIND} is {REBIND_NEVER}"
    if pod.namespace in excluded_namespaces:
        return f"namespace {pod.namespace} is in excludedNamespaces"
    return ""


def _moves(
    options: TopologyOptions | None, allocator: NodeAllocator, moves: Iterable[PodMove]
) -> tuple[StatusMove, ...]:
    now = {uid: each.allocation for uid, each in allocator.assigned_pods.items()}
    found = []
    for move in moves:
        before = now[move.uid]
        after = moved_allocation(options or TopologyOptions(None), before, move.target)
        found.append(StatusMove(move.uid, move.title, status_of(before), status_of(after)))
        now[move.uid] = after
    return tuple(found)


def status_of(allocation: PodAllocation) -> str:
    """The allocation as the text of resource-status, as in the moves of a plan."""
    return status_text(allocation.cpus, allocation.amounts)


def status_measures(measures: Measures) -> StatusMeasures:
    """The measures as plans have them."""
    return StatusMeasures(*msgspec.structs.astuple(measures))


def _text(found: NoPlan) -> str:
    return bounds.reason("; ".join(found.reasons))


class PodNow(msgspec.Struct, frozen=True):
    """A pod on the node."""

    uid: str
    title: str
    status: str
    """Its allocation, as `status_text` writes it."""
    cpus: CpuSet = EMPTY
    resource_version: str = ""
    """The pod's."""


class Rewrite(msgspec.Struct, frozen=True):
    """The pod gets this resource-status."""

    pod: PodNow
    status: str


class Conclude(msgspec.Struct, frozen=True):
    """The object gets this status, apart from the time."""

    status: RebindStatus


def next_step(
    status: RebindStatus, plan: StatusPlan, pods: Mapping[str, PodNow], *, overdue: bool
) -> Rewrite | Conclude:
    """What to do next.

    `pods`: by uid.
    `overdue`: the deadline has passed."""
    progress = _Progress(plan.moves, pods)
    if plan.undoing:
        return progress.undo(status)
    if progress.changed:
        title = progress.changed[0]
        return _undoing(status, plan, f"another client changed {RESOURCE_STATUS} of pod {title}")
    move = next(progress.open(), None)
    if move is None:
        moved = sum(1 for uid in {move.uid for move in plan.moves} if uid in pods)
        return Conclude(_ended(status, RebindPhase.SUCCEED, f"pods moved: {moved}"))
    if overdue:
        return _undoing(status, plan, "the deadline has passed")
    if obstacle := progress.obstacle(move.uid, move.target):
        return _undoing(status, plan, f"pod {move.pod}: {obstacle}")
    return Rewrite(pods[move.uid], move.target)


class _Progress:
    """The moves that are made, read from the present allocations."""

    def __init__(self, moves: Sequence[StatusMove], pods: Mapping[str, PodNow]) -> None:
        self._moves = moves
        self._pods = pods
        self._done: dict[str, int] = {}
        self.changed: list[str] = []
        """The titles of the pods whose allocation is not in the plan."""
        for uid in dict.fromkeys(move.uid for move in moves):
            pod = pods.get(uid)
            if pod is None:
                continue
            mine = [move for move in moves if move.uid == uid]
            places = [mine[0].source, *(move.target for move in mine)]
            if pod.status in places:
                self._done[uid] = places.index(pod.status)
            else:
                self.changed.append(pod.title)

    def open(self) -> Iterator[StatusMove]:
        """The moves that are not made yet, in their order."""
        return (move for move, done in self._each() if not done)

    def _each(self) -> list[tuple[StatusMove, bool]]:
        """The moves of the pods that are on the node and that no other client changed, and whether
        each is made."""
        seen: dict[str, int] = {}
        moves = []
        for move in self._moves:
            if move.uid in self._done:
                number = seen[move.uid] = seen.get(move.uid, 0) + 1
                moves.append((move, number <= self._done[move.uid]))
        return moves

    def obstacle(self, uid: str, status: str) -> str:
        """Why the pod can't have this allocation, "" if it can."""
        wanted = cpus_of(status)
        others = union(pod.cpus for pod in self._pods.values() if pod.uid != uid)
        return f"CPUs {wanted & others} have another owner" if wanted & others else ""

    def undo(self, status: RebindStatus) -> Rewrite | Conclude:
        done = [move for move, made in self._each() if made]
        if not done:
            reason = f"undone: {status.reason}"
            return Conclude(_ended(status, RebindPhase.FAILED, reason))
        move = done[-1]
        if obstacle := self.obstacle(move.uid, move.source):
            reason = f"{status.reason}; it can't be undone: pod {move.pod}: {obstacle}"
            return Conclude(_ended(status, RebindPhase.UNKNOWN, reason))
        return Rewrite(self._pods[move.uid], move.source)


def _undoing(status: RebindStatus, plan: StatusPlan, reason: str) -> Conclude:
    undoing = msgspec.structs.replace(plan, undoing=True)
    return Conclude(msgspec.structs.replace(status, reason=reason, plan=undoing))


def _ended(status: RebindStatus, phase: RebindPhase, reason: str) -> RebindStatus:
    return msgspec.structs.replace(status, phase=phase, reason=reason)


def cpus_of(status: str) -> CpuSet:
    """The CPUs of a text of resource-status; none if it can't be read."""
    try:
        return resource_status({RESOURCE_STATUS: status}).cpus()
    except AnnotationError:
        return EMPTY
