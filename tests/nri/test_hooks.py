"""Whole exchanges: runtime, snapshot file, notification socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.hooks.cpuset import CpuGrant
from agent.model.notifications import (
    Created,
    PodAnnounced,
    RequestedResources,
    Resized,
    SnapshotRequest,
)
from agent.model.pod.qos import QoS
from agent.model.snapshot import CgroupLimits, PodWanted, Wanted
from agent.model.verdict import Code
from agent.proto import nri_pb2 as pb
from tests.nri.fake import refusal
from tests.nri.world import World, container, pod
from tests.proxy.exchanges import EMPTY, OWNED

OWN = pod("own", "LSE", "1")
MANY = msgspec.structs.replace(
    OWNED,
    pods={**OWNED.pods, "p": PodWanted("ns/p", QoS.LS, Wanted("0,2-3"))},
    containers={**OWNED.containers, "c": Wanted("0,2-3"), "d": Wanted("0,2-3")},
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Registered with a runtime without containers, with an agent that has finished a pass."""
    it = World(tmp_path)
    it.runtime.set_up()
    it.publish(OWNED)
    it.notifications()
    yield it
    it.close()


@pytest.fixture
def early(tmp_path: Path) -> Iterator[World]:
    """Not registered yet."""
    it = World(tmp_path)
    yield it
    it.close()


def test_a_sandbox_notifies_the_agent(world: World) -> None:
    world.runtime.call("RunPodSandbox", pb.EventRequest(pod=pod("p", "LS")), pb.Empty)
    (notification,) = world.notifications()
    assert isinstance(notification, PodAnnounced)
    assert (notification.uid, notification.labels, notification.cgroup_parent) == (
        "p",
        {"koordinator.sh/qosClass": "LS"},
        "/kubepods/burstable/podp",
    )


def test_the_agent_is_notified_of_a_removed_sandbox(world: World) -> None:
    world.runtime.call("RemovePodSandbox", pb.EventRequest(pod=pod("p", "LS")), pb.Empty)
    assert world.notifications() == [SnapshotRequest(waits=False, sandbox_uid="p")]


def test_an_owner_gets_its_cpus_and_others_the_rest(world: World) -> None:
    assert world.create(container("c", "own"), OWN) == "1"
    assert world.notifications()[0] == Created(
        "c",
        RequestedResources(shares=512),
        ("mems", "shares", "quota_microseconds", "memory_limit_bytes"),
    )
    assert world.create(container("d", "p"), pod("p", "LS")) == "0,2-3"


def test_an_owner_waits_for_its_decision(world: World) -> None:
    world.publish(EMPTY)
    stream = world.begin_create(container("c", "own"), OWN)
    world.runtime.until("a ring", lambda: world.link.stats.held_now and world.notifications())
    world.publish(OWNED)
    reply = pb.CreateContainerResponse.FromString(world.runtime.response(stream).payload)
    assert reply.adjust.linux.resources.cpu.cpus == "1"


def test_an_owner_without_a_decision_is_refused_in_time_and_others_continue(tmp_path: Path) -> None:
    """Well before the runtime's timeout, however long a hold is configured to be."""
    world = World(tmp_path)
    world.runtime.accept()
    world.runtime.configure(request_timeout=200)
    world.runtime.synchronize()
    status = world.runtime.response(world.begin_create(container("c", "own"), OWN)).status
    assert status.code == Code.UNAVAILABLE
    assert "pod ns/own: no CPUs after 0.1 s: the agent has written no snapshot" in status.message
    assert world.create(container("d", "p"), pod("p")) == ""
    world.close()


def test_an_update_keeps_the_wanted_cpus_and_its_other_fields(world: World) -> None:
    it = container("c-own", "own", "1")
    assert world.update(it, OWN, cpus="0-3", shares=300) == "1"
    assert world.update(it, OWN) == "1"


def test_a_resize_is_reported_and_the_agents_own_change_is_not(world: World) -> None:
    batch = Wanted("0,2-3", limits=CgroupLimits(shares=77))
    world.publish(
        msgspec.structs.replace(OWNED, containers={"c": batch, "d": batch}, cpu_policy="static")
    )
    world.notifications()
    world.update(container("c", "p"), pod("p"), cpus="0,2-3", shares=77)
    assert not world.notifications()
    world.update(container("c", "p"), pod("p"), shares=300)
    assert Resized("c", RequestedResources(shares=300)) in world.notifications()


