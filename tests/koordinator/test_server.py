"""Every call of koord-runtime-proxy, by a real gRPC client, with real answers."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest

from agent.host.locks import LockedError
from agent.koordinator import server, service
from agent.koordinator.server import HookServer
from agent.model.devices.visibility import MOUNT_ROOT, DeviceNode, Visibility
from agent.model.notifications import Created, PodAnnounced, Resized, SnapshotRequest
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.model.settings.failure_policy import SANDBOX_SECONDS
from agent.model.snapshot import CgroupLimits, PodWanted, Snapshot, Wanted
from agent.proto import koordinator_hooks_pb2 as pb
from tests.koordinator.world import World, container
from tests.proxy.exchanges import CARD, EMPTY, OWNED, SHOWN
from tests.waiting import eventually


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    it = World(tmp_path, hold_seconds=0.3)
    yield it
    it.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[World]:
    it = World(tmp_path, hold_seconds=60.0)
    yield it
    it.close()


def refused(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    assert isinstance(error.value, grpc.Call)
    return error.value.code(), error.value.details() or ""


def with_pod(uid: str, cpus: str) -> Snapshot:
    """The agent has decided that another pod owns these CPUs."""
    wanted = PodWanted(f"ns/{uid}", EMPTY_QOS, Wanted(cpus, exclusive=True))
    return msgspec.structs.replace(OWNED, pods={**OWNED.pods, uid: wanted})


EMPTY_QOS = OWNED.pods["own"].qos


def test_a_sandbox_is_announced_to_the_agent(world: World) -> None:
    world.sandbox("PreRunPodSandbox", "a", "LSE", "1")
    (notification,) = world.notifications()
    assert isinstance(notification, PodAnnounced)
    assert (notification.uid, notification.annotations) == (
        "a",
        {RESOURCE_STATUS: '{"cpuset": "1"}'},
    )
    assert notification.cgroup_parent == "/kubepods/burstable/poda"


def test_a_sandbox_waits_until_its_pod_has_no_cpu_of_an_owner(world: World) -> None:
    world.publish(OWNED)
    began = time.monotonic()
    world.sandbox("PreRunPodSandbox", "late", "LS")
    waited = time.monotonic() - began
    assert waited >= SANDBOX_SECONDS
    labels = 'hook="RunPodSandbox",qos_class="LS",reason="timeout"'
    late = f"topolet_hook_server_failed_open_total{{{labels}}}"
    assert world.metric(late) == 1
    world.publish(msgspec.structs.replace(OWNED, announced=("a",)))
    world.sandbox("PreRunPodSandbox", "a", "LS")
    assert world.metric(late) == 1


def test_an_owner_gets_its_cpus(world: World) -> None:
    world.publish(OWNED)
    reply = world.container("PreCreateContainer", container("own", "LSE", "1"))
    assert reply.container_resources == pb.LinuxContainerResources(cpuset_cpus="1", oom_score_adj=5)
    assert not reply.container_envs


def test_a_pod_without_owned_cpus_gets_the_pool(world: World) -> None:
    world.publish(OWNED)
    reply = world.container("PreCreateContainer", container("any", "LS", cpuset="0-3"))
    assert reply.container_resources.cpuset_cpus == "0,2-3"


def test_a_large_environment_gets_no_cpu_of_an_owner(world: World) -> None:
    """The largest request that koord-runtime-proxy accepts: the 4 MiB of a server of Go's gRPC."""
    world.publish(OWNED)
    request = container("any", "LS", cpuset="0-3")
    request.container_envs.update({f"LARGE_{n}": "x" * 100_000 for n in range(41)})
    reply = world.container("PreCreateContainer", request)
    assert reply.container_resources.cpuset_cpus == "0,2-3"


def test_a_correct_request_is_not_changed(world: World) -> None:
    world.publish(OWNED)
    request = container("any", "LS", cpuset="0,2-3")
    assert world.raw("PreCreateContainer", request.SerializeToString()) == b""


def test_a_started_container_is_reported_with_its_requested_resources(world: World) -> None:
    world.publish(OWNED)
    world.container("PreCreateContainer", container("any", "LS", cpuset="0-3"))
    assert world.notifications() == []
    started = container("any", "LS", container_id="c1", cpuset="0,2-3")
    assert world.container("PreStartContainer", started).ByteSize() == 0
    (notification,) = world.notifications()
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
    world.container("PostStartContainer", started)
    assert world.notifications() == [SnapshotRequest(waits=False)]


def test_an_update_keeps_the_wanted_cpus(world: World) -> None:
    world.publish(OWNED)
    resized = container("own", "LSE", "1", container_id="c-own", cpuset="0-3")
    resized.container_resources.cpu_quota = 200_000
    reply = world.container("PreUpdateContainerResources", resized)
    assert reply.container_resources == pb.LinuxContainerResources(
        cpuset_cpus="1", oom_score_adj=5, cpu_quota=-1
    )


