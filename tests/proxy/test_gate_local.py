"""A container that qualifies for exclusive CPUs by the node's policy, until the agent decides."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.hooks import cri
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    ContainerFailed,
    Created,
    Resized,
)
from agent.model.pod.qos import QoS
from agent.model.snapshot import CpuPolicy, Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Code, Refuse, Wait
from agent.proto import cri_pb2 as pb
from agent.relay.gate import FORWARD, Replace
from tests.proxy.harness import EMPTY, GateHarness

STATIC = msgspec.structs.replace(EMPTY, cpu_policy="static")
FAILED = ContainerFailed("g", "main")


def decided(wanted: Wanted, policy: CpuPolicy = "static") -> Snapshot:
    return msgspec.structs.replace(
        STATIC,
        cpu_policy=policy,
        owners=(Owner("g", "ns/g", QoS.LSE, "1"),),
        pods={"g": PodWanted("ns/g", QoS.LS, Wanted(LinuxResources("0,2-3")), {"main": wanted})},
        containers={"c": wanted},
    )


OWN = Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)


def test_container_is_announced_and_held_until_it_has_its_cpus(harness: GateHarness) -> None:
    harness.publish(STATIC)
    limit = cri.patch((1,), "2MB") + cri.patch((2,), 4 << 20)
    call, verdict = harness.create_guaranteed(
        "g", 1024, cri.patch((*cri.CREATE_RESOURCES, 8), limit)
    )
    assert verdict == Wait()
    (notification,) = harness.notifications()
    assert isinstance(notification, ContainerAnnounced)
    assert notification.hugepages == {2 << 20: 4 << 20}
    assert (notification.pod.uid, notification.name, notification.shares) == ("g", "main", 1024)
    assert notification.pod.cgroup_parent == "/kubepods/podg"
    harness.publish(decided(OWN))
    verdict = harness.retry(call)
    assert isinstance(verdict, Replace)
    request = pb.CreateContainerRequest.FromString(verdict.message)
    assert request.config.linux.resources.cpuset_cpus == "1"
    assert list(request.config.mounts) == [], "static CPUs do not change, so no file is mounted"
    harness.created(call, "c")
    kept = ("mems", "shares", "quota", "memory_limit_bytes")
    assert harness.notifications() == [Created("c", LinuxResources(shares=1024), kept)]


def test_dynamic_container_gets_its_folder(harness: GateHarness, tmp_path: Path) -> None:
    harness.publish(decided(OWN, "dynamic"))
    call, _ = harness.create_guaranteed("g", 1024)
    harness.publish(decided(OWN, "dynamic"))
    verdict = harness.retry(call)
    assert isinstance(verdict, Replace)
    (mount,) = pb.CreateContainerRequest.FromString(verdict.message).config.mounts
    assert (mount.container_path, mount.readonly) == ("/run/topolet", True)
    assert mount.host_path == f"{tmp_path}/containers/g/main"


@pytest.mark.parametrize(
    "answer", [STATIC, decided(Wanted(LinuxResources("0"), blocked="no CPUs are free"))]
)
def test_without_cpus_a_container_is_refused_and_its_announcement_withdrawn(
    tmp_path: Path, answer: Snapshot
) -> None:
    no_hold = GateHarness(tmp_path, hold_seconds=0)
    no_hold.publish(answer)
    _, verdict = no_hold.create_guaranteed("g", 1024)
    assert isinstance(verdict, Refuse)
    assert verdict.code == Code.UNAVAILABLE
    assert verdict.message.startswith("pod ns/g: no CPUs after 0 s: ")
    assert verdict.message.endswith(("has not decided about this container", "no CPUs are free"))
    no_hold.close()


def test_refused_or_cancelled_container_withdraws_its_announcement(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    harness.publish(STATIC)
    refused, _ = harness.create_guaranteed("g", 1024)
    cancelled, _ = harness.create_guaranteed("g", 1024)
    harness.notifications()
    harness.gate.abandoned(cancelled)
    assert harness.notifications() == [FAILED]
    now += 61
    assert isinstance(harness.retry(refused), Refuse)
    assert harness.notifications() == [FAILED]


def test_container_that_the_runtime_did_not_create_withdraws_its_announcement(
    harness: GateHarness,
) -> None:
    harness.publish(STATIC)
    call, _ = harness.create_guaranteed("g", 1024)
    harness.publish(decided(OWN))
    assert isinstance(harness.retry(call), Replace)
    harness.notifications()
    harness.gate.reply(call, None)
    assert harness.notifications() == [FAILED]


@pytest.mark.parametrize(
    ("policy", "shares", "reply", "notifications"),
    [
        (
            "static",
            2048,
            b"",
            [Resized("c", LinuxResources(shares=2048, quota=CpuQuota(5)))],
        ),
        ("static", 2048, None, []),
        ("static", 0, b"", []),
        ("none", 2048, b"", []),
    ],
)
def test_resize_notifies_the_agent(
    harness: GateHarness,
    policy: CpuPolicy,
    shares: int,
    reply: bytes | None,
    notifications: list[Resized],
) -> None:
    harness.publish(decided(OWN, policy))
    call, verdict = harness.update("c", shares=shares)
    assert verdict != FORWARD
    harness.gate.reply(call, reply)
    assert harness.notifications() == notifications