def test_synchronisation_corrects_wrong_containers(early: World) -> None:
    """Only what the agent decides about, and only what differs."""
    early.publish(MANY)
    early.runtime.accept()
    early.runtime.configure()
    there = (container("c", "p", "0-3"), container("d", "p", "0,2-3"), container("x", "p", "0-3"))
    answer = early.runtime.synchronize(*there, pods=(pod("p"),))
    assert [(each.container_id, each.linux.resources.cpu.cpus) for each in answer.update] == [
        ("c", "0,2-3")
    ]
    early.runtime.until("no more updates", lambda: early.link.ready)
    assert early.updated() == []


def test_changed_pools_are_sent_one_container_at_a_time(early: World) -> None:
    early.publish(EMPTY)
    early.runtime.set_up(
        container("c", "p", "0-3"), container("d", "p", "0-3"), pods=(pod("p", "LS"),)
    )
    early.runtime.answers_updates = False
    early.publish(MANY)
    early.runtime.until("the first", lambda: len(early.runtime.requests) == 2)
    early.pass_periods()
    assert len(early.runtime.requests) == 2, "the next waits for the answer"
    early.runtime.answers_updates = True
    early.runtime.respond(early.runtime.requests[1][0], refusal(Code.OK, ""))
    early.runtime.until("both are updated", lambda: early.updater.updates == 2)
    assert early.updated() == [("d", "0,2-3")]
    early.notifications()
    early.publish(MANY)
    early.pass_periods()
    assert early.updated() == [], "nothing is sent twice"


def test_a_runtime_that_may_deadlock_on_an_update_gets_none(early: World) -> None:
    early.publish(EMPTY)
    early.runtime.accept()
    early.runtime.configure(NRI_version="v0.12.0")
    early.runtime.synchronize(container("c", "p", "0-3"), pods=(pod("p", "LS"),))
    early.publish(MANY)
    early.pass_periods()
    assert early.updated() == []
    agents_own = container("c", "p", "0-3")
    assert early.update(agents_own, pod("p", "LS"), shares=300) == "0,2-3"


def test_a_pass_is_requested_after_all_updates(early: World) -> None:
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    early.notifications()
    early.publish(MANY)
    early.runtime.until("a ring", lambda: early.notifications() == [SnapshotRequest()])
    assert early.updated() == [("c", "0,2-3")]


def test_no_owner_starts_during_a_change_of_its_cpus(early: World) -> None:
    """A change in progress may take effect after the owner was created."""
    early.publish(EMPTY)
    early.runtime.patience = 1000
    early.runtime.set_up(container("c", "p", "2"), pods=(pod("p"),))
    early.runtime.answers_updates = False
    early.publish(msgspec.structs.replace(EMPTY, containers={"c": Wanted("0-3")}))
    early.runtime.until("the change", lambda: len(early.runtime.requests) == 2)
    early.publish(OWNED)
    status = early.runtime.response(early.begin_create(container("o", "own"), OWN)).status
    assert "container ns/p main may hold one of CPUs 1" in status.message
    early.runtime.respond(early.runtime.requests[1][0], refusal(Code.OK, ""))
    early.runtime.until("its answer", lambda: early.updater.updates)
    early.publish(OWNED)
    assert early.create(container("o", "own"), OWN) == "1"


def test_a_change_of_limits_holds_the_containers_cpus(early: World) -> None:
    """And no others; otherwise every owner on the node would wait for it."""
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "2"), pods=(pod("p"),))
    early.runtime.answers_updates = False
    quota = Wanted("2", limits=CgroupLimits(quota_microseconds=20_000))
    early.publish(msgspec.structs.replace(OWNED, containers={"c": quota}))
    early.runtime.until("the change", lambda: len(early.runtime.requests) == 2)
    assert early.create(container("o", "own"), OWN) == "1"