def test_an_update_of_an_unknown_container_loses_owned_cpus(world: World) -> None:
    world.publish(OWNED)
    unknown = container("x", container_id="c-unknown", cpuset="0-1")
    reply = world.container("PreUpdateContainerResources", unknown)
    assert reply.container_resources.cpuset_cpus == "0"
    assert world.metric(
        'topolet_hook_server_failed_open_total{hook="UpdateContainerResources",qos_class="",reason="timeout"}'
    )


def test_an_update_without_resources_is_passed(world: World) -> None:
    """koord-runtime-proxy does not know a container that is older than itself."""
    world.publish(OWNED)
    old = container("x", container_id="c-unknown")
    old.ClearField("container_resources")
    assert world.container("PreUpdateContainerResources", old).ByteSize() == 0


@pytest.mark.parametrize(("ours", "notifications"), [(None, 1), (512, 0)])
def test_a_resize_is_reported_unless_it_repeats_the_agents_values(
    world: World, ours: int | None, notifications: int
) -> None:
    """koord-runtime-proxy repeats in every update the container's values, including the agent's
    shares."""
    wanted = Wanted("1", exclusive=True, limits=CgroupLimits(shares=ours))
    world.publish(msgspec.structs.replace(OWNED, cpu_policy="static", containers={"c-own": wanted}))
    world.container("PreUpdateContainerResources", container("own", container_id="c-own"))
    received = world.notifications()
    assert len(received) == notifications
    assert all(
        isinstance(notification, Resized) and notification.requested.shares == 512
        for notification in received
    )


@pytest.mark.parametrize("hook", ["PostStopContainer", "PostStopPodSandbox"])
def test_the_end_of_a_container_notifies_the_agent(world: World, hook: str) -> None:
    if hook == "PostStopContainer":
        world.container(hook, container("own", container_id="c-own"))
    else:
        world.sandbox(hook, "own")
    uid = "own" if hook == "PostStopPodSandbox" else ""
    assert world.notifications() == [SnapshotRequest(waits=False, sandbox_uid=uid)]


def test_a_creation_waits_for_its_decision(patient: World) -> None:
    patient.publish(OWNED)
    replies: list[pb.ContainerResourceHookResponse] = []
    create = container("new", "LSE", "2")
    held = threading.Thread(
        target=lambda: replies.append(patient.container("PreCreateContainer", create, 60.0))
    )
    held.start()
    eventually("it is held", lambda: patient.metric("topolet_hook_server_waiting_calls") == 1)
    assert any(
        isinstance(notification, PodAnnounced) and notification.uid == "new"
        for notification in patient.notifications()
    )
    others = patient.container("PreCreateContainer", container("any", "LS"))
    assert others.container_resources.cpuset_cpus == "0,2-3"
    patient.container("PreStartContainer", container("any", "LS", container_id="c1"))
    patient.publish(with_pod("new", "2"))
    held.join(30)
    assert [each.container_resources.cpuset_cpus for each in replies] == ["2"]


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
def test_a_claim_without_a_decision_is_refused_at_the_deadline(world: World, qos: str) -> None:
    world.publish(OWNED)
    with pytest.raises(grpc.RpcError) as error:
        world.container("PreCreateContainer", container("new", qos, "2"))
    code, text = refused(error)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith("pod ns/new: no CPUs after 0.3 s")


def test_without_an_agent_only_claims_are_refused(world: World) -> None:
    assert world.container("PreCreateContainer", container("any", "LS")).ByteSize() == 0
    with pytest.raises(grpc.RpcError):
        world.container("PreCreateContainer", container("new", "LSE", "2"))


def test_a_caller_that_cancels_leaves_nothing(patient: World) -> None:
    patient.publish(OWNED)
    method = patient.channel.unary_unary(
        "/runtime.v1alpha1.RuntimeHookService/PreCreateContainerHook"
    )
    call = method.future(container("new", "LSE", "2").SerializeToString())
    eventually("it is held", lambda: patient.metric("topolet_hook_server_waiting_calls") == 1)
    call.cancel()
    eventually("it is dropped", lambda: patient.metric("topolet_hook_server_waiting_calls") == 0)


