"""A plugin's session with a runtime, over a real socket."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.hooks.requests import (
    UNCHANGED,
    Changes,
    ContainerName,
    CreateContainer,
    UpdateContainer,
)
from agent.host.loop import Loop
from agent.model.devices.visibility import Mount
from agent.model.notifications import RequestedResources
from agent.model.pod.qos import QOS_LABEL
from agent.model.verdict import Code, Refuse, Wait
from agent.nri.link import PluginLink
from agent.nri.messages import NriContainer
from agent.proto import nri_pb2 as pb
from agent.proto import ttrpc_pb2 as ttrpc
from agent.rpc.grpc import RpcError
from tests.nri.fake import FakeRuntime, refusal
from tests.nri.recorder import Recorder

POD = pb.PodSandbox(id="s", uid="u", namespace="ns", name="p", labels={QOS_LABEL: "LSR", "x": "y"})
POD.linux.cgroup_parent = "/kubepods/podu"
ALL = Changes(
    "1-2",
    "0",
    512,
    20_000,
    1 << 20,
    (Mount("/ours", "/there"), Mount("/ours", "/taken")),
    (("A", "1"),),
    ("vendor.example/gpu=0",),
)


def container(cpus: str = "", **fields: object) -> pb.Container:
    it = pb.Container(id="c", pod_sandbox_id="s", name="main", **fields)  # type: ignore[arg-type]
    it.linux.resources.cpu.cpus = cpus
    it.linux.resources.cpu.quota.value = 5_000
    it.linux.resources.cpu.period.value = 10_000
    it.mounts.add(destination="/taken", source="/theirs")
    return it


class World:
    def __init__(self, folder: Path, **options: float) -> None:
        self.loop = Loop()
        self.runtime = FakeRuntime(folder, self.loop)
        self.plugin = Recorder()
        self.link = PluginLink(
            self.loop, self.runtime.path, "topolet", "42", self.plugin, **options
        )
        self.link.start()
        self.until = self.runtime.until

    def close(self) -> None:
        self.link.close()
        self.runtime.close()
        self.loop.close()

    def create(self, name: str = "CreateContainer") -> pb.CreateContainerResponse:
        request = pb.EventRequest(pod=POD, container=container())
        return self.runtime.call(name, request, pb.CreateContainerResponse)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    it = World(tmp_path)
    yield it
    it.close()


@pytest.fixture
def up(world: World) -> World:
    """Registered and synchronised."""
    world.runtime.set_up()
    return world


def test_the_plugin_registers_and_subscribes_to_the_events_it_uses(world: World) -> None:
    registration = world.runtime.accept()
    assert (registration.plugin_name, registration.plugin_idx) == ("topolet", "42")
    events = world.runtime.configure(request_timeout=2_000).events
    used = {number for number in range(1, 32) if events >> (number - 1) & 1}
    assert used == {1, 3, 4, 5, 8, 9, 10, 11}
    assert not world.link.ready
    world.runtime.synchronize()
    assert world.link.ready


@pytest.mark.parametrize(
    ("version", "takes"),
    [
        ("v0.12.1", True),
        ("0.13.0", True),
        ("v1.0.0-rc.1", True),
        ("v0.12.0", False),
        ("v0.12.0+dirty", False),
        ("v0.9.9", False),
        ("", False),
        ("unknown", False),
        ("v" + "9" * 5_000 + ".1.1", False),
        ("v1.0." + "9" * 5_000, True),
    ],
)
def test_a_runtime_that_may_deadlock_on_an_update_gets_none(
    world: World, version: str, takes: bool
) -> None:
    world.runtime.accept()
    world.runtime.configure(NRI_version=version)
    assert not world.link.accepts_updates
    world.runtime.synchronize()
    assert world.link.accepts_updates is takes


def test_stored_containers_do_not_grow_with_environments(world: World) -> None:
    """The runtime sends the whole node before it waits for the first answer."""
    large = container("0-3", pid=7)
    large.env.extend([b"LARGE=" + b"x" * 100_000] * 30)
    world.runtime.accept()
    world.runtime.configure()
    for _ in range(15):  # beyond the limit of what is stored
        world.runtime.synchronize(large, pods=(POD,), more=True)
    world.runtime.synchronize()
    ((_, listed),) = world.plugin.told
    assert [each.requested.cpuset for each in listed] == ["0-3"] * 15


def test_the_plugin_synchronises_in_chunks(world: World) -> None:
    world.plugin.changes = {"c": Changes(cpuset="1")}
    world.runtime.accept()
    world.runtime.configure()
    first = world.runtime.synchronize(pods=(POD,), more=True)
    assert first == pb.SynchronizeResponse(more=True)
    assert not world.plugin.told
    last = world.runtime.synchronize(container("0-3", pid=7))
    (update,) = last.update
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c", "1")
    assert not last.more
    seen = NriContainer(
        "c", "u", "ns/p main", RequestedResources("0-3", quota_microseconds=50_000), 7
    )
    assert world.plugin.told == [("synchronize", [seen])]


def test_a_session_of_many_large_chunks_keeps_none_of_them(world: World) -> None:
    """Messages beyond 4096 bytes come in many frames; a second synchronisation starts again."""
    pod = pb.PodSandbox(id="s", name="x" * 100_000)
    world.runtime.accept()
    for _ in range(2):
        world.runtime.synchronize(pods=(pod,), more=True)
        world.runtime.synchronize(container())
    assert [len(listed) for _, listed in world.plugin.told] == [1, 1]  # type: ignore[arg-type]


def test_a_creation_is_passed_to_the_hook_and_adjusted(up: World) -> None:
    up.plugin.answer = ALL
    adjust = up.create().adjust
    (call,) = up.plugin.calls
    assert isinstance(call.request, CreateContainer)
    assert call.request.pod.labels == {QOS_LABEL: "LSR"}
    assert call.request.pod.cgroup_parent == "/kubepods/podu"
    assert (call.request.container_name, call.request.requested) == (
        "main",
        RequestedResources(quota_microseconds=50_000),
    )
    resources = adjust.linux.resources
    assert (resources.cpu.cpus, resources.cpu.mems, resources.cpu.shares.value) == ("1-2", "0", 512)
    assert (resources.cpu.quota.value, resources.cpu.period.value) == (20_000, 100_000)
    assert resources.memory.limit.value == 1 << 20
    assert [(each.key, each.value) for each in adjust.env] == [("A", "1")]
    assert [each.name for each in adjust.CDI_devices] == ["vendor.example/gpu=0"]
    (mount,) = adjust.mounts
    assert (mount.destination, mount.source, list(mount.options)) == (
        "/there",
        "/ours",
        ["rbind", "ro"],
    )
    assert up.link.stats.adjusted == 1


def test_a_lifted_quota_has_no_period_and_unchanged_fields_are_not_sent(up: World) -> None:
    up.plugin.answer = Changes(cpuset="1", quota_microseconds=-1)
    cpu = up.create().adjust.linux.resources.cpu
    assert cpu == pb.LinuxCPU(cpus="1", quota=pb.OptionalInt64(value=-1))
    up.plugin.answer = UNCHANGED
    assert up.create() == pb.CreateContainerResponse()


def test_an_update_is_merged_into_the_request(up: World) -> None:
    up.plugin.answer = Changes(cpuset="1")
    request = pb.EventRequest(pod=POD, container=container("0-3"))
    request.linux_resources.cpu.shares.value = 300
    response = up.runtime.call("UpdateContainer", request, pb.UpdateContainerResponse)
    (call,) = up.plugin.calls
    name = ContainerName(POD.namespace, POD.name, POD.uid, request.container.name)
    assert call.request == UpdateContainer("c", RequestedResources(shares=300), name)
    (update,) = response.update
    assert update.container_id == "c"
    assert update.linux.resources == pb.LinuxResources(cpu=pb.LinuxCPU(cpus="1"))
    up.plugin.answer = UNCHANGED
    again = up.runtime.call("UpdateContainer", request, pb.UpdateContainerResponse)
    assert again == pb.UpdateContainerResponse()


@pytest.mark.parametrize("one_by_one", [True, False], ids=["0.12", "by StateChange"])
def test_the_plugin_gets_the_runtimes_events(up: World, one_by_one: bool) -> None:
    methods = {
        "RunPodSandbox": pb.RUN_POD_SANDBOX,
        "RemovePodSandbox": pb.REMOVE_POD_SANDBOX,
        "PostCreateContainer": pb.POST_CREATE_CONTAINER,
        "PostUpdateContainer": pb.POST_UPDATE_CONTAINER,
        "StopContainer": pb.STOP_CONTAINER,
        "RemoveContainer": pb.REMOVE_CONTAINER,
    }
    up.plugin.told.clear()
    for method, event in methods.items():
        if one_by_one:
            request: pb.EventRequest | pb.StateChangeEvent = pb.EventRequest()
        else:
            request, method = pb.StateChangeEvent(event=event), "StateChange"
        request.pod.CopyFrom(POD)
        request.container.CopyFrom(container())
        up.runtime.call(method, request, pb.Empty)
    assert [what for what, _ in up.plugin.told] == [
        *("pod", "pod removed", "created", "updated", "ended", "ended"),
    ]
    unused = pb.StateChangeEvent(event=pb.START_CONTAINER, pod=POD)
    up.runtime.call("StateChange", unused, pb.Empty)


@pytest.mark.parametrize("event", [pb.CREATE_CONTAINER, pb.UPDATE_CONTAINER])
def test_a_state_change_is_never_a_request(up: World, event: pb.Event) -> None:
    """Its reply can't have changes, and a held one would have no hook in the failure policy."""
    up.plugin.answer = Wait()
    change = pb.StateChangeEvent(event=event, pod=POD, container=container())
    assert up.runtime.call("StateChange", change, pb.Empty) == pb.Empty()
    assert not up.plugin.calls


