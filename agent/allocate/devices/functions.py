"""Virtual functions of a device, one of which a pod may ask for."""

from __future__ import annotations

import re
from collections.abc import Set

from agent.model.devices import Device, VirtualFunction
from agent.model.selectors import LabelSelector


def function(device: Device, selector: LabelSelector, taken: Set[str]) -> VirtualFunction | None:
    """The first by bus id that the selector's groups have and nobody holds."""
    free = (
        each
        for group in device.vf_groups
        if selector.matches(group.labels)
        for each in group.vfs
        if each.bus not in taken
    )
    return min(free, key=_place, default=None)


def _place(each: VirtualFunction) -> tuple[list[int], str]:
    """Numbers of a bus id are hexadecimal: function .10 comes after .2."""
    return [int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", each.bus)], each.bus
