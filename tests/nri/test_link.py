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
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
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
    LinuxResources("1-2", mems="0", shares=512, quota=CpuQuota(20_000), memory_limit_bytes=1 << 20),
    (Mount("/host/added", "/free"), Mount("/host/added", "/in-use")),
    (("A", "1"),),
    ("vendor.example/gpu=0",),
)


def container(cpus: str = "", **fields: object) -> pb.Container:
    it = pb.Container(id="c", pod_sandbox_id="s", name="main", **fields)  # type: ignore[arg-type]
    it.linux.resources.cpu.cpus = cpus
    it.linux.resources.cpu.quota.value = 5_000
    it.linux.resources.cpu.period.value = 10_000
    it.mounts.add(destination="/in-use", source="/host/present")
    return it


class LinkHarness:
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
def harness(tmp_path: Path) -> Iterator[LinkHarness]:
    it = LinkHarness(tmp_path)
    yield it
    it.close()


@pytest.fixture
def registered(harness: LinkHarness) -> LinkHarness:
    """A link that is registered and synchronised."""
    harness.runtime.set_up()
    return harness


def test_the_plugin_registers_and_subscribes_to_the_events_it_uses(harness: LinkHarness) -> None:
    registration = harness.runtime.accept()
    assert (registration.plugin_name, registration.plugin_idx) == ("topolet", "42")
    events = harness.runtime.configure(request_timeout=2_000).events
    used = {number for number in range(1, 32) if events >> (number - 1) & 1}
    assert used == {1, 3, 4, 5, 8, 9, 10, 11}
    assert not harness.link.ready
    harness.runtime.synchronize()
    assert harness.link.ready