def test_a_held_creation_is_retried_until_it_has_an_answer(up: World) -> None:
    up.plugin.answer = Wait()
    request = pb.EventRequest(pod=POD, container=container())
    stream = up.runtime.begin("CreateContainer", request)
    up.until("called again", lambda: len(up.plugin.calls) > 2)
    assert up.link.stats.held_now == 1
    up.runtime.call("StopContainer", request, pb.Empty)
    assert stream not in up.runtime.replies, "other calls pass it"
    up.plugin.answer = Changes(cpuset="1")
    response = up.runtime.response(stream)
    reply = pb.CreateContainerResponse.FromString(response.payload)
    assert reply.adjust.linux.resources.cpu.cpus == "1"
    assert up.link.stats.held_now == 0
    assert len(set(up.plugin.calls)) == 1


@pytest.mark.parametrize(
    ("timeout_milliseconds", "budget_seconds"),
    [(None, 1.0), (0, 1.0), (300, 0.15), (60_000, 30), (-5, 0), (1 << 62, 300)],
)
def test_a_call_may_be_held_for_half_of_the_runtimes_timeout(
    world: World, timeout_milliseconds: int | None, budget_seconds: float
) -> None:
    world.runtime.accept()
    if timeout_milliseconds is not None:
        world.runtime.configure(request_timeout=timeout_milliseconds)
    world.create()
    assert world.plugin.calls[0].budget_seconds == budget_seconds