def test_an_owner_waits_for_a_creation_on_its_cpus(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The LS container was admitted with the whole pool before the owner was known. Its failed
    creation is not reported, so it counts as ended after a while."""
    world.publish(EMPTY)
    world.container("PreCreateContainer", container("any", "LS"))
    world.publish(with_pod("new", "2"))
    with pytest.raises(grpc.RpcError) as error:
        world.container("PreCreateContainer", container("new", "LSE", "2"))
    assert "a new container of pod ns/any may hold one of CPUs 2" in refused(error)[1]
    world.container("PreStartContainer", container("any", "LS", container_id="c1"))
    world.publish(with_pod("new", "2"))
    reply = world.container("PreCreateContainer", container("new", "LSE", "2"))
    assert reply.container_resources.cpuset_cpus == "2"


@pytest.mark.parametrize("end", ["settled", "again", "pod"])
def test_a_failed_creation_does_not_block_others_forever(
    world: World, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(service, "SETTLE_SECONDS", 0.0 if end == "settled" else 1000.0)
    world.publish(EMPTY)
    world.container("PreCreateContainer", container("any", "LS"))
    if end == "again":
        world.publish(OWNED)
        world.container("PreCreateContainer", container("any", "LS"))
        world.container("PreStartContainer", container("any", "LS", container_id="c2"))
    elif end == "pod":
        world.sandbox("PostStopPodSandbox", "any")

    def retried() -> bool:
        """As a kubelet does, while the agent continues its passes."""
        world.publish(with_pod("new", "2"))
        try:
            reply = world.container("PreCreateContainer", container("new", "LSE", "2"))
        except grpc.RpcError:
            return False
        return reply.container_resources.cpuset_cpus == "2"

    eventually("the owner gets its CPUs", retried)


@pytest.mark.parametrize("hook", server.HOOKS)
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x7fx", b"\x1a\x04\x0a\x02\xff\xfe"])
def test_a_torn_request_passes_by_policy(world: World, hook: str, message: bytes) -> None:
    assert world.raw(hook, message) == b""


def test_a_torn_request_fails_by_policy(tmp_path: Path) -> None:
    world = World(tmp_path, hook_failure_policy="*=ignore,CreateContainer=fail")
    with pytest.raises(grpc.RpcError) as error:
        world.raw("PreCreateContainer", b"\xff")
    assert refused(error)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert refused(error)[1].startswith(
        "CreateContainer: a container whose request could not be read"
    )
    world.close()


@pytest.mark.parametrize(
    "status", ["{", '{"cpuset": 1}', '{"cpuset": "9999999999-"}', "[" * 100_000, "{" + " " * 65_536]
)
def test_a_hostile_annotation_does_not_crash_the_server(world: World, status: str) -> None:
    world.publish(OWNED)
    request = container("evil", "LS")
    request.pod_annotations[RESOURCE_STATUS] = status
    reply = world.container("PreCreateContainer", request)
    assert reply.container_resources.cpuset_cpus == "0,2-3"
    assert world.metric('topolet_hook_server_hook_errors_total{hook="PreCreateContainer"}') == 0


def test_another_method_is_unimplemented(world: World) -> None:
    with pytest.raises(grpc.RpcError) as error:
        world.raw("PreRemoveRunPodSandbox", b"")
    assert refused(error)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_the_registration_exists_while_the_server_runs(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert json.loads(world.registration.read_bytes()) == {
        "remote-endpoint": world.socket,
        "failure-policy": "Ignore",
        "runtime-hooks": world.settings.hook_server_hooks.split(","),
    }
    assert stat.S_IMODE(os.stat(world.socket).st_mode) == 0o600
    world.close()
    assert not world.registration.exists()


def test_only_one_frontend_runs_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.koordinator.server.LOCK_SECONDS", 0.0)
    with pytest.raises(LockedError, match="held by topolet agent's hook server"):
        HookServer(world.settings)


def test_a_socket_that_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "hooks" / "hooks.sock"))
    world = World(tmp_path)
    world.sandbox("PreRunPodSandbox", "a")
    world.close()


def test_a_held_creation_ends_with_the_server(tmp_path: Path) -> None:
    world = World(tmp_path, hold_seconds=60.0)
    world.publish(OWNED)
    method = world.channel.unary_unary(
        "/runtime.v1alpha1.RuntimeHookService/PreCreateContainerHook"
    )
    call = method.future(container("new", "LSE", "2").SerializeToString())
    eventually("it is held", lambda: world.metric("topolet_hook_server_waiting_calls") == 1)
    world.close_frontend()
    assert isinstance(call.exception(timeout=30), grpc.RpcError)
    world.close()


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


def test_the_allocated_card_replaces_the_plugins(world: World) -> None:
    world.publish(SHOWN)
    answer = world.container("PreCreateContainer", allocated("own", "GPU-other"))
    assert dict(answer.container_envs) == {"PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "GPU-own"}
    answer = world.container("PreCreateContainer", allocated("own", name="sidecar"))
    assert answer.container_envs["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize("unsaid", ["nodes", "mounts"])
def test_device_changes_that_the_protocol_cannot_express_are_refused(
    world: World, unsaid: str
) -> None:
    """A device node to add, or names in mounts, which the protocol does not contain."""
    rdma = {"rdma": (DeviceNode("/dev/infiniband/uverbs0"),)} if unsaid == "nodes" else {}
    pod = SHOWN.pods["own"].with_visible(Visibility((CARD,), rdma), {})
    world.publish(msgspec.structs.replace(SHOWN, pods={"own": pod}))
    value = "GPU-own" if unsaid == "nodes" else MOUNT_ROOT
    with pytest.raises(grpc.RpcError) as error:
        world.container("PreCreateContainer", allocated("own", value))
    code, text = refused(error)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert unsaid in text
    labels = 'hook="CreateContainer",qos_class="devices",reason="unsupported"'
    assert world.metric(f"topolet_hook_server_failed_total{{{labels}}}") == 1
