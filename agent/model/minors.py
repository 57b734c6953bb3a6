"""Numbers of devices that stay: a pod's allocation names its devices by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.model import jsontext
from agent.model.annotations import AnnotationError
from agent.model.devices import Device
from agent.model.jsontext import JsonError

GONE_MINORS: Final = "topolet.io/gone-device-minors"
"""On the Device: `{"rdma": {"0000:1a:00.0": 0}}`, the numbers that devices had which are gone."""

MOST: Final = 1024
"""Devices of one type that are remembered, and as many as a node can have."""

Minors = dict[str, dict[str, int]]
"""By type and id of a device."""


def numbered(ids: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    """Each id with its number: the one that it is known by, or the lowest that nobody has or had.
    New ids get theirs in the order given. Of two ids known by one number the first keeps it."""
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
    """What a Device object tells of numbers; its devices are heard before those that are gone."""
    found = {kind: dict(ids) for kind, ids in gone.items()}
    for device in published:
        found.setdefault(device.type, {})[device.uuid] = device.minor
    return found


def gone(before: Minors, devices: Iterable[Device]) -> Minors:
    """What is to be remembered beside these devices, the lowest numbers where it is too much."""
    present = {(device.type, device.uuid) for device in devices}
    found: Minors = {}
    for kind, ids in sorted(before.items()):
        absent = [(number, each) for each, number in ids.items() if (kind, each) not in present]
        if absent:
            found[kind] = {each: number for number, each in sorted(absent)[:MOST]}
    return found


def decode(annotations: Mapping[str, str]) -> Minors:
    """Of a Device. Raises AnnotationError."""
    text = annotations.get(GONE_MINORS)
    try:
        return jsontext.decode(_decoder, text) if text else {}
    except JsonError as error:
        raise AnnotationError(GONE_MINORS, str(error)) from None


def encode(minors: Minors) -> dict[str, str]:
    """The annotation, none where nothing is gone."""
    return {GONE_MINORS: msgspec.json.encode(minors, order="sorted").decode()} if minors else {}


_decoder: Final = msgspec.json.Decoder(Minors)
