"""The calls of koord-runtime-proxy to the hook server, from a real gRPC client."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest

from agent.host.locks import LockedError
from agent.koordinator import server, service
from agent.koordinator.server import HookServer
from agent.model.devices.visibility import MOUNT_ROOT, DeviceNode, Visibility
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.notifications import Created, PodAnnounced, Resized, SnapshotRequest
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Snapshot, Wanted
from agent.proto import koordinator_hooks_pb2 as pb
from tests.hooks.snapshots import CARD, EMPTY, OWNED, WITH_DEVICES
from tests.koordinator.harness import ServerHarness, container
from tests.waiting import eventually


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ServerHarness]:
    it = ServerHarness(tmp_path, hold_seconds=0.3)
    yield it
    it.close()


@pytest.fixture
def long_hold(tmp_path: Path) -> Iterator[ServerHarness]:
    it = ServerHarness(tmp_path, hold_seconds=60.0)
    yield it
    it.close()


def status_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    assert isinstance(error.value, grpc.Call)
    return error.value.code(), error.value.details() or ""


def with_owner(uid: str, cpus: str) -> Snapshot:
    """OWNED, and the agent has decided that this pod owns these CPUs."""
    wanted = PodWanted(
        f"ns/{uid}", QoS.LSE, Wanted(LinuxResources(cpus, quota=NO_QUOTA), exclusive=True)
    )
    return msgspec.structs.replace(OWNED, pods={**OWNED.pods, uid: wanted})


def test_a_sandbox_is_announced_to_the_agent(harness: ServerHarness) -> None:
    harness.sandbox("PreRunPodSandbox", "a", "LSE", "1")
    (notification,) = harness.notifications()
    assert isinstance(notification, PodAnnounced)
    assert (notification.uid, notification.annotations) == (
        "a",
        {RESOURCE_STATUS: '{"cpuset": "1"}'},
    )
    assert notification.cgroup_parent == "/kubepods/burstable/poda"


def test_an_owner_gets_its_cpus(harness: ServerHarness) -> None:
    harness.publish(OWNED)
    reply = harness.container("PreCreateContainer", container("own", "LSE", "1"))
    assert reply.container_resources == pb.LinuxContainerResources(cpuset_cpus="1", oom_score_adj=5)
    assert not reply.container_envs


def test_a_container_with_a_large_environment_gets_no_cpu_of_an_owner(
    harness: ServerHarness,
) -> None:
    """koord-runtime-proxy accepts 4 MiB, the default limit of a gRPC server in Go."""
    harness.publish(OWNED)
    request = container("any", "LS", cpuset="0-3")
    request.container_envs.update({f"LARGE_{n}": "x" * 100_000 for n in range(41)})
    reply = harness.container("PreCreateContainer", request)
    assert reply.container_resources.cpuset_cpus == "0,2-3"


def test_a_correct_request_is_not_changed(harness: ServerHarness) -> None:
    harness.publish(OWNED)
    request = container("any", "LS", cpuset="0,2-3")
    assert harness.raw("PreCreateContainer", request.SerializeToString()) == b""


def test_a_started_container_is_reported_with_its_requested_resources(
    harness: ServerHarness,
) -> None:
    harness.publish(OWNED)
    harness.container("PreCreateContainer", container("any", "LS", cpuset="0-3"))
    assert harness.notifications() == []
    started = container("any", "LS", container_id="c1", cpuset="0,2-3")
    assert harness.container("PreStartContainer", started).ByteSize() == 0
    (notification,) = harness.notifications()
    assert isinstance(notification, Created)
    assert (
        notification.container_id,
        notification.requested.cpuset,
        notification.requested.shares,
    ) == (
        "c1",
        "0-3",
        512,
    )
    harness.container("PostStartContainer", started)
    assert harness.notifications() == [SnapshotRequest(waits=False)]


def test_an_update_keeps_the_wanted_cpus(harness: ServerHarness) -> None:
    harness.publish(OWNED)
    resized = container("own", "LSE", "1", container_id="c-own", cpuset="0-3")
    resized.container_resources.cpu_quota = 200_000
    reply = harness.container("PreUpdateContainerResources", resized)
    assert reply.container_resources == pb.LinuxContainerResources(
        cpuset_cpus="1", oom_score_adj=5, cpu_quota=-1
    )


def test_an_update_without_resources_is_passed(harness: ServerHarness) -> None:
    """koord-runtime-proxy does not know a container that is older than itself."""
    harness.publish(OWNED)
    old = container("x", container_id="c-unknown")
    old.ClearField("container_resources")
    assert harness.container("PreUpdateContainerResources", old).ByteSize() == 0


@pytest.mark.parametrize(("shares", "notifications"), [(None, 1), (512, 0)])
def test_a_resize_is_reported_unless_it_repeats_the_agents_values(
    harness: ServerHarness, shares: int | None, notifications: int
) -> None:
    """koord-runtime-proxy repeats in every update the container's values, including the agent's
    shares."""
    wanted = Wanted(LinuxResources("1", shares=shares, quota=NO_QUOTA), exclusive=True)
    harness.publish(
        msgspec.structs.replace(OWNED, cpu_policy="static", containers={"c-own": wanted})
    )
    harness.container("PreUpdateContainerResources", container("own", container_id="c-own"))
    received = harness.notifications()
    assert len(received) == notifications
    assert all(
        isinstance(notification, Resized) and notification.requested.shares == 512
        for notification in received
    )


@pytest.mark.parametrize("hook", ["PostStopContainer", "PostStopPodSandbox"])
def test_the_end_of_a_container_notifies_the_agent(harness: ServerHarness, hook: str) -> None:
    if hook == "PostStopContainer":
        harness.container(hook, container("own", container_id="c-own"))
    else:
        harness.sandbox(hook, "own")
    uid = "own" if hook == "PostStopPodSandbox" else ""
    assert harness.notifications() == [SnapshotRequest(waits=False, sandbox_uid=uid)]


def test_a_claim_without_a_decision_is_refused_at_the_deadline(harness: ServerHarness) -> None:
    harness.publish(OWNED)
    with pytest.raises(grpc.RpcError) as error:
        harness.container("PreCreateContainer", container("new", "LSE", "2"))
    code, text = status_of(error)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith("pod ns/new: no CPUs after 0.3 s")


def test_a_cancelled_call_is_not_held(long_hold: ServerHarness) -> None:
    long_hold.publish(OWNED)
    method = long_hold.channel.unary_unary(
        "/runtime.v1alpha1.RuntimeHookService/PreCreateContainerHook"
    )
    call = method.future(container("new", "LSE", "2").SerializeToString())
    eventually("it is held", lambda: long_hold.metric("topolet_hook_server_waiting_calls") == 1)
    call.cancel()
    eventually("it is dropped", lambda: long_hold.metric("topolet_hook_server_waiting_calls") == 0)


def test_an_owner_waits_for_a_creation_on_its_cpus(harness: ServerHarness) -> None:
    """The LS container was admitted with the whole pool before the owner was known. Its failed
    creation would not be reported, so it counts as ended after a while."""
    harness.publish(EMPTY)
    harness.container("PreCreateContainer", container("any", "LS"))
    harness.publish(with_owner("new", "2"))
    with pytest.raises(grpc.RpcError) as error:
        harness.container("PreCreateContainer", container("new", "LSE", "2"))
    assert "a new container of pod ns/any may hold one of CPUs 2" in status_of(error)[1]
    harness.container("PreStartContainer", container("any", "LS", container_id="c1"))
    harness.publish(with_owner("new", "2"))
    reply = harness.container("PreCreateContainer", container("new", "LSE", "2"))
    assert reply.container_resources.cpuset_cpus == "2"


@pytest.mark.parametrize("end", ["after a while", "created again", "pod stopped"])
def test_a_failed_creation_does_not_block_others_forever(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(service, "SETTLE_SECONDS", 0.0 if end == "after a while" else 1000.0)
    harness.publish(EMPTY)
    harness.container("PreCreateContainer", container("any", "LS"))
    if end == "created again":
        harness.publish(OWNED)
        harness.container("PreCreateContainer", container("any", "LS"))
        harness.container("PreStartContainer", container("any", "LS", container_id="c2"))
    elif end == "pod stopped":
        harness.sandbox("PostStopPodSandbox", "any")

    def retry() -> bool:
        """Creates the container again, as a kubelet does, after another pass of the agent."""
        harness.publish(with_owner("new", "2"))
        try:
            reply = harness.container("PreCreateContainer", container("new", "LSE", "2"))
        except grpc.RpcError:
            return False
        return reply.container_resources.cpuset_cpus == "2"

    eventually("the owner gets its CPUs", retry)


@pytest.mark.parametrize("hook", server.HOOKS)
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x7fx", b"\x1a\x04\x0a\x02\xff\xfe"])
def test_a_malformed_request_passes_by_policy(
    harness: ServerHarness, hook: str, message: bytes
) -> None:
    assert harness.raw(hook, message) == b""


def test_a_malformed_request_fails_by_policy(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, hook_failure_policy="*=ignore,CreateContainer=fail")
    with pytest.raises(grpc.RpcError) as error:
        harness.raw("PreCreateContainer", b"\xff")
    assert status_of(error)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(error)[1].startswith(
        "CreateContainer: a container whose request could not be read"
    )
    harness.close()


def test_another_method_is_unimplemented(harness: ServerHarness) -> None:
    with pytest.raises(grpc.RpcError) as error:
        harness.raw("PreRemoveRunPodSandbox", b"")
    assert status_of(error)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_the_registration_exists_while_the_server_runs(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path)
    assert json.loads(harness.registration.read_bytes()) == {
        "remote-endpoint": harness.socket,
        "failure-policy": "Ignore",
        "runtime-hooks": list(server.REGISTERED),
    }
    assert stat.S_IMODE(os.stat(harness.socket).st_mode) == 0o600
    harness.close()
    assert not harness.registration.exists()


def test_the_proxy_fails_calls_without_the_agent_if_unknown_pods_fail(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, hook_failure_policy="CreateContainer=fail")
    assert json.loads(harness.registration.read_bytes())["failure-policy"] == "Fail"
    harness.close()


def test_only_one_frontend_runs_at_a_time(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.koordinator.server.LOCK_SECONDS", 0.0)
    with pytest.raises(LockedError, match="held by topolet agent's hook server"):
        HookServer(harness.settings, str(harness.registration.parent))


def test_the_socket_of_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "hooks" / "hooks.sock"))
    harness = ServerHarness(tmp_path)
    harness.sandbox("PreRunPodSandbox", "a")
    harness.close()


def test_a_held_creation_ends_with_the_server(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, hold_seconds=60.0)
    harness.publish(OWNED)
    method = harness.channel.unary_unary(
        "/runtime.v1alpha1.RuntimeHookService/PreCreateContainerHook"
    )
    call = method.future(container("new", "LSE", "2").SerializeToString())
    eventually("it is held", lambda: harness.metric("topolet_hook_server_waiting_calls") == 1)
    harness.close_frontend()
    assert isinstance(call.exception(timeout=30), grpc.RpcError)
    harness.close()


def allocated(
    uid: str, value: str | None = None, name: str = "main"
) -> pb.ContainerResourceHookRequest:
    request = container(uid)
    request.container_meta.name = name
    request.pod_annotations[DEVICE_ALLOCATED] = "{}"
    request.container_envs["PATH"] = "/bin"
    if value is not None:
        request.container_envs["NVIDIA_VISIBLE_DEVICES"] = value
    return request


def test_the_allocated_card_replaces_the_plugins(harness: ServerHarness) -> None:
    harness.publish(WITH_DEVICES)
    answer = harness.container("PreCreateContainer", allocated("own", "GPU-other"))
    assert dict(answer.container_envs) == {"PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "GPU-own"}
    answer = harness.container("PreCreateContainer", allocated("own", name="sidecar"))
    assert answer.container_envs["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize("inexpressible", ["nodes", "mounts"])
def test_device_changes_that_the_protocol_cannot_express_are_refused(
    harness: ServerHarness, inexpressible: str
) -> None:
    """The protocol has neither device nodes nor mounts."""
    rdma = {"rdma": (DeviceNode("/dev/infiniband/uverbs0"),)} if inexpressible == "nodes" else {}
    pod = WITH_DEVICES.pods["own"].with_visible(Visibility((CARD,), rdma), {})
    harness.publish(msgspec.structs.replace(WITH_DEVICES, pods={"own": pod}))
    value = "GPU-own" if inexpressible == "nodes" else MOUNT_ROOT
    with pytest.raises(grpc.RpcError) as error:
        harness.container("PreCreateContainer", allocated("own", value))
    code, text = status_of(error)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert inexpressible in text
    labels = 'hook="CreateContainer",qos_class="devices",reason="unsupported"'
    assert harness.metric(f"topolet_hook_server_failed_total{{{labels}}}") == 1
