"""Devices, and what pods say of them, as both kinds of device vectors write them.

The differences that both kinds have are here too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agent.conformance.files import Difference
from agent.model import deviceobject
from agent.model.device_allocation import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    DeviceWishes,
    wishes,
)
from agent.model.deviceobject import Device
from agent.model.quantities import whole

UNEVEN_SHARES: Final = Difference(
    "uneven-shares",
    "core that does not part into equal shares for the cards that memory asks for is cut down "
    "(core 100 on three cards is 33 each); ours refuses it",
    listed=True,
)
CORE_OF_SEVERAL: Final = Difference(
    "core-of-several-cards",
    "core of more than one card with memory of one or by the byte is asked of a single card, which "
    "never fits; ours spreads it over as many cards",
    listed=True,
)
HEALTHY_ALONE: Final = Difference(
    "for-all-healthy",
    "ApplyForAll counts devices that are ill, and never fits where one is; ours is for all that "
    "are healthy",
    listed=True,
)
_KEYS: Final = {
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
