"""Numbers of devices that stay: a pod's allocation names its devices by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.annotations import decoded
from agent.model.devices import Device

GONE_MINORS: Final = "topolet.io/gone-device-minors"
"""On the Device: `{"rdma": {"0000:1a:00.0": 0}}`, the numbers that devices had which are gone."""

MOST: Final = bounds.MOST_DEVICES
"""Devices of one type that are remembered, and as many as a node can have."""

Minors = dict[str, dict[str, int]]
"""By type and id of a device."""


def numbered(ids: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    """Each id with its number: its known one, or the lowest that no id has or had. New ids get
    theirs in the given order. Of two ids with one known number the first keeps it."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, int] = {}
    used: set[int] = set()
    for each in wanted:
        number = known.get(each, -1)
        if 0 <= number < MOST and number not in used:
            found[each] = number
            used.add(number)
    used |= set(known.values())
    free = (number for number in range(len(wanted) + len(used)) if number not in used)
    for each in wanted:
        if each not in found:
            found[each] = next(free)
    return {each: found[each] for each in wanted}


def known(published: Iterable[Device], gone: Minors) -> Minors:
    """The numbers in a Device object; its devices before those that were removed."""
    found = {kind: dict(ids) for kind, ids in gone.items()}
    for device in published:
        found.setdefault(device.type, {})[device.uuid] = device.minor
    return found


def gone(before: Minors, devices: Iterable[Device]) -> Minors:
    """The numbers to keep in addition to these devices, the lowest ones when they are too many."""
    present = {(device.type, device.uuid) for device in devices}
    found: Minors = {}
    for kind, ids in sorted(before.items()):
        absent = [(number, each) for each, number in ids.items() if (kind, each) not in present]
        if absent:
            found[kind] = {each: number for number, each in sorted(absent)[:MOST]}
    return found


def decode(annotations: Mapping[str, str]) -> Minors:
    """Of a Device. Raises AnnotationError."""
    return decoded(annotations, GONE_MINORS, _decoder, bounds.OBJECT_LIST_BYTES) or {}


def encode(minors: Minors) -> dict[str, str]:
    """The annotation, none where nothing is gone."""
    return {GONE_MINORS: msgspec.json.encode(minors, order="sorted").decode()} if minors else {}


_Ids = Annotated[dict[str, int], msgspec.Meta(max_length=MOST)]
_decoder: Final = msgspec.json.Decoder(
    Annotated[dict[str, _Ids], msgspec.Meta(max_length=bounds.MOST_RESOURCES)] | None
)
