"""A pod's request for devices, checked, converted to units of a card and divided over cards.

One table defines which resources may be requested together, and how they are converted
(Koordinator: pkg/scheduler/plugins/deviceshare/utils.go, ValidateDeviceRequest and
ConvertDeviceRequest). Amounts are whole units: percent of a card, bytes of memory, devices.

GPUs, RDMA devices and FPGAs are the only types that this module knows. Any other extended resource
is a device resource if its name is in Koordinator's domain, or if a Device object of the cluster
lists it; the node's Device object has its type (`allocate.devices.need`).
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from agent.model.devices.device_allocation import (
    DevicePreferences,
    device_preferences,
)
from agent.model.devices.device_object import (
    DOMAIN,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    RESOURCE_OF,
    DeviceType,
)
from agent.model.pod.annotations import BATCH_CPU_NAMES, BATCH_MEMORY_NAMES

_NVIDIA_GPU: Final = "nvidia.com/gpu"
_AMD_GPU: Final = "amd.com/gpu"
_HYGON_DCU: Final = "dcu.com/gpu"
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"

CARD_RESOURCES: Final = frozenset((_NVIDIA_GPU, _AMD_GPU, _HYGON_DCU))
"""Whole cards, by the names of device plugins."""

FULL: Final = 100
"""Percent of one device."""


class RequestFault(enum.StrEnum):
    UNIT = "unit"
    """More than one device, but not a whole number of devices."""
    COMBINATION = "combination"
    """Resources that can't be requested together, or not in these amounts."""
    UNEVEN = "uneven"
    """The amount can't be divided into equal whole shares for the cards that another resource
    requests."""


class RequestError(ValueError):
    """A request that no node can serve. Its message has `resources`, the amounts for the device
    type at fault."""

    def __init__(self, reason: RequestFault, resources: Mapping[str, int]) -> None:
        requested = ", ".join(f"{name}: {amount}" for name, amount in sorted(resources.items()))
        super().__init__(f"{_SAID[reason]}: {requested}")
        self.reason = reason


_SAID: Final = {
    RequestFault.UNIT: "more than 100 has to be a multiple of 100",
    RequestFault.COMBINATION: "device resources that can't be requested together",
    RequestFault.UNEVEN: "cards would get unequal shares",
}


class TypeRequest(msgspec.Struct, frozen=True):
    """The request for one device type."""

    total: dict[str, int]
    """The pod's converted total."""
    count: int
    per: dict[str, int]
    """The equal part of each device."""
    shared: bool = False
    """The pod gets less than whole cards, or memory by the byte."""
    whole: dict[str, int] = {}
    """The amounts of a whole device, FULL where it has none."""


class DeviceRequest(msgspec.Struct, frozen=True):
    """What a pod requests of devices, by device type, and its preferences."""

    requests: dict[str, TypeRequest]
    preferences: DevicePreferences = DevicePreferences()
    listed: dict[str, int] = {}
    """The amounts of resources whose type only the node's Device object has."""


class _Rule(enum.Enum):
    CARDS = enum.auto()
    """Whole cards: 100 of core and 100 of memory ratio each."""
    GPU = enum.auto()
    """Percent of core and of memory ratio at once."""
    PERCENT = enum.auto()
    SHARED = enum.auto()
    NPU_SHARED = enum.auto()


_RULES: Final = {
    frozenset(names): rule
    for rule, combinations in {
        _Rule.CARDS: [[name] for name in sorted(CARD_RESOURCES)],
        _Rule.GPU: ([GPU],),
        _Rule.PERCENT: (
            [GPU_MEMORY],
            [GPU_MEMORY_RATIO],
            [GPU_CORE, GPU_MEMORY],
            [GPU_CORE, GPU_MEMORY_RATIO],
            [NPU_CORE, GPU_MEMORY_RATIO],
        ),
        _Rule.SHARED: (
            [GPU_SHARED, GPU_MEMORY],
            [GPU_SHARED, GPU_MEMORY_RATIO],
            [GPU_SHARED, GPU_CORE, GPU_MEMORY],
            [GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO],
        ),
        _Rule.NPU_SHARED: (
            [GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY],
            [GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY],
        ),
    }.items()
    for names in combinations
}
_GPU_NAMES: Final = frozenset().union(*_RULES)
_NAMES: Final = _GPU_NAMES.union(RESOURCE_OF.values())
_NO_DEVICES: Final = frozenset((*BATCH_CPU_NAMES, *BATCH_MEMORY_NAMES))
"""Koordinator had these in its own domain before version 1.0."""


