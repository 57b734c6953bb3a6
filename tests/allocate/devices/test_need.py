"""Device types without a rule: the Device object of the node defines their resources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from agent.allocate.devices.allocation import allocate, device_allocated, node_score
from agent.allocate.devices.inventory import inventory, node_devices
from agent.allocate.devices.need import listed_resources, typed
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_allocation import DeviceAmounts
from agent.model.devices.device_object import Device, DeviceTopology, VfGroup, VirtualFunction
from agent.model.devices.device_request import (
    DeviceRequest,
    RequestError,
    RequestFault,
    TypeRequest,
    device_request,
)
from tests.allocate.devices.builders import CARDS, HINT, JOINT, RDMA, gpu, nic

FPGA = "koordinator.sh/fpga"
XPU = "example.com/xpu"
CORE = "example.com/xpu-core"
MEMORY = "example.com/xpu-memory"
GIB = 1 << 30


def device(kind: str, minor: int, resources: Mapping[str, int], **more: Any) -> Device:
    return Device(kind, f"{kind}-{minor}", minor, dict(resources), **more)


def xpus(*resources: Mapping[str, int]) -> list[Device]:
    return [device("xpu", minor, each) for minor, each in enumerate(resources)]


def requested(
    devices: list[Device],
    amounts: Mapping[str, int],
    annotations: Mapping[str, object] | None = None,
) -> DeviceRequest | Refusal:
    """The request of a pod in a cluster with one node, which has these devices."""
    texts = {key: json.dumps(value) for key, value in (annotations or {}).items()}
    request = device_request(amounts, texts, listed_resources(devices))
    assert request is not None
    return typed(request, inventory(devices))


PERCENT = xpus({XPU: 100}, {XPU: 100})
COUNTED = xpus({XPU: 1}, {XPU: 1}, {XPU: 1})
PARTED = xpus(*[{CORE: 100, MEMORY: 16 * GIB}] * 4)


@pytest.mark.parametrize(
    ("devices", "amounts", "count", "per"),
    [
        (PERCENT, {XPU: 1}, 1, {XPU: 1}),
        (PERCENT, {XPU: 100}, 1, {XPU: 100}),
        (PERCENT, {XPU: 200}, 2, {XPU: 100}),
        (PERCENT, {XPU: 500}, 5, {XPU: 100}),
        (COUNTED, {XPU: 1}, 1, {XPU: 1}),
        (COUNTED, {XPU: 3}, 3, {XPU: 1}),
        (PARTED, {CORE: 50}, 1, {CORE: 50}),
        (PARTED, {MEMORY: 32 * GIB}, 2, {MEMORY: 16 * GIB}),
        (PARTED, {CORE: 50, MEMORY: 4 * GIB}, 1, {CORE: 50, MEMORY: 4 * GIB}),
        (PARTED, {CORE: 200, MEMORY: 8 * GIB}, 2, {CORE: 100, MEMORY: 4 * GIB}),
        (PARTED, {CORE: 100, MEMORY: 64 * GIB}, 4, {CORE: 25, MEMORY: 16 * GIB}),
        # The largest device counts as a whole device.
        (xpus({MEMORY: 16}, {MEMORY: 32}), {MEMORY: 32}, 1, {MEMORY: 32}),
        (xpus({MEMORY: 16}, {MEMORY: 32}), {MEMORY: 64}, 2, {MEMORY: 32}),
        # A device whose amounts are 0, because a device plugin assigned it to a pod.
        (xpus({XPU: 0}, {XPU: 100}), {XPU: 200}, 2, {XPU: 100}),
    ],
    ids=str,
)
def test_amounts_are_divided_by_those_of_a_whole_device(
    devices: list[Device], amounts: dict[str, int], count: int, per: dict[str, int]
) -> None:
    found = requested(devices, {"cpu": 1000, **amounts})
    assert isinstance(found, DeviceRequest)
    request = found.requests["xpu"]
    assert (request.total, request.count, request.per) == (amounts, count, per)
    assert not found.listed


@pytest.mark.parametrize(
    ("devices", "amounts", "resource", "cause"),
    [
        ([], {"koordinator.sh/xpu": 1}, "koordinator.sh/xpu", Reason.DEVICE_NO_DEVICES),
        (
            PERCENT,
            {"koordinator.sh/vpu": 1, XPU: 1},
            "koordinator.sh/vpu",
            Reason.DEVICE_NO_DEVICES,
        ),
        (PERCENT, {XPU: 150}, XPU, Reason.DEVICE_UNEVEN),
        (PARTED, {CORE: 150}, CORE, Reason.DEVICE_UNEVEN),
        (PARTED, {CORE: 200, MEMORY: 1}, f"{CORE}, {MEMORY}", Reason.DEVICE_UNEVEN),
        (PARTED, {CORE: 150, MEMORY: 24 * GIB}, f"{CORE}, {MEMORY}", Reason.DEVICE_UNEVEN),
        (xpus({XPU: 0}), {XPU: 1}, XPU, Reason.DEVICE_INSUFFICIENT),
        (
            [device("xpu", 0, {XPU: 1}), device("vpu", 0, {XPU: 1})],
            {XPU: 1},
            XPU,
            Reason.DEVICE_SEVERAL_TYPES,
        ),
    ],
    ids=str,
)
def test_requests_that_a_node_cannot_satisfy_are_refused_with_the_resource(
    devices: list[Device], amounts: dict[str, int], resource: str, cause: Reason
) -> None:
    assert requested(devices, amounts) == Refusal(cause, resource)


@pytest.mark.parametrize(
    "amounts",
    [
        {"cpu": 1, "memory": 1},
        {"vendor.example/other": 1},
        {"hugepages-2Mi": 1},
        {XPU: 0},
        {"koordinator.sh/batch-cpu": 1000, "koordinator.sh/batch-memory": 1},
    ],
    ids=str,
)
def test_a_resource_that_no_device_object_lists_is_not_a_device(amounts: dict[str, int]) -> None:
    assert device_request(amounts, {}, listed_resources(PERCENT)) is None


def test_only_extended_resources_without_a_rule_are_listed() -> None:
    """A Device object must not redefine CPU and memory."""
    resources = {
        "example.com/xpu": 100,
        "memory": 1,
        "cpu": 1,
        "hugepages-2Mi": 1,
        "kubernetes.io/batch-cpu": 1,
        "koordinator.sh/xpu": 100,
        "nvidia.com/gpu": 1,
    }
    known = (gpu(0), nic(0), Device("xpu", "x", 0, resources))
    assert listed_resources(known) == {"example.com/xpu"}
    of_cards = msgspec.structs.replace(gpu(0), resources={**gpu(0).resources, "example.com/a": 1})
    assert listed_resources([of_cards]) == set()


def test_known_types_do_not_depend_on_the_device_object() -> None:
    request = device_request({CARDS: 1, RDMA: 1, FPGA: 200}, {}, {CARDS, RDMA, FPGA})
    assert request is not None
    assert (set(request.requests), request.listed) == ({"gpu", "rdma", "fpga"}, {})
    assert typed(request, inventory([])) is request


def test_a_further_resource_of_a_known_type_is_requested_with_it() -> None:
    bandwidth = "example.com/rdma-gbps"
    port = msgspec.structs.replace(nic(0), resources={RDMA: 100, bandwidth: 400})
    found = requested([port], {RDMA: 50, bandwidth: 100})
    assert isinstance(found, DeviceRequest)
    total = {RDMA: 50, bandwidth: 100}
    assert found.requests == {
        "rdma": TypeRequest(total, 1, total, whole={RDMA: 100, bandwidth: 400})
    }


def test_a_number_of_devices_is_the_same_in_all_resources() -> None:
    hint = {HINT: {"xpu": {"allocateStrategy": "RequestsAsCount"}}}
    assert requested(PARTED, {CORE: 2, MEMORY: 3}, hint) == Refusal(
        Reason.DEVICE_UNEVEN, f"{CORE}, {MEMORY}"
    )


class Case(msgspec.Struct, frozen=True):
    """A pod that requests FPGAs, and the FPGAs and GPUs of a node."""

    devices: list[Device]
    held: DeviceAmounts
    amounts: dict[str, int]
    annotations: dict[str, Any]
    numa: int | None
    strategy: Strategy | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    devices: list[Device] = []
    held: DeviceAmounts = {}
    for minor in range(draw(st.integers(1, 5))):
        pcie = draw(st.integers(0, 3))
        buses = [f"0000:{minor}{each}:00.1" for each in range(draw(st.integers(0, 2)))]
        group = VfGroup({"type": "fast"}, tuple(VirtualFunction(-1, bus) for bus in buses))
        devices.append(
            device(
                "fpga",
                minor,
                {FPGA: 100},
                healthy=draw(st.integers(0, 5)) > 0,
                topology=draw(st.none() | st.just(DeviceTopology(0, pcie // 2, f"p{pcie}"))),
                vf_groups=(group,) if buses else (),
                labels={"speed": draw(st.sampled_from(("high", "low")))},
            )
        )
        if percent := draw(st.sampled_from((0, 0, 30, 100))):
            held["fpga", minor] = {FPGA: percent}
    devices += [gpu(minor, minor // 2, f"p{minor}") for minor in range(draw(st.integers(0, 4)))]
    hint = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "selector": st.just({"matchLabels": {"speed": "high"}}),
                "vfSelector": st.just({"matchLabels": {"type": "fast"}}),
                "allocateStrategy": st.sampled_from(("ApplyForAll", "RequestsAsCount")),
                "exclusivePolicy": st.sampled_from(("DeviceLevel", "PCIeLevel")),
            },
        )
    )
    amounts = {FPGA: draw(st.sampled_from((1, 2, 50, 100, 150, 200, 300)))}
    annotations: dict[str, Any] = {HINT: {"fpga": hint}} if hint else {}
    if draw(st.booleans()):
        amounts[CARDS] = draw(st.integers(1, 2))
        scope = draw(st.sampled_from(("", "SamePCIe", "SameNUMANode")))
        types = draw(st.permutations(("gpu", "fpga")))
        annotations[JOINT] = {"deviceTypes": types, "requiredScope": scope}
    numa = draw(st.sampled_from((None, 1, 2, 3)))
    strategies = (None, Strategy.LEAST_ALLOCATED, Strategy.MOST_ALLOCATED)
    return Case(devices, held, amounts, annotations, numa, draw(st.sampled_from(strategies)))


def outcome(case: Case) -> object:
    """The annotation and the score, or the type and cause of a refusal."""
    texts = {key: json.dumps(value) for key, value in case.annotations.items()}
    node_ = node_devices(inventory(case.devices), case.held)
    try:
        request = device_request(case.amounts, texts, listed_resources(case.devices))
    except RequestError as error:
        return Reason.DEVICE_UNEVEN if error.reason is RequestFault.UNIT else error.reason
    assert request is not None
    found = typed(request, node_.inventory)
    if isinstance(found, Refusal):
        return found.reason
    chosen = allocate(node_, found, numa=case.numa, strategy=case.strategy)
    if isinstance(chosen, Refusal):
        return chosen.resource, chosen.reason
    strategy = case.strategy or Strategy.LEAST_ALLOCATED
    score = node_score(node_, found, chosen, strategy, numa=case.numa)
    return json.loads(device_allocated(chosen)), score


@pytest.mark.parametrize("resource", ["koordinator.sh/xpu", XPU, "a.b/c"])
@given(case=cases())
def test_an_unknown_type_is_allocated_like_fpgas(resource: str, case: Case) -> None:
    def renamed(value: Any) -> Any:
        text = json.dumps(msgspec.to_builtins(value)).replace(FPGA, resource)
        return json.loads(text.replace('"fpga', '"xpu'))

    other = Case(
        msgspec.convert(renamed(case.devices), list[Device]),
        {
            ("xpu" if kind == "fpga" else kind, minor): renamed(amounts)
            for (kind, minor), amounts in case.held.items()
        },
        renamed(case.amounts),
        renamed(case.annotations),
        case.numa,
        case.strategy,
    )
    expected = outcome(case)
    event("allocated" if isinstance(expected, tuple) and isinstance(expected[0], dict) else "not")
    assert json.loads(json.dumps(outcome(other))) == renamed(expected)
