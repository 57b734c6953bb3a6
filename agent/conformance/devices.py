"""Devices and what pods say of them, as both kinds of device vectors write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agent.model import deviceobject
from agent.model.device_wishes import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    DeviceWishes,
    wishes,
)
from agent.model.devices import Device
from agent.model.quantities import whole

_KEYS = {
    "hint": DEVICE_ALLOCATE_HINT,
    "joint": DEVICE_JOINT_ALLOCATE,
    "partitionSpec": GPU_PARTITION_SPEC,
}


def devices(written: list[dict[str, Any]]) -> tuple[Device, ...]:
    """Entries of `spec.devices`."""
    return deviceobject.decode({"metadata": {"name": "node"}, "spec": {"devices": written}})


def pod_wishes(pod: Mapping[str, Any]) -> DeviceWishes:
    """The contents of the pod's annotations."""
    return wishes(
        {key: msgspec.json.encode(pod[name]).decode() for name, key in _KEYS.items() if name in pod}
    )


def amounts(written: Mapping[str, Any] | None) -> dict[str, int]:
    """Quantities as whole numbers."""
    return {name: whole(quantity) for name, quantity in (written or {}).items()}
