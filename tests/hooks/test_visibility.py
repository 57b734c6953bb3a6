"""Devices of a container in the rewritten request, and the failure policy for devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.model.notifications import PodAnnounced
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.settings.failure_policy import CREATE
from agent.model.verdict import Refuse, Wait
from agent.proto import cri_pb2 as pb
from agent.relay.gate import FORWARD, Call, GateVerdict, Replace
from tests.proxy.harness import EMPTY, WITH_DEVICES, GateHarness, sandbox

ENV = "NVIDIA_VISIBLE_DEVICES"
IGNORE = "*=ignore"


@pytest.fixture
def no_hold(tmp_path: Path) -> Iterator[GateHarness]:
    """Holds no call; the agent has decided."""
    it = GateHarness(tmp_path, hold_seconds=0)
    it.publish(WITH_DEVICES)
    yield it
    it.close()


@pytest.fixture
def ignore_policy(tmp_path: Path) -> Iterator[GateHarness]:
    """Holds no call; the failure policy keeps the choice of a device plugin."""
    it = GateHarness(tmp_path, hold_seconds=0, policy=IGNORE)
    it.publish(WITH_DEVICES)
    yield it
    it.close()


@pytest.fixture(name="fixtures")
def _fixtures(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    return request


def request(
    uid: str, *, env: str | None = None, cdi: str = "", name: str = "main", allocated: bool = True
) -> pb.CreateContainerRequest:
    message = pb.CreateContainerRequest(sandbox_config=sandbox(uid))
    message.config.metadata.name = name
    message.config.linux.resources.cpuset_cpus = "0-3"
    if env is not None:
        message.config.envs.add(key=ENV, value=env.encode())
    if cdi:
        message.config.CDI_devices.add(name=cdi)
    if allocated:
        message.sandbox_config.annotations[DEVICE_ALLOCATED] = "{}"
    return message


def devices_of(
    verdict: GateVerdict, requested: pb.CreateContainerRequest
) -> tuple[list[str], list[str]]:
    """The values of the variable and the CDI names that the runtime receives."""
    if isinstance(verdict, Replace):
        requested = pb.CreateContainerRequest.FromString(verdict.message)
    else:
        assert verdict == FORWARD
    config = requested.config
    values = [each.value.decode() for each in config.envs if each.key == ENV]
    return values, [each.name for each in config.CDI_devices]


def test_the_allocated_card_replaces_the_plugins(no_hold: GateHarness) -> None:
    requested = request("own", env="GPU-other", cdi="nvidia.com/gpu=GPU-other")
    _, verdict = no_hold.request(CREATE, requested)
    assert devices_of(verdict, requested) == (["GPU-own"], ["nvidia.com/gpu=GPU-own"])


def test_a_sidecar_of_the_pod_sees_no_devices(no_hold: GateHarness) -> None:
    requested = request("own", env="all", name="sidecar")
    assert devices_of(no_hold.request(CREATE, requested)[1], requested) == (["void"], [])


def test_a_pod_without_an_allocation_keeps_unallocated_devices(no_hold: GateHarness) -> None:
    requested = request("new", env="GPU-free", allocated=False)
    assert devices_of(no_hold.request(CREATE, requested)[1], requested) == (["GPU-free"], [])
    assert not no_hold.admission.outcomes.failed


@pytest.mark.parametrize("policy", ["no_hold", "ignore_policy"])
def test_no_pod_gets_another_pods_card(policy: str, fixtures: pytest.FixtureRequest) -> None:
    harness: GateHarness = fixtures.getfixturevalue(policy)
    for requested in (
        request("new", env="GPU-other", allocated=False),
        request("new", cdi="nvidia.com/gpu=0", allocated=False),
    ):
        _, verdict = harness.request(CREATE, requested)
        assert isinstance(verdict, Refuse)
        assert "pod ns/new" in verdict.message
        assert "GPU-other" in verdict.message
    assert harness.admission.outcomes.failed[CREATE, "devices", "device_taken"] == 2
    assert not harness.grants.all(harness.snapshots.current())[1:], (
        "a refused creation holds nothing"
    )


def test_an_allocation_that_cannot_be_honoured_is_refused_with_its_pod(
    no_hold: GateHarness,
) -> None:
    _, verdict = no_hold.request(CREATE, request("lost", env="GPU-free"))
    assert isinstance(verdict, Refuse)
    assert verdict.message == "pod ns/lost: gpu 7 is not on this node"
    assert no_hold.admission.outcomes.failed == {(CREATE, "devices", "not_honored"): 1}


@pytest.mark.parametrize(
    ("env", "kept"),
    [("GPU-free", ["GPU-free"]), (None, ["void"]), ("GPU-other", None), ("all", None)],
)
def test_policy_may_keep_the_plugins_choice_but_not_another_pods_card(
    ignore_policy: GateHarness, env: str | None, kept: list[str] | None
) -> None:
    requested = request("lost", env=env)
    _, verdict = ignore_policy.request(CREATE, requested)
    if kept is None:
        assert isinstance(verdict, Refuse)
    else:
        assert devices_of(verdict, requested) == (kept, [])
    assert ignore_policy.admission.outcomes.failed_open == {(CREATE, "devices", "not_honored"): 1}


def test_an_allocated_pod_waits_until_the_agent_has_decided(tmp_path: Path) -> None:
    harness = GateHarness(tmp_path)
    try:
        harness.publish(msgspec.structs.replace(WITH_DEVICES, pods={}))
        requested = request("own", env="GPU-other")
        call, verdict = harness.request(CREATE, requested)
        assert verdict == Wait()
        (notification,) = harness.notifications()
        assert isinstance(notification, PodAnnounced)
        assert DEVICE_ALLOCATED in notification.annotations
        harness.publish(WITH_DEVICES)
        assert devices_of(harness.retry(call), requested) == (["GPU-own"], [])
    finally:
        harness.close()


def test_an_allocated_pod_is_refused_without_a_decision(no_hold: GateHarness) -> None:
    _, verdict = no_hold.request(CREATE, request("new", env="GPU-free"))
    assert isinstance(verdict, Refuse)
    assert "no devices after 0 s: the agent has not decided" in verdict.message


def test_policy_may_keep_unallocated_devices_without_a_decision(ignore_policy: GateHarness) -> None:
    requested = request("new", env="GPU-free")
    assert devices_of(ignore_policy.request(CREATE, requested)[1], requested) == (["GPU-free"], [])
    assert isinstance(ignore_policy.request(CREATE, request("new", env="GPU-other"))[1], Refuse)


def test_the_policy_applies_without_an_agent_too(tmp_path: Path) -> None:
    for name, policy, expected in (
        ("fail", "*=ignore,CreateContainer/devices=fail", Refuse),
        ("ignore", IGNORE, None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        harness = GateHarness(folder, hold_seconds=0, policy=policy)
        try:
            requested = request("new", env="GPU-free")
            _, verdict = harness.request(CREATE, requested)
            assert isinstance(verdict, expected) if expected else verdict == FORWARD
        finally:
            harness.close()


def test_an_agent_without_device_decisions_changes_nothing(no_hold: GateHarness) -> None:
    no_hold.publish(EMPTY)
    requested = request("new", env="GPU-other")
    assert devices_of(no_hold.request(CREATE, requested)[1], requested) == (["GPU-other"], [])


def test_a_privileged_container_is_reported(no_hold: GateHarness) -> None:
    requested = request("own", env="all")
    requested.config.linux.security_context.privileged = True
    assert devices_of(no_hold.request(CREATE, requested)[1], requested) == (["GPU-own"], [])
    assert no_hold.admission.outcomes.failed_open == {(CREATE, "devices", "privileged"): 1}


@pytest.mark.parametrize(("uid", "allocated"), [("own", True), ("new", False)])
def test_an_unreadable_carrier_fails_every_pod_on_a_node_with_devices(
    no_hold: GateHarness, uid: str, allocated: bool
) -> None:
    message = request(uid, allocated=allocated)
    call = Call(b"/runtime.v1.RuntimeService/CreateContainer", time.monotonic())
    broken = message.SerializeToString() + bytes([0x12, 5, 0x8A, 0x01, 2, 0x0A, 0x7F])
    answer = no_hold.gate.request(call, broken)
    assert isinstance(answer, Refuse)
    assert answer.message.endswith("it could take device GPU-other")
