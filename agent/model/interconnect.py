"""The links between a node's GPUs in its Device object: the driver's values, not scores.

`topolet.io/gpu-links` lists pairs of cards by minor, those with the same facts together:
`[{"ancestor": "switch", "nvlinks": 2, "mbPerSecond": 50000, "pairs": [[0, 1], [2, 3]]}]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec

from agent.model import bounds
from agent.model.annotations import AnnotationError, decoded
from agent.model.devices import Device, DeviceType
from agent.model.gpus import Ancestor, GpuPair

GPU_LINKS: Final = "topolet.io/gpu-links"


class Interlink(msgspec.Struct, frozen=True):
    """Of two cards, as in GpuPair."""

    ancestor: Ancestor | None = None
    links: int = 0
    mb_per_second: int = 0
    switched: bool = False


Interconnect = dict[tuple[int, int], Interlink]
"""By two minors, the lower first; a pair that is missing is unknown."""


def encode(devices: Iterable[Device], pairs: Iterable[GpuPair]) -> dict[str, str]:
    """The annotation, none where every pair of these devices is unknown. The text does not depend
    on the order of the pairs."""
    numbers = {each.uuid: each.minor for each in devices if each.type == DeviceType.GPU}
    by_facts: dict[Interlink, list[tuple[int, int]]] = {}
    for pair in pairs:
        one, two = numbers.get(pair.one), numbers.get(pair.two)
        facts = Interlink(pair.ancestor, pair.links, pair.mb_per_second, pair.switched)
        if one is not None and two is not None and facts != _UNKNOWN:
            by_facts.setdefault(facts, []).append((min(one, two), max(one, two)))
    entries = sorted(
        (_entry(facts, sorted(found)) for facts, found in by_facts.items()),
        key=lambda entry: entry.pairs,
    )
    return {GPU_LINKS: msgspec.json.encode(entries).decode()} if entries else {}


def decode(annotations: Mapping[str, str]) -> Interconnect:
    """The annotation of a Device object, empty when absent. Raises AnnotationError."""
    entries = decoded(annotations, GPU_LINKS, _decoder, bounds.OBJECT_LIST_BYTES) or ()
    found: Interconnect = {}
    for place, entry in enumerate(entries):
        ancestor = None if entry.ancestor is None else _ANCESTORS[entry.ancestor]
        facts = Interlink(ancestor, entry.nvlinks, entry.mb_per_second, entry.switched)
        for number, (one, two) in enumerate(entry.pairs):
            pair = min(one, two), max(one, two)
            where = f"[{place}].pairs[{number}]"
            if one == two:
                raise AnnotationError(GPU_LINKS, f"{where}: GPU {one} and itself")
            if pair in found:
                raise AnnotationError(GPU_LINKS, f"{where}: GPUs {one} and {two} a second time")
            found[pair] = facts
    return found


def pairs(told: Interconnect, devices: Iterable[Device]) -> tuple[GpuPair, ...]:
    """The pairs of these devices, by UUID; whether they may be peers is unknown."""
    names = {each.minor: each.uuid for each in devices if each.type == DeviceType.GPU}
    return tuple(
        GpuPair(
            names[one],
            names[two],
            facts.ancestor,
            None,
            facts.links,
            facts.mb_per_second,
            facts.switched,
        )
        for (one, two), facts in sorted(told.items())
        if one in names and two in names
    )


_UNKNOWN: Final = Interlink()

_Word = Literal["board", "switch", "switches", "hostBridge", "numaNode", "system"]
_ANCESTORS: Final[dict[_Word, Ancestor]] = {
    "board": Ancestor.BOARD,
    "switch": Ancestor.SWITCH,
    "switches": Ancestor.SWITCHES,
    "hostBridge": Ancestor.HOST_BRIDGE,
    "numaNode": Ancestor.NODE,
    "system": Ancestor.SYSTEM,
}
_WORDS: Final = {ancestor: word for word, ancestor in _ANCESTORS.items()}

_Minor = Annotated[int, msgspec.Meta(ge=0, lt=bounds.MOST_DEVICES)]
_MOST_LINKS: Final = 1_000
_FASTEST: Final = 10**9


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pairs: tuple[tuple[_Minor, _Minor], ...]
    ancestor: _Word | None = None
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=_MOST_LINKS)] = 0
    mb_per_second: Annotated[int, msgspec.Meta(ge=0, le=_FASTEST)] = 0
    switched: bool = False


_decoder: Final = msgspec.json.Decoder(tuple[_Entry, ...] | None)


def _entry(facts: Interlink, found: list[tuple[int, int]]) -> _Entry:
    word = None if facts.ancestor is None else _WORDS[facts.ancestor]
    return _Entry(tuple(found), word, facts.links, facts.mb_per_second, facts.switched)