def test_a_refusal_is_the_runtimes_error(up: World) -> None:
    up.plugin.answer = Refuse(Code.UNAVAILABLE, "no CPUs")
    stream = up.runtime.begin("CreateContainer", pb.EventRequest(container=container()))
    status = up.runtime.response(stream).status
    assert (status.code, status.message) == (14, "no CPUs")
    assert up.link.stats.refused == 1


def test_a_failing_handler_does_not_fail_the_container(
    up: World, caplog: pytest.LogCaptureFixture
) -> None:
    up.plugin.error = ValueError("ours")
    request = pb.EventRequest(pod=POD, container=container())
    for method in ("CreateContainer", "UpdateContainer", "RunPodSandbox", "StopContainer"):
        assert up.runtime.call(method, request, pb.Empty) == pb.Empty()
    assert up.runtime.synchronize() == pb.SynchronizeResponse()
    assert set(up.link.stats.errors.values()) == {1}
    assert len(up.link.stats.errors) == 5
    assert "the hook of CreateContainer failed" in caplog.text
    failure = ("CreateContainer", up.plugin.calls[0], "internal_error", "ValueError: ours")
    assert up.plugin.unhooked_calls[0] == failure


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer"])
def test_an_invalid_request_passes_or_fails_by_policy(up: World, method: str) -> None:
    bad = ttrpc.Request(service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=b"\xff")
    up.runtime.send(1, 1_001, 1, bad.SerializeToString())
    assert up.runtime.response(1_001) == ttrpc.Response()
    up.plugin.refusal = Refuse(Code.INTERNAL, "by policy")
    up.runtime.send(1, 1_003, 1, bad.SerializeToString())
    assert up.runtime.response(1_003).status.message == "by policy"
    assert [each[:3] for each in up.plugin.unhooked_calls] == [(method, None, "malformed")] * 2