@pytest.mark.parametrize(
    ("version", "accepts_updates"),
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
def test_no_update_is_sent_to_a_runtime_that_may_deadlock_on_it(
    harness: LinkHarness, version: str, accepts_updates: bool
) -> None:
    harness.runtime.accept()
    harness.runtime.configure(NRI_version=version)
    assert not harness.link.accepts_updates
    harness.runtime.synchronize()
    assert harness.link.accepts_updates is accepts_updates


def test_the_environment_of_containers_is_not_stored(harness: LinkHarness) -> None:
    """The runtime sends the whole node before it waits for the first answer."""
    large = container("0-3", pid=7)
    large.env.extend([b"LARGE=" + b"x" * 100_000] * 30)
    harness.runtime.accept()
    harness.runtime.configure()
    for _ in range(15):  # more than the limit of what is stored
        harness.runtime.synchronize(large, pods=(POD,), more=True)
    harness.runtime.synchronize()
    ((_, listed),) = harness.plugin.events
    assert [each.requested.cpuset for each in listed] == ["0-3"] * 15


def test_the_plugin_synchronises_in_chunks(harness: LinkHarness) -> None:
    harness.plugin.changes = {"c": LinuxResources("1")}
    harness.runtime.accept()
    harness.runtime.configure()
    first = harness.runtime.synchronize(pods=(POD,), more=True)
    assert first == pb.SynchronizeResponse(more=True)
    assert not harness.plugin.events
    last = harness.runtime.synchronize(container("0-3", pid=7))
    (update,) = last.update
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c", "1")
    assert not last.more
    received = NriContainer(
        "c", "u", "ns/p main", LinuxResources("0-3", quota=CpuQuota(5_000, 10_000)), 7
    )
    assert harness.plugin.events == [("synchronize", [received])]


def test_a_session_of_many_large_chunks_keeps_none_of_them(harness: LinkHarness) -> None:
    """Messages of more than 4096 bytes arrive in many frames."""
    pod = pb.PodSandbox(id="s", name="x" * 100_000)
    harness.runtime.accept()
    for _ in range(2):
        harness.runtime.synchronize(pods=(pod,), more=True)
        harness.runtime.synchronize(container())
    assert [len(listed) for _, listed in harness.plugin.events] == [1, 1]  # type: ignore[arg-type]


def test_a_creation_is_passed_to_the_hook_and_adjusted(registered: LinkHarness) -> None:
    registered.plugin.answer = ALL
    adjust = registered.create().adjust
    (call,) = registered.plugin.calls
    assert isinstance(call.request, CreateContainer)
    assert call.request.pod.labels == {QOS_LABEL: "LSR"}
    assert call.request.pod.cgroup_parent == "/kubepods/podu"
    assert (call.request.container_name, call.request.requested) == (
        "main",
        LinuxResources(quota=CpuQuota(5_000, 10_000)),
    )
    resources = adjust.linux.resources
    assert (resources.cpu.cpus, resources.cpu.mems, resources.cpu.shares.value) == ("1-2", "0", 512)
    assert (resources.cpu.quota.value, resources.cpu.period.value) == (20_000, 100_000)
    assert resources.memory.limit.value == 1 << 20
    assert [(each.key, each.value) for each in adjust.env] == [("A", "1")]
    assert [each.name for each in adjust.CDI_devices] == ["vendor.example/gpu=0"]
    (mount,) = adjust.mounts
    assert (mount.destination, mount.source, list(mount.options)) == (
        "/free",
        "/host/added",
        ["rbind", "ro"],
    )
    assert registered.link.stats.adjusted == 1


def test_a_lifted_quota_has_no_period_and_unchanged_fields_are_not_sent(
    registered: LinkHarness,
) -> None:
    registered.plugin.answer = Changes(LinuxResources("1", quota=NO_QUOTA))
    cpu = registered.create().adjust.linux.resources.cpu
    assert cpu == pb.LinuxCPU(cpus="1", quota=pb.OptionalInt64(value=-1))
    registered.plugin.answer = UNCHANGED
    assert registered.create() == pb.CreateContainerResponse()


def test_an_update_is_merged_into_the_request(registered: LinkHarness) -> None:
    registered.plugin.answer = Changes(LinuxResources("1"))
    request = pb.EventRequest(pod=POD, container=container("0-3"))
    request.linux_resources.cpu.shares.value = 300
    response = registered.runtime.call("UpdateContainer", request, pb.UpdateContainerResponse)
    (call,) = registered.plugin.calls
    name = ContainerName(POD.namespace, POD.name, POD.uid, request.container.name)
    assert call.request == UpdateContainer("c", LinuxResources(shares=300), name)
    (update,) = response.update
    assert update.container_id == "c"
    assert update.linux.resources == pb.LinuxResources(cpu=pb.LinuxCPU(cpus="1"))
    registered.plugin.answer = UNCHANGED
    again = registered.runtime.call("UpdateContainer", request, pb.UpdateContainerResponse)
    assert again == pb.UpdateContainerResponse()


@pytest.mark.parametrize("separate", [True, False], ids=["0.12", "by StateChange"])
def test_the_plugin_gets_the_runtimes_events(registered: LinkHarness, separate: bool) -> None:
    methods = {
        "RunPodSandbox": pb.RUN_POD_SANDBOX,
        "RemovePodSandbox": pb.REMOVE_POD_SANDBOX,
        "PostCreateContainer": pb.POST_CREATE_CONTAINER,
        "PostUpdateContainer": pb.POST_UPDATE_CONTAINER,
        "StopContainer": pb.STOP_CONTAINER,
        "RemoveContainer": pb.REMOVE_CONTAINER,
    }
    registered.plugin.events.clear()
    for method, event in methods.items():
        if separate:
            request: pb.EventRequest | pb.StateChangeEvent = pb.EventRequest()
        else:
            request, method = pb.StateChangeEvent(event=event), "StateChange"
        request.pod.CopyFrom(POD)
        request.container.CopyFrom(container())
        registered.runtime.call(method, request, pb.Empty)
    assert [name for name, _ in registered.plugin.events] == [
        *("pod", "pod removed", "created", "updated", "ended", "ended"),
    ]
    unused = pb.StateChangeEvent(event=pb.START_CONTAINER, pod=POD)
    registered.runtime.call("StateChange", unused, pb.Empty)


@pytest.mark.parametrize("event", [pb.CREATE_CONTAINER, pb.UPDATE_CONTAINER])
def test_a_state_change_is_never_a_request(registered: LinkHarness, event: pb.Event) -> None:
    """Its reply can't have changes, and a held one would have no hook in the failure policy."""
    registered.plugin.answer = Wait()
    change = pb.StateChangeEvent(event=event, pod=POD, container=container())
    assert registered.runtime.call("StateChange", change, pb.Empty) == pb.Empty()
    assert not registered.plugin.calls


def test_a_held_creation_is_retried_until_it_has_an_answer(registered: LinkHarness) -> None:
    registered.plugin.answer = Wait()
    request = pb.EventRequest(pod=POD, container=container())
    stream = registered.runtime.begin("CreateContainer", request)
    registered.until("called again", lambda: len(registered.plugin.calls) > 2)
    assert len(registered.link.held) == 1
    registered.runtime.call("StopContainer", request, pb.Empty)
    assert stream not in registered.runtime.replies, "other calls do not wait for it"
    registered.plugin.answer = Changes(LinuxResources("1"))
    response = registered.runtime.response(stream)
    reply = pb.CreateContainerResponse.FromString(response.payload)
    assert reply.adjust.linux.resources.cpu.cpus == "1"
    assert not registered.link.held
    assert len(set(registered.plugin.calls)) == 1


@pytest.mark.parametrize(
    ("timeout_milliseconds", "budget_seconds"),
    [(None, 1.0), (0, 1.0), (300, 0.15), (60_000, 30), (-5, 0), (1 << 62, 300)],
)
def test_a_call_may_be_held_for_half_of_the_runtimes_timeout(
    harness: LinkHarness, timeout_milliseconds: int | None, budget_seconds: float
) -> None:
    harness.runtime.accept()
    if timeout_milliseconds is not None:
        harness.runtime.configure(request_timeout=timeout_milliseconds)
    harness.create()
    assert harness.plugin.calls[0].budget_seconds == budget_seconds


def test_a_refusal_is_an_error_of_the_call(registered: LinkHarness) -> None:
    registered.plugin.answer = Refuse(Code.UNAVAILABLE, "no CPUs")
    stream = registered.runtime.begin("CreateContainer", pb.EventRequest(container=container()))
    status = registered.runtime.response(stream).status
    assert (status.code, status.message) == (14, "no CPUs")
    assert registered.link.stats.refused == 1


def test_a_failing_handler_does_not_fail_the_container(
    registered: LinkHarness, caplog: pytest.LogCaptureFixture
) -> None:
    registered.plugin.error = ValueError("broken")
    request = pb.EventRequest(pod=POD, container=container())
    for method in ("CreateContainer", "UpdateContainer", "RunPodSandbox", "StopContainer"):
        assert registered.runtime.call(method, request, pb.Empty) == pb.Empty()
    assert registered.runtime.synchronize() == pb.SynchronizeResponse()
    assert set(registered.link.stats.errors.values()) == {1}
    assert len(registered.link.stats.errors) == 5
    assert "the hook of CreateContainer failed" in caplog.text
    failure = (
        "CreateContainer",
        registered.plugin.calls[0],
        "internal_error",
        "ValueError: broken",
    )
    assert registered.plugin.unhooked_calls[0] == failure


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer"])
def test_a_call_is_refused_if_its_hook_and_its_failure_policy_raise(
    registered: LinkHarness, method: str
) -> None:
    registered.plugin.error = ValueError("broken")
    registered.plugin.policy_error = RuntimeError("policy")
    request = pb.EventRequest(pod=POD, container=container())
    status = registered.runtime.response(registered.runtime.begin(method, request)).status
    text = "the hook can't decide, and its failure policy raised RuntimeError('policy')"
    assert (status.code, status.message) == (Code.INTERNAL, text)
    assert registered.link.stats.errors[method] == 2


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer"])
def test_an_invalid_request_passes_or_fails_by_policy(registered: LinkHarness, method: str) -> None:
    invalid = ttrpc.Request(service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=b"\xff")
    registered.runtime.send(1, 1_001, 1, invalid.SerializeToString())
    assert registered.runtime.response(1_001) == ttrpc.Response()
    registered.plugin.refusal = Refuse(Code.INTERNAL, "by policy")
    registered.runtime.send(1, 1_003, 1, invalid.SerializeToString())
    assert registered.runtime.response(1_003).status.message == "by policy"
    assert [each[:3] for each in registered.plugin.unhooked_calls] == [
        (method, None, "malformed")
    ] * 2


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
    registered: LinkHarness, service: str, method: str, payload: bytes, code: int
) -> None:
    request = ttrpc.Request(service=service, method=method, payload=payload)
    registered.runtime.send(1, 1_001, 1, request.SerializeToString())
    assert registered.runtime.response(1_001).status.code == code
    registered.runtime.send(1, 1_003, 1, b"\xff")
    assert registered.runtime.response(1_003).status.code == 3
    assert registered.runtime.call("Shutdown", pb.Empty(), pb.Empty) == pb.Empty()


