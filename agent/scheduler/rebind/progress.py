"""The next step of a rebind whose plan is in the status of its object, from the status and the
present allocations of the node's pods. It is pure, so that the next leader decides the same.

The moves are made in their order, each only while the CPUs of its target have no other owner. They
are undone, in the reverse order, when the deadline has passed, when another client changed the
allocation of a pod of the plan, and when another pod got CPUs that the plan needs. A pod that was
deleted drops out. If it can't be undone either, the phase is Unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.rebind_resource import RebindPhase, RebindStatus, StatusMove, StatusPlan


class PodNow(msgspec.Struct, frozen=True):
    """A pod on the node. `status`: its allocation, as `status_text` writes it. `resource_version`:
    of the pod."""

    uid: str
    title: str
    status: str
    cpus: CpuSet = EMPTY
    resource_version: str = ""


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
    """`pods`: by uid. `overdue`: the deadline has passed."""
    state = _Progress(plan.moves, pods)
    if plan.undoing:
        return state.undo(status)
    if state.changed:
        title = state.changed[0]
        return _undoing(status, plan, f"another client changed {RESOURCE_STATUS} of pod {title}")
    move = next(state.open(), None)
    if move is None:
        moved = sum(1 for each in {each.uid for each in plan.moves} if each in pods)
        return Conclude(_ended(status, RebindPhase.SUCCEED, f"pods moved: {moved}"))
    if overdue:
        return _undoing(status, plan, "the deadline has passed")
    if taken := state.taken(move.uid, move.target):
        return _undoing(status, plan, f"pod {move.pod}: {taken}")
    return Rewrite(pods[move.uid], move.target)


class _Progress:
    """`changed`: titles of the pods whose allocation is none of the plan."""

    def __init__(self, moves: Sequence[StatusMove], pods: Mapping[str, PodNow]) -> None:
        self._moves = moves
        self._pods = pods
        self._done: dict[str, int] = {}
        self.changed: list[str] = []
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
        """The moves that are not made, in their order."""
        return (move for move, done in self._each() if not done)

    def _each(self) -> list[tuple[StatusMove, bool]]:
        """The moves of pods that are on the node and that no other client changed."""
        seen: dict[str, int] = {}
        found = []
        for move in self._moves:
            if move.uid in self._done:
                number = seen[move.uid] = seen.get(move.uid, 0) + 1
                found.append((move, number <= self._done[move.uid]))
        return found

    def taken(self, uid: str, status: str) -> str:
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
        if taken := self.taken(move.uid, move.source):
            reason = f"{status.reason}; it can't be undone: pod {move.pod}: {taken}"
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
