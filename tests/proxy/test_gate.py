"""The proxy's gate: the bytes of a call become a request for admission, admission's answer becomes
the bytes of a verdict, and the reply is reported. What admission answers is tested in tests/hooks.
"""

from __future__ import annotations

import logging

import msgspec
import pytest

from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    ContainerFailed,
    Created,
    PodAnnounced,
    PodFailed,
    Resized,
    SnapshotRequest,
)
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings.frontends import CREATE, RUN, UPDATE, UPDATE_SANDBOX
from agent.model.verdict import Code, Refuse, Wait
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import METHODS, CpusetGate
from agent.relay.gate import FORWARD, Call, GateVerdict, Replace
from tests.hooks.snapshots import EMPTY, OWNED, WITH_DEVICES
from tests.proxy.harness import GateHarness, creation

CREATE_PATH = b"/runtime.v1.RuntimeService/CreateContainer"
CHANGE = SnapshotRequest(waits=False)
LIMITS = ("mems", "shares", "quota", "memory_limit_bytes", "hugepages")
NO_REPLY = pytest.mark.parametrize("reply", [None, b"", b"\xff garbage"])
"""A call that failed, or whose reply does not name what was created."""


def created_with(verdict: GateVerdict) -> pb.LinuxContainerResources:
    assert isinstance(verdict, Replace)
    return pb.CreateContainerRequest.FromString(verdict.message).config.linux.resources


def test_a_sandbox_is_announced_and_its_result_reported(harness: GateHarness) -> None:
    call, verdict = harness.call_run("p", "LSE", "1")
    assert verdict == FORWARD
    announced = PodAnnounced(
        "p",
        "ns",
        "p",
        {QOS_LABEL: "LSE"},
        {RESOURCE_STATUS: '{"cpuset": "1"}'},
        "/kubepods/burstable/podp",
    )
    assert harness.notifications() == [announced]
    harness.gate.reply(call, pb.RunPodSandboxResponse(pod_sandbox_id="s").SerializeToString())
    assert harness.notifications() == [SnapshotRequest(waits=False, sandbox_uid="p")]


@NO_REPLY
def test_a_sandbox_that_was_not_made_is_reported(harness: GateHarness, reply: bytes | None) -> None:
    call, _ = harness.call_run("p")
    harness.notifications()
    harness.gate.reply(call, reply)
    assert harness.notifications() == [PodFailed("p")]


def test_a_creation_gets_its_changes_and_its_id_is_reported(harness: GateHarness) -> None:
    harness.publish(EMPTY)
    call, verdict = harness.call_create("own", "LSE", "1")
    assert verdict == Wait()
    assert [type(each) for each in harness.notifications()] == [PodAnnounced]
    harness.publish(OWNED)
    assert created_with(harness.retry(call)) == pb.LinuxContainerResources(
        cpuset_cpus="1", cpu_shares=512
    )
    reply = pb.CreateContainerResponse(container_id="c1")
    harness.gate.reply(call, reply.SerializeToString())
    assert harness.notifications() == [Created("c1", LinuxResources(shares=512), LIMITS)]


@NO_REPLY
def test_a_container_that_was_not_made_is_reported(
    harness: GateHarness, reply: bytes | None
) -> None:
    harness.publish(OWNED)
    call, _ = harness.call_create("p", "LS")
    harness.gate.reply(call, reply)
    assert harness.notifications() == [SnapshotRequest()]
    assert all(assumed.answered_at for assumed in harness.assumed.all(None))


def test_a_request_without_changes_is_forwarded(harness: GateHarness) -> None:
    harness.publish(OWNED)
    assert harness.call_create("p", "LS", cpuset_="0,2-3")[1] == FORWARD
    assert harness.call_update("c-kubelet", "0-1")[1] == FORWARD


def test_every_version_of_the_cri_is_hooked(harness: GateHarness) -> None:
    harness.publish(OWNED)
    request = creation("own", "LSE", "1")
    _, verdict = harness.request(CREATE, request, "runtime.v1alpha2.RuntimeService")
    assert created_with(verdict).cpuset_cpus == "1"