def test_an_answer_beyond_the_protocols_limit_is_an_error_within_the_session(
    registered: LinkHarness,
) -> None:
    registered.plugin.answer = Changes(environment=(("A", "x" * (4 << 20)),))
    stream = registered.runtime.begin("CreateContainer", pb.EventRequest(container=container()))
    assert registered.runtime.response(stream).status.code == Code.RESOURCE_EXHAUSTED
    registered.plugin.answer = UNCHANGED
    registered.create()


class Results(list[RpcError | None]):
    """The results of updates."""

    def codes(self) -> list[int]:
        return [0 if each is None else each.code for each in self]


def test_the_plugins_update_does_not_wait_for_a_call_of_the_runtime(
    registered: LinkHarness,
) -> None:
    """The runtime holds a lock during its call until the plugin has answered."""
    registered.runtime.answers_updates = False
    results = Results()
    registered.link.update("c", LinuxResources("1"), results.append)
    registered.create()
    assert not results
    stream, request = registered.runtime.requests[-1]
    update_request = pb.UpdateContainersRequest.FromString(request.payload)
    (update,) = update_request.update
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c", "1")
    assert request.timeout_nano == 10_000_000_000
    registered.runtime.respond(stream, ttrpc.Response())
    registered.until("the answer", lambda: results)
    assert results == [None]
    registered.runtime.respond(stream, ttrpc.Response())
    registered.create()
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
def test_an_update_that_the_runtime_refuses_fails(
    registered: LinkHarness, response: ttrpc.Response, code: Code
) -> None:
    registered.runtime.answers_updates = False
    results = Results()
    registered.link.update("c", LinuxResources("9"), results.append)
    registered.until("the call", lambda: len(registered.runtime.requests) > 1)
    registered.runtime.respond(registered.runtime.requests[-1][0], response)
    registered.until("the answer", lambda: results)
    assert results.codes() == [code]
    registered.create()