@pytest.mark.parametrize(
    ("service", "method", "payload", "code"),
    [
        ("nri.pkg.api.v1alpha1.Plugin", "ValidateContainerAdjustment", b"", 12),
        ("grpc.health.v1.Health", "Check", b"", 12),
        ("nri.pkg.api.v1alpha1.Plugin", "StopContainer", b"\xff", 3),
        ("nri.pkg.api.v1alpha1.Plugin", "Synchronize", b"\xff", 3),
    ],
)
def test_unknown_requests_are_answered_and_the_session_continues(
    up: World, service: str, method: str, payload: bytes, code: int
) -> None:
    request = ttrpc.Request(service=service, method=method, payload=payload)
    up.runtime.send(1, 1_001, 1, request.SerializeToString())
    assert up.runtime.response(1_001).status.code == code
    up.runtime.send(1, 1_003, 1, b"\xff")
    assert up.runtime.response(1_003).status.code == 3
    assert up.runtime.call("Shutdown", pb.Empty(), pb.Empty) == pb.Empty()


def test_answers_of_any_size_are_received(up: World) -> None:
    """The runtime loses frames that are larger than its read buffer."""
    for size in (4_000, 4_086, 4_087, 6_000, 100_000, 4_194_000):
        up.plugin.answer = Changes(environment=(("A", "x" * size),))
        assert len(up.create().adjust.env[0].value) == size


def test_an_answer_beyond_the_protocols_limit_is_an_error_within_the_session(up: World) -> None:
    up.plugin.answer = Changes(environment=(("A", "x" * (4 << 20)),))
    stream = up.runtime.begin("CreateContainer", pb.EventRequest(container=container()))
    assert up.runtime.response(stream).status.code == Code.RESOURCE_EXHAUSTED
    up.plugin.answer = UNCHANGED
    up.create()


class Results(list[RpcError | None]):
    """Results of updates."""

    def codes(self) -> list[int]:
        return [0 if each is None else each.code for each in self]


def test_the_plugins_update_does_not_wait_for_a_call_of_the_runtime(up: World) -> None:
    """Both directions at once: the runtime holds its lock until the plugin has answered."""
    up.runtime.answers_updates = False
    results = Results()
    up.link.update("c", Changes(cpuset="1"), results.append)
    up.create()
    assert not results
    stream, request = up.runtime.requests[-1]
    update_request = pb.UpdateContainersRequest.FromString(request.payload)
    (update,) = update_request.update
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c", "1")
    assert request.timeout_nano == 10_000_000_000
    up.runtime.respond(stream, ttrpc.Response())
    up.until("the answer", lambda: results)
    assert results == [None]
    up.runtime.respond(stream, ttrpc.Response())
    up.create()
    assert results == [None]


