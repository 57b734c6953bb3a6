"""Calls of the runtime to the hooks, with a snapshot file and a notification socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent.hooks.requests import CreateContainer, UpdateContainer, Verdict
from agent.model.linux_resources import NO_QUOTA, NO_RESOURCES, CpuQuota, LinuxResources
from agent.model.notifications import (
    ContainerFailed,
    Created,
    Resized,
    SnapshotRequest,
)
from agent.model.pod.qos import QoS
from agent.model.settings.frontends import Deadlines
from agent.model.snapshot import PodWanted, Wanted
from agent.model.verdict import Code, Refuse, Wait
from agent.nri.conflicts import Conflicts
from agent.nri.containers import Containers
from agent.nri.hooks import NriHooks
from agent.nri.messages import NriContainer
from agent.nri.service import PluginCall
from agent.proto import nri_pb2 as pb
from tests.hooks.admission_harness import AdmissionHarness
from tests.hooks.admission_harness import container as requested
from tests.hooks.snapshots import EMPTY, OWNED, WITH_DEVICES
from tests.nri.fake import refusal
from tests.nri.harness import PluginHarness, container, pod

OWN = pod("own", "LSE", "1")
MANY = msgspec.structs.replace(
    OWNED,
    pods={**OWNED.pods, "p": PodWanted("ns/p", QoS.LS, Wanted(LinuxResources("0,2-3")))},
    containers={
        **OWNED.containers,
        "c": Wanted(LinuxResources("0,2-3")),
        "d": Wanted(LinuxResources("0,2-3")),
    },
)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PluginHarness]:
    """Registered with a runtime without containers; the agent has finished a pass."""
    it = PluginHarness(tmp_path)
    it.runtime.set_up()
    it.publish(OWNED)
    it.notifications()
    yield it
    it.close()


@pytest.fixture
def unregistered(tmp_path: Path) -> Iterator[PluginHarness]:
    """A plugin that is not registered yet."""
    it = PluginHarness(tmp_path)
    yield it
    it.close()


def test_an_owner_gets_its_cpus_and_other_pods_get_the_pool(harness: PluginHarness) -> None:
    assert harness.create(container("c", "own"), OWN) == "1"
    assert harness.notifications()[0] == Created(
        "c",
        LinuxResources(shares=512),
        ("mems", "shares", "quota", "memory_limit_bytes", "hugepages"),
    )
    assert harness.create(container("d", "p"), pod("p", "LS")) == "0,2-3"


def test_an_update_keeps_the_wanted_cpus_and_its_other_fields(harness: PluginHarness) -> None:
    it = container("c-own", "own", "1")
    assert harness.update(it, OWN, cpus="0-3", shares=300) == "1"
    assert harness.update(it, OWN) == "1"


def test_synchronisation_corrects_wrong_containers(unregistered: PluginHarness) -> None:
    """Only containers that the agent decides about, and only values that differ."""
    unregistered.publish(MANY)
    unregistered.runtime.accept()
    unregistered.runtime.configure()
    present = (container("c", "p", "0-3"), container("d", "p", "0,2-3"), container("x", "p", "0-3"))
    answer = unregistered.runtime.synchronize(*present, pods=(pod("p"),))
    assert [(each.container_id, each.linux.resources.cpu.cpus) for each in answer.update] == [
        ("c", "0,2-3")
    ]
    unregistered.runtime.until("no more updates", lambda: unregistered.link.ready)
    assert unregistered.sent_updates() == []


def test_changed_pools_are_sent_one_container_at_a_time(unregistered: PluginHarness) -> None:
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(
        container("c", "p", "0-3"), container("d", "p", "0-3"), pods=(pod("p", "LS"),)
    )
    unregistered.runtime.answers_updates = False
    unregistered.publish(MANY)
    unregistered.runtime.until("the first update", lambda: len(unregistered.runtime.requests) == 2)
    unregistered.run_two_periods()
    assert len(unregistered.runtime.requests) == 2, "the next waits for the answer"
    unregistered.runtime.answers_updates = True
    unregistered.runtime.respond(unregistered.runtime.requests[1][0], refusal(Code.OK, ""))
    unregistered.runtime.until("both are updated", lambda: unregistered.updater.updates == 2)
    assert unregistered.sent_updates() == [("d", "0,2-3")]
    unregistered.notifications()
    unregistered.publish(MANY)
    unregistered.run_two_periods()
    assert unregistered.sent_updates() == [], "nothing is sent twice"


def test_no_update_is_sent_to_a_runtime_that_may_deadlock_on_it(
    unregistered: PluginHarness,
) -> None:
    unregistered.publish(EMPTY)
    unregistered.runtime.accept()
    unregistered.runtime.configure(NRI_version="v0.12.0")
    unregistered.runtime.synchronize(container("c", "p", "0-3"), pods=(pod("p", "LS"),))
    unregistered.publish(MANY)
    unregistered.run_two_periods()
    assert unregistered.sent_updates() == []
    assert unregistered.update(container("c", "p", "0-3"), pod("p", "LS"), shares=300) == "0,2-3"


def test_a_pass_is_requested_after_all_updates(unregistered: PluginHarness) -> None:
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    unregistered.notifications()
    unregistered.publish(MANY)
    unregistered.runtime.until(
        "a notification", lambda: unregistered.notifications() == [SnapshotRequest()]
    )
    assert unregistered.sent_updates() == [("c", "0,2-3")]


def test_no_owner_starts_while_an_update_may_take_its_cpus(unregistered: PluginHarness) -> None:
    """An update in progress may take effect after the owner was created."""
    unregistered.publish(EMPTY)
    unregistered.runtime.timeout_milliseconds = 1000
    unregistered.runtime.set_up(container("c", "p", "2"), pods=(pod("p"),))
    unregistered.runtime.answers_updates = False
    unregistered.publish(
        msgspec.structs.replace(EMPTY, containers={"c": Wanted(LinuxResources("0-3"))})
    )
    unregistered.runtime.until("the update", lambda: len(unregistered.runtime.requests) == 2)
    unregistered.publish(OWNED)
    status = unregistered.runtime.response(
        unregistered.begin_create(container("o", "own"), OWN)
    ).status
    assert "container ns/p main may hold one of CPUs 1" in status.message
    unregistered.runtime.respond(unregistered.runtime.requests[1][0], refusal(Code.OK, ""))
    unregistered.runtime.until("its answer", lambda: unregistered.updater.updates)
    unregistered.publish(OWNED)
    assert unregistered.create(container("o", "own"), OWN) == "1"


def test_an_update_of_limits_delays_no_owner_of_other_cpus(unregistered: PluginHarness) -> None:
    """The update in progress holds only the CPUs of its container."""
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "2"), pods=(pod("p"),))
    unregistered.runtime.answers_updates = False
    quota = Wanted(LinuxResources("2", quota=CpuQuota(20_000)))
    unregistered.publish(msgspec.structs.replace(OWNED, containers={"c": quota}))
    unregistered.runtime.until("the update", lambda: len(unregistered.runtime.requests) == 2)
    assert unregistered.create(container("o", "own"), OWN) == "1"


def test_a_change_that_the_runtime_refuses_is_not_repeated_and_names_the_other_plugin(
    unregistered: PluginHarness, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'plugins "10-topolet" and "50-pinner" both tried to set CPUSetCPUs'
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    unregistered.runtime.update_error = refusal(Code.UNKNOWN, text).status
    unregistered.publish(MANY)
    unregistered.runtime.until("a failure", lambda: unregistered.updater.failed)
    unregistered.publish(MANY)
    unregistered.run_two_periods()
    assert unregistered.sent_updates() == [("c", "0,2-3")]
    in_progress = [each for each in unregistered.assumed.all(None) if each.answered_at is None]
    assert not in_progress, "no owner waits for it"
    assert unregistered.conflicts.found == {("error", "50-pinner"): 1}
    assert "plugin 50-pinner sets the same fields" in caplog.text
    unregistered.runtime.update_error = None
    unregistered.publish(
        msgspec.structs.replace(MANY, containers={"c": Wanted(LinuxResources("2"))})
    )
    unregistered.runtime.until("another value", lambda: unregistered.updater.updates)
    assert unregistered.sent_updates() == [("c", "2")]


def test_a_process_that_still_runs_on_other_cpus_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Cpus_allowed_list:\t0-3\n")
    harness = PluginHarness(tmp_path, proc=str(tmp_path))
    harness.publish(EMPTY)
    one, other = container("c", "p", "0-3"), container("d", "p", "0-3")
    one.pid, other.pid = 7, 8
    harness.runtime.set_up(one, other, pods=(pod("p"),))
    harness.publish(MANY)
    harness.runtime.until("both", lambda: harness.updater.updates == 2)
    assert harness.updater.unverified == 1
    assert (
        "ns/p main: the runtime was updated to CPUs 0,2-3, but its process runs on 0-3"
        in caplog.text
    )
    harness.close()


def test_a_container_that_ended_is_not_updated(unregistered: PluginHarness) -> None:
    unregistered.publish(EMPTY)
    it = container("c", "p", "0-3")
    unregistered.runtime.set_up(it, pods=(pod("p"),))
    unregistered.end(it, pod("p"))
    assert SnapshotRequest() in unregistered.notifications()
    unregistered.publish(MANY)
    unregistered.run_two_periods()
    assert not unregistered.sent_updates()


def test_a_container_whose_cpus_are_blocked_is_not_updated(unregistered: PluginHarness) -> None:
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    blocked = Wanted(
        LinuxResources("1", quota=NO_QUOTA), exclusive=True, blocked="another pod holds CPU 1"
    )
    unregistered.publish(msgspec.structs.replace(OWNED, containers={"c": blocked}))
    unregistered.run_two_periods()
    assert not unregistered.sent_updates()


def test_no_update_is_sent_while_the_runtime_waits_for_an_answer(
    unregistered: PluginHarness,
) -> None:
    """The runtime would not read it before the answer, and the answer would wait for the update."""
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    stream = unregistered.begin_create(container("o", "own"), OWN)
    unregistered.runtime.until("held", lambda: unregistered.link.held)
    unregistered.publish(
        msgspec.structs.replace(EMPTY, containers={"c": Wanted(LinuxResources("0,2-3"))})
    )
    unregistered.run_two_periods()
    assert not unregistered.sent_updates()
    unregistered.publish(MANY)
    unregistered.runtime.response(stream)
    unregistered.runtime.until("the update", lambda: unregistered.updater.updates)


def test_a_failed_creation_frees_its_cpus(
    harness: PluginHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The runtime reports the end of a container that it never created."""
    harness.others = ("pinner (4711)",)
    it = container("c", "p")
    harness.runtime.response(harness.begin_create(it, pod("p")))
    assert len(harness.assumed.all(None)) == 1
    harness.end(it, pod("p"))
    assert not [each for each in harness.assumed.all(None) if each.answered_at is None]
    assert (
        "ns/p main: was not created after the plugin's answer; other plugins are connected"
        in caplog.text
    )
    assert harness.conflicts.found == {("undone", "pinner (4711)"): 1}