def test_without_a_session_an_update_fails_at_once(harness: LinkHarness) -> None:
    harness.link.close()
    link = PluginLink(harness.loop, "/nowhere/nri.sock", "n", "01", harness.plugin)
    results = Results()
    link.update("c", LinuxResources("1"), results.append)
    assert results.codes() == [Code.UNAVAILABLE]


def test_an_unanswered_update_ends_the_session(tmp_path: Path) -> None:
    """The runtime's side for updates may have failed alone, while its calls continue."""
    harness = LinkHarness(tmp_path, update_seconds=0.1)
    harness.runtime.set_up()
    harness.runtime.answers_updates = False
    results = Results()
    harness.link.update("c", LinuxResources("1"), results.append)
    harness.until("the session ends", lambda: harness.runtime.ended)
    assert results.codes() == [Code.DEADLINE_EXCEEDED]
    harness.runtime.set_up()
    assert harness.link.ready
    assert (harness.link.sessions, harness.link.failed_sessions) == (2, 1)
    harness.close()


BROKEN = {
    "a frame beyond the limit": struct.pack(">II", 1, 1 << 30),
    "a message beyond the limit": struct.pack(">IIIIBB", 1, 10, 1 << 30, 1, 1, 0),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_invalid_bytes_end_the_session(
    registered: LinkHarness, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    results = Results()
    registered.runtime.answers_updates = False
    registered.link.update("c", LinuxResources("1"), results.append)
    registered.runtime.send_raw(data)
    registered.until("the session ends", lambda: registered.runtime.ended)
    assert "malformed: a" in caplog.text
    assert results.codes() == [Code.UNAVAILABLE]
    registered.runtime.set_up()
    registered.create()


def test_the_plugin_registers_again_with_a_restarted_runtime(registered: LinkHarness) -> None:
    registered.plugin.answer = Wait()
    registered.runtime.begin("CreateContainer", pb.EventRequest(container=container()))
    registered.until("held", lambda: registered.plugin.calls)
    registered.runtime.drop()
    registered.runtime.set_up()
    assert registered.link.ready
    assert ("abandoned", "c") in registered.plugin.events
    assert [name for name, _ in registered.plugin.events].count("synchronize") == 2
    assert not registered.link.held
    registered.plugin.answer = UNCHANGED
    registered.create()


def test_a_refused_registration_is_logged_and_retried(
    harness: LinkHarness, caplog: pytest.LogCaptureFixture
) -> None:
    stream, _ = harness.runtime.accept_without_answer()
    harness.runtime.respond(stream, refusal(Code.UNKNOWN, "invalid plugin index"))
    harness.until("the session ends", lambda: harness.runtime.ended)
    assert "plugin 42-topolet is not registered: UNKNOWN: invalid plugin index" in caplog.text
    harness.runtime.set_up()
    assert harness.link.ready


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


def test_a_launched_plugin_ends_with_its_socket(harness: LinkHarness) -> None:
    """The runtime does not kill a launched plugin; it starts another one."""
    harness.link.close()
    plugin_end, runtime_end = socket.socketpair()
    ended: list[bool] = []
    link = PluginLink(
        harness.loop,
        harness.runtime.path,
        "topolet",
        "10",
        harness.plugin,
        connected=plugin_end,
        on_end=lambda: ended.append(True),
    )
    link.start()
    harness.runtime.use_socket(runtime_end)
    harness.until("registration", lambda: harness.runtime.requests)
    harness.runtime.respond(harness.runtime.requests[0][0], ttrpc.Response())
    harness.runtime.synchronize()
    assert link.ready
    assert not ended
    harness.runtime.drop()
    harness.until("its end", lambda: ended)
    assert ended == [True]
    link.close()


def test_no_session_begins_after_the_end(registered: LinkHarness) -> None:
    registered.link.close()
    registered.until("the session ends", lambda: registered.runtime.ended)
    ticks: list[int] = []
    registered.loop.after(0.5, lambda: ticks.append(1))
    registered.until("half a second", lambda: ticks)
    assert registered.link.sessions == 1


def test_calls_never_block_on_a_runtime_that_does_not_read(registered: LinkHarness) -> None:
    """The link keeps data until the socket accepts it."""
    results: list[RpcError | None] = []
    on_result: Callable[[RpcError | None], None] = results.append
    big = LinuxResources("1", mems="0" * 3_000_000)
    for _ in range(3):
        registered.link.update("c", big, on_result)
    registered.until("all answers", lambda: len(results) == 3)
    assert results == [None] * 3


def test_a_hostile_runtime_that_reports_containers_without_end_is_refused(
    harness: LinkHarness,
) -> None:
    harness.runtime.accept()
    harness.runtime.configure()
    many = [container("0-3", pid=7) for _ in range(300)]
    for each in many:
        each.id = "x" * 10_000
    refused = []
    for _ in range(30):
        request = pb.SynchronizeRequest(pods=(POD,), containers=many, more=True)
        stream = harness.runtime.begin("Synchronize", request)
        refused.append(harness.runtime.response(stream).status.code == Code.RESOURCE_EXHAUSTED)
    assert refused.index(True) * 300 * 10_000 <= 32 << 20
    assert not harness.link.ready


def test_a_hostile_runtime_that_makes_calls_without_end_gets_few_calls_held(
    registered: LinkHarness,
) -> None:
    """The failure policy decides about the others."""
    registered.plugin.answer = Wait()
    registered.plugin.refusal = Refuse(Code.UNAVAILABLE, "too many")
    large = container()
    large.env.append(b"LARGE=" + b"x" * 3_000_000)
    request = pb.EventRequest(pod=POD, container=large)
    streams = [registered.runtime.begin("CreateContainer", request) for _ in range(20)]
    registered.until("a refusal", lambda: registered.plugin.unhooked_calls)
    refused = next(stream for stream in streams if stream in registered.runtime.replies)
    assert registered.runtime.response(refused).status.message == "too many"
    assert len(registered.link.held) * 3_000_000 <= 40 << 20
    registered.plugin.answer = UNCHANGED
    registered.until("all answers", lambda: len(registered.runtime.replies) >= len(streams))
    assert not registered.link.held