def failed() -> ttrpc.Response:
    failed = pb.UpdateContainersResponse(failed=[pb.ContainerUpdate(container_id="c")])
    return ttrpc.Response(payload=failed.SerializeToString())


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (refusal(Code.UNKNOWN, "NRI update of some containers failed"), Code.UNKNOWN),
        (failed(), Code.UNKNOWN),
        (ttrpc.Response(payload=b"\xff"), Code.INTERNAL),
    ],
)
def test_an_update_that_the_runtime_refuses(
    up: World, response: ttrpc.Response, code: Code
) -> None:
    up.runtime.answers_updates = False
    results = Results()
    up.link.update("c", Changes(cpuset="9"), results.append)
    up.until("the call", lambda: len(up.runtime.requests) > 1)
    up.runtime.respond(up.runtime.requests[-1][0], response)
    up.until("the answer", lambda: results)
    assert results.codes() == [code]
    up.create()


def test_without_a_session_an_update_fails_at_once(world: World) -> None:
    world.link.close()
    link = PluginLink(world.loop, "/nowhere/nri.sock", "n", "01", world.plugin)
    results = Results()
    link.update("c", Changes(cpuset="1"), results.append)
    assert results.codes() == [Code.UNAVAILABLE]


def test_an_unanswered_update_ends_the_session(tmp_path: Path) -> None:
    """Its server may have ended alone, while its events continue."""
    world = World(tmp_path, update_seconds=0.1)
    world.runtime.set_up()
    world.runtime.answers_updates = False
    results = Results()
    world.link.update("c", Changes(cpuset="1"), results.append)
    world.until("the session ends", lambda: world.runtime.ended)
    assert results.codes() == [Code.DEADLINE_EXCEEDED]
    world.runtime.set_up()
    assert world.link.ready
    assert (world.link.sessions, world.link.failed_sessions) == (2, 1)
    world.close()