def test_the_devices_of_a_creation_are_read_and_changed(harness: GateHarness) -> None:
    harness.publish(WITH_DEVICES)
    request = creation("own")
    request.config.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=b"GPU-other")
    _, verdict = harness.request(CREATE, request)
    assert isinstance(verdict, Replace)
    config = pb.CreateContainerRequest.FromString(verdict.message).config
    assert {each.key: each.value for each in config.envs} == {"NVIDIA_VISIBLE_DEVICES": b"GPU-own"}


@pytest.mark.parametrize("reply", [b"", None], ids=["made", "failed"])
def test_an_update_gets_its_changes_and_only_one_that_was_made_is_reported(
    harness: GateHarness, reply: bytes | None
) -> None:
    harness.publish(msgspec.structs.replace(OWNED, cpu_policy="static"))
    call, verdict = harness.call_update("c-own", "0-3", shares=300)
    assert isinstance(verdict, Replace)
    linux = pb.UpdateContainerResourcesRequest.FromString(verdict.message).linux
    assert (linux.cpuset_cpus, linux.cpu_quota, linux.cpu_shares) == ("1", -1, 300)
    harness.gate.reply(call, reply)
    requested = LinuxResources("0-3", shares=300, quota=CpuQuota(5))
    assert harness.notifications() == ([] if reply is None else [Resized("c-own", requested)])


@pytest.mark.parametrize(("method", "seconds"), [(RUN, 0.05), (CREATE, 60), (UPDATE, 60)])
def test_a_call_waits_until_the_deadline_of_its_hook(
    harness: GateHarness, method: str, seconds: float
) -> None:
    """It counts from the relay's first call of the gate."""
    harness.publish(OWNED)
    calls = {
        RUN: lambda: harness.call_run("p", "LS"),
        CREATE: lambda: harness.call_create("new", "LSE", "2"),
        UPDATE: lambda: harness.call_update("unknown", "0-1"),
    }
    call, verdict = calls[method]()
    assert verdict == Wait()
    assert harness.retry(call) == Wait()
    assert len(harness.notifications()) == 1, "it is one request, which is read once"
    harness.wait(seconds - 0.01)
    assert harness.retry(call) == Wait()
    harness.wait(0.02)
    verdict = harness.retry(call)
    if method == CREATE:
        why = "pod ns/new: no CPUs after 60 s: the agent has not decided about this pod"
        assert verdict == Refuse(Code.UNAVAILABLE, why)
    else:
        assert isinstance(verdict, Replace) if method == UPDATE else verdict == FORWARD


def test_a_held_call_that_its_caller_cancels_is_reported(harness: GateHarness) -> None:
    harness.publish(msgspec.structs.replace(OWNED, cpu_policy="static"))
    held, _ = harness.call_run("p")
    request = creation("g")
    request.sandbox_config.linux.cgroup_parent = "/kubepods/podg"
    request.config.linux.resources.cpu_shares = 1024
    held_creation, verdict = harness.request(CREATE, request)
    assert verdict == Wait()
    assert [type(each) for each in harness.notifications()] == [PodAnnounced, ContainerAnnounced]
    harness.gate.abandoned(held)
    harness.gate.abandoned(held_creation)
    assert harness.notifications() == [PodFailed("p"), ContainerFailed("g", "main")]


def test_an_invalid_protobuf_passes_by_policy(harness: GateHarness) -> None:
    for path in CpusetGate.methods:
        if METHODS[path] in (RUN, CREATE, UPDATE):
            assert harness.gate.request(Call(path, 0.0), b"\xff garbage") == FORWARD
            assert harness.admission.outcomes.failed_open[METHODS[path], "", "malformed"]


def test_an_unreadable_carrier_of_devices_is_a_malformed_request(harness: GateHarness) -> None:
    harness.publish(WITH_DEVICES)
    call = harness.new_call(CREATE, creation("new"))
    harness.messages[call] += bytes([0x12, 5, 0x8A, 0x01, 2, 0x0A, 0x7F])
    answer = harness.retry(call)
    assert isinstance(answer, Refuse)
    assert answer.code == Code.INVALID_ARGUMENT
    assert answer.message.startswith("CreateContainer: pod ns/new: ")
    assert answer.message.endswith("it could take device GPU-other")


