"""The calls of koord-runtime-proxy to the hook server, from a real gRPC client."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest

from agent.host.locks import LockedError
from agent.koordinator import server
from agent.koordinator.server import HookServer, Registration
from agent.model.devices.visibility import MOUNT_ROOT, DeviceNode, Visibility
from agent.model.notifications import Created, PodAnnounced, SnapshotRequest
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.proto import koordinator_hooks_pb2 as pb
from tests.hooks.snapshots import CARD, OWNED, WITH_DEVICES
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


@pytest.mark.parametrize("hook", server.HOOKS)
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x7fx", b"\x1a\x04\x0a\x02\xff\xfe"])
def test_a_malformed_request_passes_by_policy(
    harness: ServerHarness, hook: str, message: bytes
) -> None:
    assert harness.raw(hook, message) == b""


GROUP = b"\xa3\x01\xa4\x01"
"""An unknown field of a type that no message of Kubernetes has."""


@pytest.mark.parametrize("message", [b"\xff", b"\x22\x04" + GROUP])
def test_a_malformed_request_fails_by_policy(tmp_path: Path, message: bytes) -> None:
    harness = ServerHarness(tmp_path, hook_failure_policy="*=ignore,CreateContainer=fail")
    with pytest.raises(grpc.RpcError) as error:
        harness.raw("PreCreateContainer", message)
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


SOCKET = "/run/topolet/hooks.sock"


def registration(folder: Path, socket: str = SOCKET) -> Registration:
    return Registration(str(folder), socket, "Fail", ("PreRunPodSandbox", "PreCreateContainer"))


def content(folder: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((folder / "topolet.json").read_bytes())
    return loaded


def test_the_proxy_finds_endpoint_policy_and_hooks(tmp_path: Path) -> None:
    registration(tmp_path / "hookserver.d").write()
    assert content(tmp_path / "hookserver.d") == {
        "remote-endpoint": SOCKET,
        "failure-policy": "Fail",
        "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer"],
    }
    assert os.listdir(tmp_path / "hookserver.d") == ["topolet.json"]


@pytest.mark.parametrize("stale", [b"", b"{", b'{"remote-endpoint": "/elsewhere"}'])
def test_a_stale_file_is_replaced(tmp_path: Path, stale: bytes) -> None:
    (tmp_path / "topolet.json").write_bytes(stale)
    registration(tmp_path).write()
    assert content(tmp_path)["remote-endpoint"] == SOCKET


def test_a_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    """koord-runtime-proxy exits on a file that it cannot parse, so the file is never written in
    place."""
    registration(tmp_path).write()
    with (tmp_path / "topolet.json").open() as reader:
        registration(tmp_path, "/another").write()
        assert json.load(reader)["remote-endpoint"] == SOCKET


def test_a_correct_file_is_not_rewritten(tmp_path: Path) -> None:
    """A killed agent left it; the proxy need not read it again."""
    registration(tmp_path).write()
    before = os.stat(tmp_path / "topolet.json")
    registration(tmp_path).write()
    after = os.stat(tmp_path / "topolet.json")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_withdrawn_registration_lists_no_hook(tmp_path: Path) -> None:
    """It is changed in place: for the proxy, a new inode would be a new file."""
    it = registration(tmp_path)
    it.write()
    inode = os.stat(tmp_path / "topolet.json").st_ino
    it.withdraw()
    assert os.stat(tmp_path / "topolet.json").st_ino == inode
    assert content(tmp_path) == {"remote-endpoint": SOCKET, "failure-policy": "Ignore"}
    it.remove()
    assert os.listdir(tmp_path) == []
    it.remove()


def test_a_later_registration_of_another_server_is_kept(tmp_path: Path) -> None:
    it = registration(tmp_path)
    it.write()
    registration(tmp_path, "/another").write()
    it.withdraw()
    it.remove()
    assert content(tmp_path)["remote-endpoint"] == "/another"


def test_other_servers_with_the_same_hooks_are_named(tmp_path: Path) -> None:
    it = registration(tmp_path)
    it.write()
    (tmp_path / "koordlet.json").write_text('{"runtime-hooks": ["PreCreateContainer"]}')
    (tmp_path / "other.json").write_text('{"runtime-hooks": ["PostStopContainer"]}')
    (tmp_path / "torn.json").write_text('{"runtime-hooks": [')
    assert it.others() == ["koordlet.json"]
