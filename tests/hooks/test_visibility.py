"""Devices in the changed request of a container's creation, and the policy for failures."""

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
from tests.proxy.exchanges import EMPTY, SHOWN, Exchange, sandbox

ENV = "NVIDIA_VISIBLE_DEVICES"
IGNORE = "*=ignore"


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Exchange]:
    """Waits for nothing; the agent has decided."""
    it = Exchange(tmp_path, hold_seconds=0)
    it.publish(SHOWN)
    yield it
    it.close()


@pytest.fixture
def lenient(tmp_path: Path) -> Iterator[Exchange]:
    """The same, and a plugin's choice is kept if there is no other."""
    it = Exchange(tmp_path, hold_seconds=0, policy=IGNORE)
    it.publish(SHOWN)
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


def seen(verdict: GateVerdict, requested: pb.CreateContainerRequest) -> tuple[list[str], list[str]]:
    """Values of the variable, and CDI names, that the runtime gets."""
    if isinstance(verdict, Replace):
        requested = pb.CreateContainerRequest.FromString(verdict.message)
    else:
        assert verdict == FORWARD
    config = requested.config
    values = [each.value.decode() for each in config.envs if each.key == ENV]
    return values, [each.name for each in config.CDI_devices]


def test_the_allocated_card_replaces_the_plugins(hasty: Exchange) -> None:
    requested = request("own", env="GPU-other", cdi="nvidia.com/gpu=GPU-other")
    _, verdict = hasty.ask(CREATE, requested)
    assert seen(verdict, requested) == (["GPU-own"], ["nvidia.com/gpu=GPU-own"])


def test_a_sidecar_of_the_pod_sees_no_devices(hasty: Exchange) -> None:
    requested = request("own", env="all", name="sidecar")
    assert seen(hasty.ask(CREATE, requested)[1], requested) == (["void"], [])


def test_a_pod_without_an_allocation_keeps_unallocated_devices(hasty: Exchange) -> None:
    requested = request("new", env="GPU-free", allocated=False)
    assert seen(hasty.ask(CREATE, requested)[1], requested) == (["GPU-free"], [])
    assert not hasty.admission.outcomes.failed


@pytest.mark.parametrize("policy", ["hasty", "lenient"])
def test_no_pod_gets_another_pods_card(policy: str, fixtures: pytest.FixtureRequest) -> None:
    exchange: Exchange = fixtures.getfixturevalue(policy)
    for requested in (
        request("new", env="GPU-other", allocated=False),
        request("new", cdi="nvidia.com/gpu=0", allocated=False),
    ):
        _, verdict = exchange.ask(CREATE, requested)
        assert isinstance(verdict, Refuse)
        assert "pod ns/new" in verdict.message
        assert "GPU-other" in verdict.message
    assert exchange.admission.outcomes.failed[CREATE, "devices", "device_taken"] == 2
    assert not exchange.grants.all(exchange.snapshots.current())[1:], (
        "what was refused holds nothing"
    )


def test_an_allocation_that_cannot_be_honoured_is_refused_with_its_pod(hasty: Exchange) -> None:
    _, verdict = hasty.ask(CREATE, request("lost", env="GPU-free"))
    assert isinstance(verdict, Refuse)
    assert verdict.message == "pod ns/lost: gpu 7 is not on this node"
    assert hasty.admission.outcomes.failed == {(CREATE, "devices", "not_honored"): 1}


@pytest.mark.parametrize(
    ("env", "left"),
    [("GPU-free", ["GPU-free"]), (None, ["void"]), ("GPU-other", None), ("all", None)],
)
def test_policy_may_keep_the_plugins_choice_but_not_another_pods_card(
    lenient: Exchange, env: str | None, left: list[str] | None
) -> None:
    requested = request("lost", env=env)
    _, verdict = lenient.ask(CREATE, requested)
    if left is None:
        assert isinstance(verdict, Refuse)
    else:
        assert seen(verdict, requested) == (left, [])
    assert lenient.admission.outcomes.failed_open == {(CREATE, "devices", "not_honored"): 1}


def test_an_allocated_pod_waits_until_the_agent_has_decided(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    try:
        exchange.publish(msgspec.structs.replace(SHOWN, pods={}))
        requested = request("own", env="GPU-other")
        call, verdict = exchange.ask(CREATE, requested)
        assert verdict == Wait()
        (notification,) = exchange.notifications()
        assert isinstance(notification, PodAnnounced)
        assert DEVICE_ALLOCATED in notification.annotations
        exchange.publish(SHOWN)
        assert seen(exchange.again(call), requested) == (["GPU-own"], [])
    finally:
        exchange.close()


def test_an_allocated_pod_is_refused_without_a_decision(hasty: Exchange) -> None:
    _, verdict = hasty.ask(CREATE, request("new", env="GPU-free"))
    assert isinstance(verdict, Refuse)
    assert "no devices after 0 s: the agent has not decided" in verdict.message


def test_policy_may_keep_unallocated_devices_without_a_decision(lenient: Exchange) -> None:
    requested = request("new", env="GPU-free")
    assert seen(lenient.ask(CREATE, requested)[1], requested) == (["GPU-free"], [])
    assert isinstance(lenient.ask(CREATE, request("new", env="GPU-other"))[1], Refuse)


def test_the_policy_applies_without_an_agent_too(tmp_path: Path) -> None:
    for name, policy, expected in (
        ("fail", "*=ignore,CreateContainer/devices=fail", Refuse),
        ("ignore", IGNORE, None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        exchange = Exchange(folder, hold_seconds=0, policy=policy)
        try:
            requested = request("new", env="GPU-free")
            _, verdict = exchange.ask(CREATE, requested)
            assert isinstance(verdict, expected) if expected else verdict == FORWARD
        finally:
            exchange.close()


def test_an_agent_without_device_decisions_changes_nothing(hasty: Exchange) -> None:
    hasty.publish(EMPTY)
    requested = request("new", env="GPU-other")
    assert seen(hasty.ask(CREATE, requested)[1], requested) == (["GPU-other"], [])


def test_a_privileged_container_is_reported(hasty: Exchange) -> None:
    requested = request("own", env="all")
    requested.config.linux.security_context.privileged = True
    assert seen(hasty.ask(CREATE, requested)[1], requested) == (["GPU-own"], [])
    assert hasty.admission.outcomes.failed_open == {(CREATE, "devices", "privileged"): 1}


@pytest.mark.parametrize(("uid", "allocated"), [("own", True), ("new", False)])
def test_an_unreadable_carrier_fails_every_pod_on_a_node_with_devices(
    hasty: Exchange, uid: str, allocated: bool
) -> None:
    message = request(uid, allocated=allocated)
    call = Call(b"/runtime.v1.RuntimeService/CreateContainer", time.monotonic())
    broken = message.SerializeToString() + bytes([0x12, 5, 0x8A, 0x01, 2, 0x0A, 0x7F])
    answer = hasty.gate.request(call, broken)
    assert isinstance(answer, Refuse)
    assert answer.message.endswith("it could take device GPU-other")