def test_an_unchanged_creation_is_not_a_conflict(harness: PluginHarness) -> None:
    harness.publish(EMPTY)
    it = container("c", "p", "0-3")
    harness.runtime.response(harness.begin_create(it, pod("p")))
    harness.end(it, pod("p"))
    assert not harness.conflicts.found


@pytest.mark.parametrize("when", ["created", "updated"])
def test_cpus_of_another_plugin_are_detected(
    harness: PluginHarness, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = container("c", "p")
    if when == "created":
        harness.runtime.response(harness.begin_create(it, pod("p")))
        changed = container("c", "p", "2")
        event = pb.EventRequest(pod=pod("p"), container=changed)
        harness.runtime.call("PostCreateContainer", event, pb.Empty)
    else:
        harness.create(it, pod("p"))
        harness.update(container("c", "p", "2"), pod("p"))
    assert "ns/p main: CPUs 0,2-3 were changed to 2" in caplog.text
    assert harness.conflicts.found == {("changed", ""): 1}


def test_the_plugins_own_change_is_not_a_conflict_even_before_its_answer(
    unregistered: PluginHarness,
) -> None:
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    unregistered.runtime.answers_updates = False
    unregistered.publish(MANY)
    unregistered.runtime.until("the update", lambda: len(unregistered.runtime.requests) == 2)
    unregistered.update(container("c", "p", "0,2-3"), pod("p"))
    assert not unregistered.conflicts.found


def test_a_request_with_values_before_the_last_change_is_not_a_conflict(
    unregistered: PluginHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """containerd reads the container, then waits until the plugin's change of it has ended."""
    unregistered.publish(EMPTY)
    unregistered.runtime.set_up(container("c", "p", "0-3"), pods=(pod("p"),))
    unregistered.publish(MANY)
    unregistered.runtime.until("the update", lambda: unregistered.updater.updates)
    stale = container("c", "p", "0-3")
    unregistered.update(stale, pod("p"))
    assert not unregistered.conflicts.found
    for _ in range(3):
        unregistered.update(stale, pod("p"))
    assert unregistered.conflicts.found, "another plugin resets it repeatedly"
    assert "ns/p main: CPUs 0,2-3 were changed to 0-3" in caplog.text


def test_a_change_before_the_creations_event_is_not_a_conflict(harness: PluginHarness) -> None:
    it = container("c", "p")
    harness.runtime.response(harness.begin_create(it, pod("p")))
    harness.publish(msgspec.structs.replace(MANY, containers={"c": Wanted(LinuxResources("2"))}))
    created = container("c", "p", "0,2-3")
    event = pb.EventRequest(pod=pod("p"), container=created)
    event.linux_resources.cpu.cpus = "2"
    harness.runtime.call("UpdateContainer", event, pb.UpdateContainerResponse)
    event.container.linux.resources.cpu.cpus = "2"
    harness.runtime.call("PostCreateContainer", event, pb.Empty)
    assert not harness.conflicts.found


@pytest.mark.parametrize("created", [True, False])
def test_a_creation_without_an_event_is_settled_by_the_next_session(
    harness: PluginHarness, created: bool
) -> None:
    it = container("c", "p")
    harness.runtime.response(harness.begin_create(it, pod("p")))
    harness.runtime.drop()
    harness.notifications()
    harness.runtime.set_up(*([it] if created else []), pods=(pod("p"),))
    assert all(each.answered_at is not None for each in harness.assumed.all(None))
    assert any(isinstance(each, Created) for each in harness.notifications()) == created


def test_a_plugin_that_ends_refuses_a_held_owner(harness: PluginHarness) -> None:
    """If the plugin only disconnected, the runtime would create it with the requested values."""
    harness.publish(EMPTY)
    stream = harness.begin_create(container("c", "own"), OWN)
    harness.runtime.until("held", lambda: harness.link.held)
    harness.link.close()
    status = harness.runtime.response(stream).status
    assert status.message == "CreateContainer: pod ns/own: the plugin ends"


def test_the_allocated_card_replaces_the_plugins(harness: PluginHarness) -> None:
    harness.publish(WITH_DEVICES)
    event = pb.EventRequest(pod=pod("own"), container=container("c", "own"))
    event.container.env.append(b"NVIDIA_VISIBLE_DEVICES=GPU-other")
    event.container.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
    adjust = harness.runtime.call("CreateContainer", event, pb.CreateContainerResponse).adjust
    variables = [(each.key, each.value) for each in adjust.env]
    assert variables == [("NVIDIA_VISIBLE_DEVICES", "GPU-own")]
    assert [each.path for each in adjust.linux.devices] == ["-/dev/nvidia0", "/dev/nvidia1"]
    assert [each.minor.value for each in adjust.linux.resources.devices] == [0]
    event.container.CDI_devices.add(name="nvidia.com/gpu=GPU-other")
    status = harness.runtime.response(harness.runtime.begin("CreateContainer", event)).status
    assert status.code == Code.UNAVAILABLE
    assert "this frontend can't change removed_cdi_devices" in status.message


class AdmissionOnly(AdmissionHarness):
    """The hooks without a runtime; they hold a call for 9 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        conflicts = Conflicts("10-topolet", lambda: ())
        self.hooks = NriHooks(
            self.admission, Deadlines(9.0), self.snapshots, Containers(), conflicts
        )

    def call(
        self, request: CreateContainer | UpdateContainer, budget_seconds: float = 60.0
    ) -> PluginCall:
        return PluginCall(
            NriContainer("c", "p", "ns/p main", NO_RESOURCES), request, budget_seconds
        )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> AdmissionOnly:
    """The agent has published an owner."""
    it = AdmissionOnly(monkeypatch)
    it.publish(OWNED)
    return it


@pytest.mark.parametrize("budget_seconds", [60.0, 3.0])
def test_a_call_waits_until_the_deadline_of_its_hook_or_of_the_runtime(
    alone: AdmissionOnly, budget_seconds: float
) -> None:
    def waits(decide: Callable[[PluginCall], Verdict], call: PluginCall) -> None:
        for step in (0.0, min(9.0, budget_seconds) - 0.1):
            alone.wait(step)
            assert decide(call) == Wait()
        alone.wait(0.2)
        assert decide(call) != Wait()

    waits(alone.hooks.create, alone.call(requested("new", "LSE", "2"), budget_seconds))
    unknown = UpdateContainer("unknown", LinuxResources("0-1"))
    waits(alone.hooks.update, alone.call(unknown, budget_seconds))


def test_a_held_creation_of_an_ended_session_is_withdrawn(alone: AdmissionOnly) -> None:
    alone.publish(msgspec.structs.replace(EMPTY, cpu_policy="static"))
    call = alone.call(requested("g", shares=1024, kube=""))
    assert alone.hooks.create(call) == Wait()
    alone.notifications()
    alone.hooks.abandoned(call)
    assert alone.notifications() == [ContainerFailed("g", "main")]


def test_an_ended_container_has_no_cpus_and_is_reported(alone: AdmissionOnly) -> None:
    call = alone.call(requested("p", "LS"))
    alone.hooks.create(call)
    alone.hooks.created(call.container)
    alone.notifications()
    assert alone.assumed.of("c") is not None
    alone.hooks.ended(call.container)
    assert alone.assumed.of("c") is None
    assert alone.notifications() == [SnapshotRequest(waits=False)]


@pytest.mark.parametrize("shares", [None, 300])
def test_a_resize_is_reported_unless_it_may_be_the_agents(
    alone: AdmissionOnly, shares: int | None
) -> None:
    wanted = Wanted(LinuxResources("0,2-3", shares=shares))
    alone.publish(msgspec.structs.replace(OWNED, containers={"c": wanted}, cpu_policy="static"))
    call = alone.call(UpdateContainer("c", LinuxResources(shares=300)))
    alone.hooks.update(call)
    alone.hooks.updated(call.container)
    expected = [] if shares else [Resized("c", LinuxResources(shares=300))]
    assert alone.notifications() == expected


def test_sandboxes_and_containers_that_the_plugin_missed_are_reported(alone: AdmissionOnly) -> None:
    alone.hooks.pod_announced(requested("p").pod)
    alone.hooks.pod_removed("p")
    removed = SnapshotRequest(waits=False, sandbox_uid="p")
    assert alone.notifications() == [requested("p").pod, removed]
    assert alone.hooks.synchronize([]) == {}
    assert alone.notifications() == [SnapshotRequest()]
    assert alone.hooks.create(alone.call(requested("own", "LSE", "1"))) == Wait()


@pytest.mark.parametrize("read", [True, False])
def test_a_failed_hook_is_answered_by_the_policy_of_its_pod(
    alone: AdmissionOnly, read: bool
) -> None:
    """A creation that continues may take unknown CPUs until its result is known."""
    alone.publish(EMPTY)
    owner = alone.call(requested("own", "LSE", "1"))
    alone.hooks.create(owner)
    answer = alone.hooks.unhooked("CreateContainer", owner, "internal_error", "broken")
    assert answer == Refuse(Code.INTERNAL, "CreateContainer: pod ns/own: broken")
    call = alone.call(requested("p", "LS")) if read else None
    assert alone.hooks.unhooked("CreateContainer", call, "internal_error", "broken") is None
    assert [each.answered_at is None for each in alone.assumed.all(None)] == [read]
    if call is not None:
        alone.hooks.created(call.container)
        assert alone.assumed.of("c") is not None
