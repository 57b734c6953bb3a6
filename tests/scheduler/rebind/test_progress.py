"""The steps of a rebind, from each state that a killed process can leave."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.rebind.arrangement import PlacedNode
from agent.allocate.rebind.planner import RebindPlan, plan
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import status_text
from agent.model.rebind_resource import RebindPhase, RebindStatus, StatusMove, StatusPlan
from agent.scheduler.rebind.progress import Conclude, PodNow, Rewrite, cpus_of, next_step
from tests.allocate.rebind.nodes import small_nodes

PENDING = RebindStatus(RebindPhase.PENDING, "pods to move: 2", "2026-01-01T00:00:00Z")


def text(cpus: str) -> str:
    return status_text(CpuSet.parse(cpus), {})


def moves(*each: tuple[str, str, str]) -> StatusPlan:
    return StatusPlan(
        moves=tuple(StatusMove(uid, f"ns/{uid}", text(a), text(b)) for uid, a, b in each)
    )


EXCHANGE = moves(("a", "0,4", "4,7"), ("b", "1,5", "0-1"), ("a", "4,7", "4-5"))


class World:
    """Pods on a node, and the status of a rebind of it."""

    def __init__(self, plan: StatusPlan, **pods: str) -> None:
        self.status = msgspec.structs.replace(PENDING, plan=plan)
        self.pods = dict(pods)
        self.writes = 0

    def now(self) -> dict[str, PodNow]:
        return {
            uid: PodNow(uid, f"ns/{uid}", text(cpus), CpuSet.parse(cpus))
            for uid, cpus in self.pods.items()
        }

    def step(self, *, overdue: bool = False) -> None:
        plan = self.status.plan
        assert plan is not None
        found = next_step(self.status, plan, self.now(), overdue=overdue)
        self.writes += 1
        if isinstance(found, Conclude):
            self.status = found.status
            return
        cpus = cpus_of(found.status)
        others = [CpuSet.parse(each) for uid, each in self.pods.items() if uid != found.pod.uid]
        assert not any(cpus & other for other in others), "a CPU has two owners"
        self.pods[found.pod.uid] = str(cpus)

    def finish(self, *, overdue: bool = False) -> None:
        for _ in range(50):
            if self.status.ended:
                return
            self.step(overdue=overdue)
        raise AssertionError("the rebind does not end")


def test_all_moves_are_made_in_order() -> None:
    world = World(EXCHANGE, a="0,4", b="1,5", other="2-3")
    world.finish()
    assert (world.status.phase, world.status.reason) == (RebindPhase.SUCCEED, "pods moved: 2")
    assert world.pods == {"a": "4-5", "b": "0-1", "other": "2-3"}
    assert world.writes == 4


@given(small_nodes(), st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_every_plan_ends_in_the_old_or_the_new_state(
    node: PlacedNode, late_after: int, deleted_after: int
) -> None:
    found = plan(node)
    if not isinstance(found, RebindPlan):
        return
    owners = {pod.uid: str(CpuSet.from_int(pod.place)) for pod in node.pods if pod.owner}
    steps = [move for move in found.moves if move.uid in owners]
    written = moves(*((m.uid, str(m.source.cpus), str(m.target.cpus)) for m in steps))
    if not written.moves:
        return
    new = owners | {m.uid: str(m.target.cpus) for m in steps}
    world = World(written, **owners)
    deleted = written.moves[0].uid
    for number in range(60):
        if world.status.ended:
            break
        if number == deleted_after:
            world.pods.pop(deleted, None)
        world.step(overdue=number >= late_after)
    remaining = world.pods.keys()
    ends = [{uid: cpus for uid, cpus in end.items() if uid in remaining} for end in (owners, new)]
    assert world.pods in ends
    assert (world.status.phase is RebindPhase.SUCCEED) or world.pods == ends[0]


def test_a_pod_that_another_client_changed_ends_the_rebind() -> None:
    world = World(EXCHANGE, a="0,4", b="1,5")
    world.step()
    world.pods["b"] = "2-3"
    world.finish()
    assert world.pods == {"a": "0,4", "b": "2-3"}
    assert world.status.reason == (
        "undone: another client changed scheduling.koordinator.sh/resource-status of pod ns/b"
    )


def test_a_new_owner_of_needed_cpus_ends_the_rebind() -> None:
    world = World(EXCHANGE, a="0,4", b="1,5", other="7")
    world.finish()
    assert world.pods == {"a": "0,4", "b": "1,5", "other": "7"}
    assert world.status.reason == "undone: pod ns/a: CPUs 7 have another owner"


def test_a_rebind_that_cannot_be_undone_is_unknown() -> None:
    world = World(EXCHANGE, a="0,4", b="1,5")
    world.step()
    world.pods["other"] = "0"
    world.finish()
    assert world.status.phase is RebindPhase.UNKNOWN
    assert world.status.reason == (
        "pod ns/b: CPUs 0 have another owner; it can't be undone: pod ns/a: CPUs 0 have another "
        "owner"
    )


def test_the_moves_of_a_deleted_pod_are_skipped() -> None:
    world = World(EXCHANGE, a="0,4", b="1,5")
    world.step()
    del world.pods["a"]
    world.finish()
    assert world.pods == {"b": "0-1"}
    assert (world.status.phase, world.status.reason) == (RebindPhase.SUCCEED, "pods moved: 1")


def test_a_pod_without_exclusive_cpus_moves_between_numa_nodes() -> None:
    old = status_text(CpuSet(), {0: {"cpu": 500}, 1: {"cpu": 500}})
    new = status_text(CpuSet(), {0: {"cpu": 1000}})
    plan_ = StatusPlan(moves=(StatusMove("s", "ns/s", old, new),))
    pods = {"s": PodNow("s", "ns/s", old)}
    found = next_step(PENDING, plan_, pods, overdue=False)
    assert found == Rewrite(pods["s"], new)
