"""What a pair of GPUs is worth to each objective, by its links and by what the two share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.allocate.devices.inventory import Links, linked
from agent.allocate.devices.objectives import Objective
from agent.model.devices import Device, DeviceType
from agent.model.gpus import Ancestor, GpuPair

PCIE_MB_PER_SECOND: Final = {
    Ancestor.BOARD: 6_000,
    Ancestor.SWITCH: 5_000,
    Ancestor.SWITCHES: 4_000,
    Ancestor.HOST_BRIDGE: 3_000,
    Ancestor.NODE: 2_000,
    Ancestor.SYSTEM: 1_000,
}
"""An order rather than a measure: nearer is better, and any NVLink is better than PCIe."""

BESTEFFORT_POINTS: Final = {
    Ancestor.BOARD: 60,
    Ancestor.SWITCH: 50,
    Ancestor.SWITCHES: 40,
    Ancestor.HOST_BRIDGE: 30,
    Ancestor.NODE: 20,
    Ancestor.SYSTEM: 10,
}
BESTEFFORT_LINK: Final = 100
"""go-gpuallocator's points of a pair (devices.md §4.1)."""


def links_of(
    devices: Iterable[Device],
    pairs: Iterable[GpuPair],
    objective: Objective = Objective.BANDWIDTH,
) -> Links | None:
    """Of the GPUs among the devices, for their inventory; None where there are too many for a
    table. A pair that nobody tells of is worth nothing."""
    cards = sorted(
        (each for each in devices if each.type == DeviceType.GPU), key=lambda each: each.minor
    )
    place = {card.uuid: at for at, card in enumerate(cards)}
    rows = [[0] * len(cards) for _ in cards]
    for pair in pairs:
        one, two = place.get(pair.one), place.get(pair.two)
        if one is not None and two is not None:
            rows[one][two] = rows[two][one] = worth(pair, objective)
    return linked([card.minor for card in cards], tuple(map(tuple, rows)), objective)


def worth(pair: GpuPair, objective: Objective) -> int:
    """MB/s one way for `bandwidth`, points for `besteffort`."""
    if objective is Objective.BESTEFFORT:
        shared = 0 if pair.ancestor is None else BESTEFFORT_POINTS[pair.ancestor]
        return shared + BESTEFFORT_LINK * pair.links
    if pair.mb_per_second:
        return pair.mb_per_second
    return 0 if pair.ancestor is None else PCIE_MB_PER_SECOND[pair.ancestor]