def test_an_unhooked_call_is_answered_by_the_policy_of_its_hook(harness: GateHarness) -> None:
    harness.publish(OWNED)
    for path, method in METHODS.items():
        verdict = harness.gate.unhooked(Call(path, 0.0), "too_large", "9 bytes")
        if method in (CREATE, UPDATE):
            why = "a container whose request could not be read: 9 bytes; it could take CPUs 1"
            refusal = f"{method}: {why} of pod ns/own"
            assert verdict == Refuse(Code.RESOURCE_EXHAUSTED, refusal)
        else:
            assert verdict == FORWARD, method


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_the_end_of_an_unhooked_creation_is_reported(harness: GateHarness, read: bool) -> None:
    harness.publish(EMPTY)
    call = harness.call_create("p", "LS")[0] if read else Call(CREATE_PATH, 0.0)
    assert harness.gate.unhooked(call, "timeout", "the proxy ends") == FORWARD
    class_ = "LS" if read else ""
    assert harness.admission.outcomes.failed_open == {(CREATE, class_, "timeout"): 1}
    reply = pb.CreateContainerResponse(container_id="c1")
    harness.gate.reply(call, reply.SerializeToString())
    assert harness.notifications() == [SnapshotRequest()]
    assert harness.assumed.of("c1") is not None


@pytest.mark.parametrize("reply", [b"", None], ids=["started", "failed"])
def test_a_start_is_reported_at_its_begin_and_its_end(
    harness: GateHarness, reply: bytes | None
) -> None:
    harness.publish(EMPTY)
    request = pb.StartContainerRequest(container_id="c1")
    call, verdict = harness.request("StartContainer", request)
    assert verdict == FORWARD
    harness.publish(OWNED)
    assert harness.call_create("own", "LSE", "1")[1] == Wait(), "the start may use former CPUs"
    harness.notifications()
    harness.gate.reply(call, reply)
    assert harness.notifications() == [CHANGE]


@pytest.mark.parametrize("reply", [b"", None], ids=["ended", "failed"])
@pytest.mark.parametrize(
    "method", ["RemoveContainer", "StopContainer", "StopPodSandbox", UPDATE_SANDBOX]
)
def test_an_end_is_forwarded_and_its_success_reported(
    harness: GateHarness, method: str, reply: bytes | None
) -> None:
    """Only a removed container has no CPUs any more."""
    harness.publish(OWNED)
    call, _ = harness.call_create("p", "LS")
    harness.gate.reply(call, pb.CreateContainerResponse(container_id="c1").SerializeToString())
    harness.notifications()
    call, verdict = harness.request(method, pb.RemoveContainerRequest(container_id="c1"))
    assert verdict == FORWARD
    assert harness.notifications() == []
    harness.gate.reply(call, reply)
    assert harness.notifications() == ([] if reply is None else [CHANGE])
    removed = method == "RemoveContainer" and reply is not None
    assert (harness.assumed.of("c1") is None) is removed


SECRET = "s3cr3t-of-the-database"


@pytest.mark.parametrize("suffix", [b"", b"\xff\xff"], ids=["valid", "invalid"])
@pytest.mark.parametrize("uid", ["own", "lost", "unknown"])
def test_no_variable_of_a_container_is_logged_or_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, uid: str, suffix: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    harness = GateHarness(monkeypatch, hold_seconds=0)
    harness.publish(WITH_DEVICES)
    message = creation(uid, "LSE", "1")
    message.config.envs.add(key="DB_PASSWORD", value=SECRET.encode())
    message.config.annotations["note"] = SECRET
    message.sandbox_config.annotations["example.com/token"] = SECRET
    call = harness.new_call(CREATE, message)
    harness.messages[call] += suffix
    verdict = harness.retry(call)
    notifications = [msgspec.json.encode(each) for each in harness.notifications()]
    assert SECRET not in caplog.text
    assert SECRET.encode() not in b"".join(notifications)
    if isinstance(verdict, Refuse):
        assert SECRET not in verdict.message