def device_request(
    amounts: Mapping[str, int], annotations: Mapping[str, str], listed: Container[str] = ()
) -> DeviceRequest | None:
    """The pod's total requests for devices, None if it requests no device.

    `listed`: further resources that are devices, as in `names`.

    Raises RequestError, AnnotationError."""
    requested = type_requests(amounts)
    others = {
        name: amounts[name] for name in sorted(names(amounts, listed) - _NAMES) if amounts[name] > 0
    }
    if not requested and not others:
        return None
    return DeviceRequest(requested, device_preferences(annotations), others)


def type_requests(amounts: Mapping[str, int]) -> dict[str, TypeRequest]:
    """The requests by device type in these amounts; other resources and zeros are ignored. For RDMA
    and FPGA a hint may change the count (see `hinted`). Raises RequestError."""
    gpu = {name: amounts[name] for name in _GPU_NAMES & amounts.keys() if amounts[name] > 0}
    cards = _translated(gpu) if gpu else {}
    found = {}
    for kind, name in RESOURCE_OF.items():
        amount = amounts.get(name, 0)
        if amount > 0:
            if not _is_unit(amount):
                raise RequestError(RequestFault.UNIT, {name: amount})
            count = amount // FULL if amount > FULL else 1
            found[kind] = TypeRequest({name: amount}, count, {name: amount // count})
    return {DeviceType.GPU.value: _shares(cards), **found} if cards else found


def names(resources: Iterable[str], listed: Container[str] = ()) -> frozenset[str]:
    """The device resources among these resources: those of known types, those of Koordinator's
    domain, and those that Device objects of the cluster list (`listed`)."""
    return frozenset(
        name
        for name in resources
        if name in _NAMES or name in listed or (name.startswith(DOMAIN) and name not in _NO_DEVICES)
    )


def _translated(requested: dict[str, int]) -> dict[str, int]:
    """Raises RequestError."""
    if not _is_unit(requested.get(GPU, 0)):
        raise RequestError(RequestFault.UNIT, requested)
    if not _allowed(requested):
        raise RequestError(RequestFault.COMBINATION, requested)
    match _RULES[frozenset(requested)]:
        case _Rule.CARDS:
            (cards,) = requested.values()
            return dict.fromkeys((GPU_CORE, GPU_MEMORY_RATIO), cards * FULL)
        case _Rule.GPU:
            return dict.fromkeys((GPU_CORE, GPU_MEMORY_RATIO), requested[GPU])
        case _:
            return requested


def _allowed(requested: dict[str, int]) -> bool:
    parts = [requested[name] for name in (GPU_CORE, GPU_MEMORY_RATIO) if name in requested]
    match _RULES.get(frozenset(requested)):
        case _Rule.CARDS | _Rule.GPU:
            return True
        case _Rule.PERCENT:
            return all(map(_is_unit, parts))
        case _Rule.SHARED:
            cards = requested[GPU_SHARED]
            return all(part % cards == 0 and part // cards <= FULL for part in parts)
        case _Rule.NPU_SHARED:
            return requested[GPU_SHARED] == 1 and requested.get(NPU_DVPP, 0) <= FULL
        case None:
            return False


def _shares(total: dict[str, int]) -> TypeRequest:
    """Divides the total over the number of shared cards, else over as many cards as the resource
    that needs most of them."""
    cards = total.get(GPU_SHARED) or max(
        1, *(total.get(name, 0) // FULL for name in (GPU_CORE, GPU_MEMORY_RATIO))
    )
    if any(total.get(name, 0) % cards for name in (GPU_CORE, GPU_MEMORY_RATIO, NPU_CORE)):
        raise RequestError(RequestFault.UNEVEN, total)
    per = {name: amount // cards for name, amount in total.items() if name != GPU_SHARED}
    shared = per.get(GPU_MEMORY_RATIO, 0) < FULL
    return TypeRequest(total, cards, per, shared)


def _is_unit(amount: int) -> bool:
    return amount <= FULL or amount % FULL == 0