def test_a_change_that_the_runtime_refuses_is_not_repeated_and_names_the_other_plugin(
    early: World, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'plugins "10-topolet" and "50-pinner" both tried to set CPUSetCPUs'
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    early.runtime.update_error = refusal(Code.UNKNOWN, text).status
    early.publish(MANY)
    early.runtime.until("a failure", lambda: early.updater.failed)
    early.publish(MANY)
    early.pass_periods()
    assert early.updated() == [("c", "0,2-3")]
    held = [each for each in early.grants.all(None) if each.answered_at is None]
    assert not held, "no owner waits for it"
    assert early.conflicts.found == {("error", "50-pinner"): 1}
    assert "plugin 50-pinner sets the same fields" in caplog.text
    early.runtime.update_error = None
    early.publish(msgspec.structs.replace(MANY, containers={"c": Wanted("2")}))
    early.runtime.until("another value", lambda: early.updater.updates)
    assert early.updated() == [("c", "2")]


def test_a_process_that_stays_on_other_cpus_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Cpus_allowed_list:\t0-3\n")
    world = World(tmp_path, proc=str(tmp_path))
    world.publish(EMPTY)
    one, other = container("c", "p", "0-3"), container("d", "p", "0-3")
    one.pid, other.pid = 7, 8
    world.runtime.set_up(one, other, pods=(pod("p"),))
    world.publish(MANY)
    world.runtime.until("both", lambda: world.updater.updates == 2)
    assert world.updater.unverified == 1
    assert (
        "ns/p main: the runtime was updated to CPUs 0,2-3, but its process runs on 0-3"
        in caplog.text
    )
    world.close()


def test_a_container_that_ended_is_not_changed(early: World) -> None:
    early.publish(EMPTY)
    it = container("c", "p", "0-3")
    early.runtime.set_up(it, pods=(pod("p"),))
    early.end(it, pod("p"))
    assert SnapshotRequest() in early.notifications()
    early.publish(MANY)
    early.pass_periods()
    assert not early.updated()


def test_a_container_that_must_not_run_yet_is_not_changed(early: World) -> None:
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    blocked = Wanted("1", exclusive=True, blocked="somebody holds CPU 1")
    early.publish(msgspec.structs.replace(OWNED, containers={"c": blocked}))
    early.pass_periods()
    assert not early.updated()


def test_no_update_is_sent_while_the_runtime_waits_for_an_answer(early: World) -> None:
    """It would not read, and the answer would wait for an update that may take effect then."""
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    stream = early.begin_create(container("o", "own"), OWN)
    early.runtime.until("held", lambda: early.link.stats.held_now)
    early.publish(msgspec.structs.replace(EMPTY, containers={"c": Wanted("0,2-3")}))
    early.pass_periods()
    assert not early.updated()
    early.publish(MANY)
    early.runtime.response(stream)
    early.runtime.until("the change", lambda: early.updater.updates)


def test_a_failed_creation_frees_its_cpus(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The runtime reports the end of a container that it never created."""
    world.others = ("pinner (4711)",)
    it = container("c", "p")
    world.runtime.response(world.begin_create(it, pod("p")))
    assert len(world.grants.all(None)) == 1
    world.end(it, pod("p"))
    assert not [each for each in world.grants.all(None) if each.answered_at is None]
    assert (
        "ns/p main: was not created after the plugin's answer; other plugins are connected"
        in caplog.text
    )
    assert world.conflicts.found == {("undone", "pinner (4711)"): 1}


def test_an_unchanged_creation_is_not_a_conflict(world: World) -> None:
    world.publish(EMPTY)
    it = container("c", "p", "0-3")
    world.runtime.response(world.begin_create(it, pod("p")))
    world.end(it, pod("p"))
    assert not world.conflicts.found


@pytest.mark.parametrize("when", ["made", "changed"])
def test_cpus_of_another_plugin_are_detected(
    world: World, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = container("c", "p")
    if when == "made":
        world.runtime.response(world.begin_create(it, pod("p")))
        theirs = container("c", "p", "2")
        event = pb.EventRequest(pod=pod("p"), container=theirs)
        world.runtime.call("PostCreateContainer", event, pb.Empty)
    else:
        world.create(it, pod("p"))
        world.update(container("c", "p", "2"), pod("p"))
    assert "ns/p main: CPUs 0,2-3 were changed to 2" in caplog.text
    assert world.conflicts.found == {("changed", ""): 1}


def test_the_plugins_own_change_is_not_a_conflict_even_before_its_answer(early: World) -> None:
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    early.runtime.answers_updates = False
    early.publish(MANY)
    early.runtime.until("the change", lambda: len(early.runtime.requests) == 2)
    early.update(container("c", "p", "0,2-3"), pod("p"))
    assert not early.conflicts.found


def test_a_request_with_values_before_the_last_change_is_not_a_conflict(
    early: World, caplog: pytest.LogCaptureFixture
) -> None:
    """containerd reads the container, then waits until the plugin's change of it has ended."""
    early.publish(EMPTY)
    early.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    early.publish(MANY)
    early.runtime.until("the change", lambda: early.updater.updates)
    stale = container("c", "p", "0-3")
    early.update(stale, pod("p"))
    assert not early.conflicts.found
    for _ in range(3):
        early.update(stale, pod("p"))
    assert early.conflicts.found, "another plugin resets it repeatedly"
    assert "ns/p main: CPUs 0,2-3 were changed to 0-3" in caplog.text


def test_a_change_before_the_creations_event_is_not_a_conflict(world: World) -> None:
    it = container("c", "p")
    world.runtime.response(world.begin_create(it, pod("p")))
    world.publish(msgspec.structs.replace(MANY, containers={"c": Wanted("2")}))
    made = container("c", "p", "0,2-3")
    event = pb.EventRequest(pod=pod("p"), container=made)
    event.linux_resources.cpu.cpus = "2"
    world.runtime.call("UpdateContainer", event, pb.UpdateContainerResponse)
    event.container.linux.resources.cpu.cpus = "2"
    world.runtime.call("PostCreateContainer", event, pb.Empty)
    assert not world.conflicts.found


def test_containers_created_without_the_plugin_may_hold_any_cpu_until_the_next_pass(
    world: World,
) -> None:
    world.runtime.drop()
    world.runtime.patience = 1000
    world.runtime.set_up(container("new", "p"), pods=(pod("p"),))
    assert SnapshotRequest() in world.notifications()
    status = world.runtime.response(world.begin_create(container("o", "own"), OWN)).status
    assert "a container that was created without a hook may hold" in status.message
    world.publish(OWNED)
    assert world.create(container("o", "own"), OWN) == "1"


@pytest.mark.parametrize("made", [True, False])
def test_a_creation_cut_by_the_end_of_the_session_is_settled(world: World, made: bool) -> None:
    it = container("c", "p")
    world.runtime.response(world.begin_create(it, pod("p")))
    world.runtime.drop()
    world.notifications()
    world.runtime.set_up(*([it] if made else []), pods=(pod("p"),))
    assert all(each.answered_at is not None for each in world.grants.all(None))
    assert any(isinstance(each, Created) for each in world.notifications()) == made


def test_a_held_creation_of_an_ended_session_holds_nothing(world: World) -> None:
    world.publish(EMPTY)
    world.begin_create(container("c", "own"), OWN)
    world.runtime.until("held", lambda: world.link.stats.held_now)
    world.runtime.drop()
    world.runtime.set_up()
    assert world.link.stats.held_now == 0
    assert all(each.answered_at is not None for each in world.grants.all(None))


def test_an_ending_plugin_lets_no_owner_start_without_its_cpus(world: World) -> None:
    """The runtime creates a container with the requested values if its plugin disconnects."""
    world.publish(EMPTY)
    stream = world.begin_create(container("c", "own"), OWN)
    world.runtime.until("held", lambda: world.link.stats.held_now)
    world.link.close()
    status = world.runtime.response(stream).status
    assert status.message == "CreateContainer: pod ns/own: the plugin ends"


def test_a_failing_hook_passes_by_policy_and_counts_as_a_grant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("agent.hooks.cpuset.create", broken)
    refused = world.runtime.response(world.begin_create(container("b", "p"), pod("p"))).status
    assert refused.message.endswith("ValueError: broken; it could take CPUs 1 of pod ns/own")
    world.publish(EMPTY)
    assert world.create(container("c", "p"), pod("p")) == ""
    assert CpuGrant("", "pod ns/p", None) == msgspec.structs.replace(
        world.grants.all(None)[-1], answered_at=None
    )
    status = world.runtime.response(world.begin_create(container("o", "own"), OWN)).status
    assert status.message == "CreateContainer: pod ns/own: ValueError: broken"
    assert world.admission.outcomes.failed == {
        ("CreateContainer", "LS", "internal_error"): 1,
        ("CreateContainer", "LSE", "internal_error"): 1,
    }
