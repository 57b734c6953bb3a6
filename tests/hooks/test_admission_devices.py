"""Devices of a container to create, and the failure policy for devices."""

from __future__ import annotations

import msgspec
import pytest

from agent.hooks.carriers import Carried
from agent.hooks.requests import UNCHANGED, Changes, Creation, Verdict
from agent.model.devices.visibility import VISIBLE_DEVICES, NodeDevice, NodeVisibility
from agent.model.settings.frontends import CREATE
from agent.model.verdict import Refuse, Wait
from tests.hooks.admission_harness import (
    DEFAULT_POLICY,
    HOLD_SECONDS,
    IGNORE,
    AdmissionHarness,
    container,
    pod,
)
from tests.hooks.snapshots import EMPTY, WITH_DEVICES

CDI = "nvidia.com/gpu="
FREE = Carried(environment=("GPU-free",))
OTHER = Carried(environment=("GPU-other",))


def creation(
    harness: AdmissionHarness, uid: str, name: str = "main", *, allocated: bool = True
) -> Creation:
    request = msgspec.structs.replace(
        container(uid, cpus="0-3"), pod=pod(uid, allocated=allocated), container_name=name
    )
    return harness.creation(request)


def variable(answer: Verdict, carried: Carried) -> tuple[str, ...]:
    """The values of NVIDIA_VISIBLE_DEVICES that the runtime receives."""
    assert isinstance(answer, Changes)
    values = dict(answer.environment)
    return (values[VISIBLE_DEVICES],) if VISIBLE_DEVICES in values else carried.environment


@pytest.mark.parametrize(
    ("uid", "name", "allocated", "carried", "value"),
    [
        pytest.param("own", "main", True, OTHER, "GPU-own", id="the plugin's is replaced"),
        pytest.param("own", "sidecar", True, Carried(("all",)), "void", id="a sidecar has none"),
        pytest.param("new", "main", False, FREE, "GPU-free", id="a free one is kept"),
    ],
)
def test_devices_that_the_agent_decided(
    harness: AdmissionHarness, uid: str, name: str, allocated: bool, carried: Carried, value: str
) -> None:
    harness.publish(WITH_DEVICES)
    answer = harness.create(creation(harness, uid, name, allocated=allocated), carried)
    assert variable(answer, carried) == (value,)
    assert not harness.outcomes.failed


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, IGNORE])
@pytest.mark.parametrize("carried", [OTHER, Carried(cdi_devices=(f"{CDI}0",))])
def test_no_pod_gets_another_pods_card(
    monkeypatch: pytest.MonkeyPatch, policy: str, carried: Carried
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(WITH_DEVICES)
    of_pod = creation(harness, "new", allocated=False)
    answer = harness.create(of_pod, carried)
    assert isinstance(answer, Refuse)
    assert "pod ns/new" in answer.message
    assert "GPU-other" in answer.message
    assert harness.outcomes.failed == {(CREATE, "devices", "device_taken"): 1}
    assert of_pod.assumed is None, "a refused creation holds nothing"


NOT_HONORED = "pod ns/lost: gpu 7 is not on this node"


@pytest.mark.parametrize(
    ("policy", "carried", "value"),
    [
        (DEFAULT_POLICY, FREE, None),
        (IGNORE, FREE, "GPU-free"),
        (IGNORE, Carried(), "void"),
        (IGNORE, OTHER, None),
        (IGNORE, Carried(("all",)), None),
    ],
)
def test_a_policy_may_keep_the_plugins_choice_but_not_another_pods_card(
    monkeypatch: pytest.MonkeyPatch, policy: str, carried: Carried, value: str | None
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(WITH_DEVICES)
    answer = harness.create(creation(harness, "lost"), carried)
    key = CREATE, "devices", "not_honored"
    if value is not None:
        assert variable(answer, carried) == (value,)
    else:
        assert isinstance(answer, Refuse)
    if policy == IGNORE:
        assert harness.outcomes.failed_open == {key: 1}
    else:
        assert isinstance(answer, Refuse)
        assert answer.message == NOT_HONORED
        assert harness.outcomes.failed == {key: 1}


@pytest.mark.parametrize("without", ["decision", "snapshot"])
@pytest.mark.parametrize(
    ("policy", "carried", "refused"),
    [(DEFAULT_POLICY, FREE, True), (IGNORE, FREE, False), (IGNORE, OTHER, True)],
)
def test_an_allocated_pod_waits_until_the_agent_has_decided(
    monkeypatch: pytest.MonkeyPatch, without: str, policy: str, carried: Carried, refused: bool
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    if without == "decision":
        harness.publish(msgspec.structs.replace(WITH_DEVICES, pods={}))
    of_pod = creation(harness, "new")
    assert harness.create(of_pod, carried) == Wait()
    assert harness.notifications() == [of_pod.request.pod]
    harness.wait(HOLD_SECONDS)
    answer = harness.create(of_pod, carried)
    if without == "snapshot" and policy == IGNORE:
        assert answer == UNCHANGED, "the node may have no devices"
    elif refused:
        assert isinstance(answer, Refuse)
    else:
        assert variable(answer, carried) == carried.environment
    if policy == DEFAULT_POLICY:
        assert isinstance(answer, Refuse)
        assert "pod ns/new: no devices after 60 s: the agent has" in answer.message


@pytest.mark.parametrize(
    ("node", "inspected"),
    [
        (NodeVisibility(), False),
        (NodeVisibility((NodeDevice("GPU-other"),)), False),
        # Several processes may open its device files.
        (NodeVisibility((NodeDevice("0000:17:00.0", holders=("other",)),)), False),
        (NodeVisibility((NodeDevice("GPU-other", holders=("other",)),)), True),
        (NodeVisibility(unrequested_gpus="hide"), True),
    ],
)
def test_a_container_without_a_decision_is_inspected_if_the_node_has_devices(
    harness: AdmissionHarness, node: NodeVisibility, inspected: bool
) -> None:
    def carried() -> Carried:
        nonlocal read
        read = True
        return Carried()

    read = False
    harness.publish(msgspec.structs.replace(EMPTY, devices=node))
    harness.admission.create(creation(harness, "new", allocated=False), carried)
    assert read is inspected


@pytest.mark.parametrize("without", ["device decisions", "an included container"])
def test_nothing_is_changed_without(harness: AdmissionHarness, without: str) -> None:
    excluding = msgspec.structs.replace(WITH_DEVICES, excluded=("ns/*/main",))
    harness.publish(EMPTY if without == "device decisions" else excluding)
    assert harness.create(creation(harness, "new"), OTHER) == UNCHANGED


def test_a_privileged_container_is_reported(harness: AdmissionHarness) -> None:
    harness.publish(WITH_DEVICES)
    carried = Carried(("all",), privileged=True)
    assert variable(harness.create(creation(harness, "own"), carried), carried) == ("GPU-own",)
    assert harness.outcomes.failed_open == {(CREATE, "devices", "privileged"): 1}