BROKEN = {
    "a frame beyond the limit": struct.pack(">II", 1, 1 << 30),
    "a message beyond the limit": struct.pack(">IIIIBB", 1, 10, 1 << 30, 1, 1, 0),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_invalid_bytes_end_the_session(
    up: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    results = Results()
    up.runtime.answers_updates = False
    up.link.update("c", Changes(cpuset="1"), results.append)
    up.runtime.send_raw(data)
    up.until("the session ends", lambda: up.runtime.ended)
    assert "malformed: a" in caplog.text
    assert results.codes() == [Code.UNAVAILABLE]
    up.runtime.set_up()
    up.create()


def test_frames_of_other_connections_and_late_replies_are_ignored(up: World) -> None:
    up.runtime.send_raw(struct.pack(">II", 9, 3) + b"abc" + struct.pack(">II", 1, 0))
    up.runtime.respond(77, ttrpc.Response())
    up.create()


def test_the_plugin_registers_again_with_a_restarted_runtime(up: World) -> None:
    up.plugin.answer = Wait()
    up.runtime.begin("CreateContainer", pb.EventRequest(container=container()))
    up.until("held", lambda: up.plugin.calls)
    up.runtime.drop()
    up.runtime.set_up()
    assert up.link.ready
    assert ("abandoned", "c") in up.plugin.told
    assert [what for what, _ in up.plugin.told].count("synchronize") == 2
    assert up.link.stats.held_now == 0
    up.plugin.answer = UNCHANGED
    up.create()


def test_a_refused_registration_is_logged_and_retried(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stream, _ = world.runtime.accept_silently()
    world.runtime.respond(stream, refusal(Code.UNKNOWN, "invalid plugin index"))
    world.until("the session ends", lambda: world.runtime.ended)
    assert "plugin 42-topolet is not registered: UNKNOWN: invalid plugin index" in caplog.text
    world.runtime.set_up()
    assert world.link.ready


def test_a_socket_that_appears_later_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    (tmp_path / "below").mkdir()
    plugin = Recorder()
    link = PluginLink(loop, str(tmp_path / "below" / "nri.sock"), "n", "01", plugin)
    with caplog.at_level(logging.WARNING):
        link.start()
        for _ in range(3):
            loop.step(0.3)
    assert len(caplog.records) == 1, "one failure is logged once"
    assert "No such file" in caplog.text
    runtime = FakeRuntime(tmp_path / "below", loop)
    runtime.set_up()
    assert link.ready
    link.close()
    runtime.close()
    loop.close()


def test_a_launched_plugin_ends_with_its_socket(world: World) -> None:
    """The runtime does not kill it, and starts another."""
    world.link.close()
    ours, theirs = socket.socketpair()
    over: list[bool] = []
    link = PluginLink(
        world.loop,
        world.runtime.path,
        "topolet",
        "10",
        world.plugin,
        connected=ours,
        on_end=lambda: over.append(True),
    )
    link.start()
    world.runtime.inherit(theirs)
    world.until("registration", lambda: world.runtime.requests)
    world.runtime.respond(world.runtime.requests[0][0], ttrpc.Response())
    world.runtime.synchronize()
    assert link.ready
    assert not over
    world.runtime.drop()
    world.until("its end", lambda: over)
    assert over == [True]
    link.close()


def test_no_session_begins_after_the_end(up: World) -> None:
    up.link.close()
    up.until("the session ends", lambda: up.runtime.ended)
    ticks: list[int] = []
    up.loop.after(0.5, lambda: ticks.append(1))
    up.until("half a second", lambda: ticks)
    assert up.link.sessions == 1


def test_calls_never_block_on_a_runtime_that_does_not_read(up: World) -> None:
    """Data that the socket does not accept waits for it."""
    results: list[RpcError | None] = []
    note: Callable[[RpcError | None], None] = results.append
    big = Changes(cpuset="1", mems="0" * 3_000_000)
    for _ in range(3):
        up.link.update("c", big, note)
    up.until("all answers", lambda: len(results) == 3)
    assert results == [None] * 3


def test_a_hostile_runtime_that_reports_containers_without_end_is_refused(world: World) -> None:
    world.runtime.accept()
    world.runtime.configure()
    many = [container("0-3", pid=7) for _ in range(300)]
    for each in many:
        each.id = "x" * 10_000
    refused = []
    for _ in range(30):
        request = pb.SynchronizeRequest(pods=(POD,), containers=many, more=True)
        stream = world.runtime.begin("Synchronize", request)
        refused.append(world.runtime.response(stream).status.code == Code.RESOURCE_EXHAUSTED)
    assert refused.index(True) * 300 * 10_000 <= 32 << 20
    assert not world.link.ready


def test_a_hostile_runtime_that_makes_calls_without_end_has_few_held(up: World) -> None:
    """Those that are not held are decided by the failure policy."""
    up.plugin.answer = Wait()
    up.plugin.refusal = Refuse(Code.UNAVAILABLE, "no room")
    large = container()
    large.env.append(b"LARGE=" + b"x" * 3_000_000)
    request = pb.EventRequest(pod=POD, container=large)
    streams = [up.runtime.begin("CreateContainer", request) for _ in range(20)]
    up.until("a refusal", lambda: up.plugin.unhooked_calls)
    refused = next(stream for stream in streams if stream in up.runtime.replies)
    assert up.runtime.response(refused).status.message == "no room"
    assert up.link.stats.held_now * 3_000_000 <= 40 << 20
    up.plugin.answer = UNCHANGED
    up.until("all answers", lambda: len(up.runtime.replies) >= len(streams))
    assert up.link.stats.held_now == 0
