"""The controller of RebindResource against an API server that refuses and loses writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.scheduler.state.cluster import SchedulerCache
from tests.kube.fake_api_server import Server
from tests.scheduler import objects
from tests.scheduler.clusters import ineligibility
from tests.scheduler.rebind.world import World

OLD = {"a": "0,4", "b": "1,5", "c": "2-3", "d": "6"}
NEW = {"a": "4-5", "b": "0-1", "c": "2-3", "d": "6"}
"""Pod a is moved to CPUs 4 and 7 in between."""


@pytest.fixture
def world(server: Server) -> Iterator[World]:
    it = World(server)
    yield it
    it.transport.close()


def fragmented(world: World) -> None:
    for name, cpus in OLD.items():
        world.owner(name, cpus, count=2 if name == "c" else 0)


def ineligible(cluster: SchedulerCache) -> str:
    """Why a pod that needs an exclusive CPU is not eligible for the node."""
    return ineligibility(cluster, "n1", objects.pod_request({"cpu": "1"}, "LSR"))


def test_a_fragmented_node_is_defragmented(world: World) -> None:
    fragmented(world)
    world.rebind()
    status = world.finish()
    assert (status["phase"], status["reason"]) == ("Succeed", "pods moved: 2")
    assert status["updateTimestamp"] == "2026-01-01T12:00:00Z"
    assert world.cpus() == NEW
    assert world.patches == ["r", "a", "b", "a", "r"], "the plan is written before the first pod"
    plan = status["plan"]
    assert (plan["before"]["numaCrossings"], plan["after"]["numaCrossings"]) == (2, 0)
    assert [(each["pod"], json.loads(each["to"])["cpuset"]) for each in plan["moves"]] == [
        ("ns/a", "4,7"),
        ("ns/b", "0-1"),
        ("ns/a", "4-5"),
    ]


def test_results_of_rebinds_are_counted(world: World) -> None:
    fragmented(world)
    world.rebind("dry", dryRun=True)
    world.finish("dry")
    assert world.controller.values.plans == 0
    world.rebind("undone", deadlineInSeconds=60)
    world.refuse = {world.writes + 2: 503}
    world.until_write(world.writes + 2)
    assert world.controller.values.locked == 1
    world.now += 61
    world.finish("undone")
    world.rebind("moved")
    world.step()
    world.now += 4
    world.finish("moved")
    values = world.controller.values
    assert values.ended == {"Succeed": 2, "Failed": 1, "Unknown": 0}
    assert (values.plans, values.made, values.undone) == (2, 4, 1)
    assert (values.finished, values.seconds, values.locked) == (2, 65, 0)


def test_a_dry_run_writes_only_the_plan(world: World) -> None:
    fragmented(world)
    world.rebind(dryRun=True)
    status = world.finish()
    assert (status["phase"], status["reason"]) == ("Succeed", "dry run; pods to move: 2")
    assert len(status["plan"]["moves"]) == 3
    assert (world.cpus(), world.patches) == (OLD, ["r"])


def test_nothing_of_a_rebind_is_kept_after_its_end(world: World) -> None:
    fragmented(world)
    world.rebind(dryRun=True)
    world.finish()
    world.report()
    world.step()
    assert not world.controller._versions


def test_the_node_is_locked_until_the_end(world: World) -> None:
    fragmented(world)
    world.rebind()
    locked: list[str | None] = []
    world.after_write = lambda: locked.append(ineligible(world.cluster))
    world.step()
    assert ineligible(world.cluster) == "RebindResource r moves pods of the node"
    assert world.cluster.ineligibility("n1", objects.pod_request({"cpu": "1"})) is None
    world.finish()
    assert locked == ["RebindResource r moves pods of the node"] * 5
    assert ineligible(world.cluster) == ""


def test_a_new_process_locks_the_node_before_its_first_step(world: World) -> None:
    fragmented(world)
    world.rebind()
    world.step()
    world.requests.release_all()
    world.cluster.lock_node("n1", "")
    world.start()
    assert ineligible(world.cluster) == "RebindResource r moves pods of the node"


@pytest.mark.parametrize("fault", ["refused", "conflict", "lost"])
@pytest.mark.parametrize("number", range(5))
def test_a_rebind_interrupted_at_any_write_ends_in_the_new_state(
    world: World, number: int, fault: str
) -> None:
    fragmented(world)
    world.rebind()
    if fault == "lost":
        world.lose = {number}
    else:
        world.refuse = {number: 409 if fault == "conflict" else 500}
    world.until_write(number)
    world.start()
    assert world.finish()["phase"] == "Succeed"
    assert world.cpus() == NEW


def test_a_rebind_whose_plan_was_not_written_and_that_fails_then_locks_no_node(
    world: World,
) -> None:
    fragmented(world)
    world.rebind()
    world.refuse = {0: 409}
    world.step()
    assert ineligible(world.cluster) == ""
    deleted = objects.agent("n1")
    world.cluster.pods_changed([objects.pod_change(deleted, ChangeKind.DELETED)])
    assert world.finish()["phase"] == "Failed"
    assert world.controller.values.locked == 0


@pytest.mark.parametrize("number", range(1, 4))
def test_a_rebind_interrupted_until_the_deadline_ends_in_the_old_state(
    world: World, number: int
) -> None:
    fragmented(world)
    world.rebind(deadlineInSeconds=60)
    world.refuse = {number: 503}
    world.until_write(number)
    world.now += 61
    world.start()
    status = world.finish()
    assert (status["phase"], status["reason"]) == ("Failed", "undone: the deadline has passed")
    assert world.cpus() == OLD


def test_a_process_that_does_not_lead_writes_nothing(world: World) -> None:
    fragmented(world)
    world.rebind()
    world.leading = False
    world.step()
    assert world.writes == 0


def test_a_rebind_ends_after_the_watch_has_reported_the_pods(world: World) -> None:
    fragmented(world)
    world.rebind()
    world.step()
    world.report()
    world.controller.step()
    assert world.cpus() == NEW
    assert world.status_of()["phase"] == "Pending", "the watch has the old CPUs of the pods"
    assert ineligible(world.cluster)
    world.step()
    assert world.rebinds["r"]["status"]["phase"] == "Succeed"


OBSTACLES: dict[str, tuple[str, str, str]] = {
    "no node": ("n2", "Failed", "node n2 does not exist"),
    "no agent": (
        "n1",
        "Failed",
        "no agent of Topolet is Ready on node n1, which would move its pods",
    ),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_a_node_without_an_agent_or_without_an_object_fails(world: World, case: str) -> None:
    node, phase, reason = OBSTACLES[case]
    if case == "no agent":
        deleted = objects.agent("n1")
        world.cluster.pods_changed([objects.pod_change(deleted, ChangeKind.DELETED)])
    fragmented(world)
    world.rebind(node=node)
    status = world.finish()
    assert (status["phase"], status["reason"]) == (phase, reason)
    assert world.cpus() == OLD


def test_a_rebind_that_moves_no_pod_succeeds(world: World) -> None:
    world.owner("a", "0-1", count=2)
    world.rebind()
    status = world.finish()
    assert (status["phase"], status["reason"]) == ("Succeed", "no pods could be placed better")
    assert "plan" not in status
    assert ineligible(world.cluster) == ""


FIXED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "annotation": (
        {"annotations": {"topolet.io/rebind": "never"}},
        {},
        "its annotation topolet.io/rebind is never",
    ),
    "namespace": (
        {"namespace": "db"},
        {"excludedNamespaces": ["db"]},
        "namespace db is in excludedNamespaces",
    ),
}


@pytest.mark.parametrize("case", FIXED)
def test_an_excluded_pod_is_not_moved(world: World, case: str) -> None:
    more, spec, reason = FIXED[case]
    world.owner("a", "0,2", **more)
    world.rebind(**spec)
    world.start()
    status = world.finish()
    title = f"{more.get('namespace', 'ns')}/a"
    assert status["reason"] == f"pod {title} is not moved: {reason}"
    assert world.cpus() == {"a": "0,2"}


def test_no_more_pods_are_moved_than_permitted(world: World) -> None:
    world.owner("a", "0,2")
    world.owner("b", "4,6")
    world.rebind(maxPods=1)
    world.start()
    assert world.finish()["reason"] == "pods moved: 1"


def test_a_rebind_waits_for_its_hours(world: World) -> None:
    fragmented(world)
    world.rebind(hours="22:00-06:00")
    world.start()
    for _ in range(3):
        world.step()
    status = world.status_of()
    assert (status["phase"], status["reason"]) == ("Pending", "waits for the hours of its spec")
    assert world.writes == 1, "the same status is written once"
    world.now += 10.5 * 3600
    assert world.finish()["phase"] == "Succeed"


def test_a_node_has_one_rebind_at_a_time(world: World) -> None:
    fragmented(world)
    world.rebind("r")
    world.rebind("s")
    world.step()
    assert world.status_of("s")["reason"] == "waits for another RebindResource of the node"
    world.finish("r")
    assert world.finish("s")["reason"].startswith("no ")
    assert world.cpus() == NEW


def test_a_rebind_waits_for_pods_that_are_being_bound(world: World) -> None:
    fragmented(world)
    node = world.cluster.node("n1")
    assert node is not None
    world.report()
    node_offer = node.allocator.offer(objects.pod_request({"cpu": "1"}, "LSR"))
    assert isinstance(node_offer, NodeOffer)
    world.cluster.reserve("n1", node_offer)
    world.rebind()
    world.step()
    assert world.status_of()["reason"] == "waits for pods that are being bound to the node"
    world.cluster.release(node_offer.uid)
    assert world.finish()["phase"] == "Succeed"


def test_a_deleted_rebind_unlocks_the_node(world: World) -> None:
    fragmented(world)
    world.rebind()
    world.step()
    world.report()
    (request,) = world.requests.all()
    world.requests.changed([Change(ChangeKind.DELETED, ObjectKey("", "r"), request)])
    world.rebinds.clear()
    world.controller.step()
    assert ineligible(world.cluster) == ""
