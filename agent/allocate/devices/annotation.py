"""An allocation as the annotation that a pod carries from then on (koordinator.md §1.2)."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.allocate.devices.allocation import Allocation
from agent.allocate.devices.need import Chosen


def device_allocated(allocation: Allocation) -> str:
    """The content of `device-allocated`, as `model.device_allocation` reads it back."""
    body = {
        kind: [_device(each) for each in chosen]
        for kind, chosen in sorted(allocation.devices.items())
    }
    return msgspec.json.encode(body).decode()


def _device(chosen: Chosen) -> dict[str, Any]:
    device: dict[str, Any] = {
        "minor": chosen.minor,
        "resources": {name: str(amount) for name, amount in sorted(chosen.resources.items())},
    }
    if chosen.uuid:
        device["id"] = chosen.uuid
    if chosen.functions:
        device["extension"] = {"vfs": list(chosen.functions)}
    return device
