"""The links between a node's GPUs, and the sets of GPUs that are allocated together.

`topolet.io/gpu-links` of the Device object lists pairs of cards by minor, those with the same
values together: `[{"ancestor": "switch", "nvlinks": 2, "mbPerSecond": 50000, "pairs": [[0, 1],
[2, 3]]}]`. The values are the driver's, not scores.

Koordinator's annotation gpu-partitions is made from the links. The cards are halved again and
again, each time so that the slowest link within a half is as fast as possible, then so that the sum
of the links within both halves is highest; of equal halvings the one where the half with the lowest
card has the lowest numbers. A set is listed if a ring of links connects all its cards: collectives
run around it, at the speed of its slowest link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Annotated, Final, Literal

import msgspec

from agent.model import bounds
from agent.model.devices.device_object import GPU_PARTITIONS, Device, DeviceType
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.nrt.node_status import GPU_CORE
from agent.model.pod.annotations import AnnotationError, decoded

GPU_LINKS: Final = "topolet.io/gpu-links"


class Interlink(msgspec.Struct, frozen=True):
    """Of two cards, as in GpuPair."""

    ancestor: Ancestor | None = None
    links: int = 0
    mb_per_second: int = 0
    switched: bool = False


Interconnect = dict[tuple[int, int], Interlink]
"""By two minors, the lower first; a pair that is missing is unknown."""


def encode_links(devices: Iterable[Device], pairs: Iterable[GpuPair]) -> dict[str, str]:
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


def decode_links(annotations: Mapping[str, str]) -> Interconnect:
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


def gpu_pairs(told: Interconnect, devices: Iterable[Device]) -> tuple[GpuPair, ...]:
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


def _entry(facts: Interlink, found: list[tuple[int, int]]) -> _Entry:
    word = None if facts.ancestor is None else _WORDS[facts.ancestor]
    return _Entry(tuple(found), word, facts.links, facts.mb_per_second, facts.switched)


_NVLINK: Final = "NVLink"

_MOST_CARDS: Final = 16
"""Cards: a node has no more, and the halves of more could not be tried."""

_Matrix = tuple[tuple[int, ...], ...]


class Links(msgspec.Struct, frozen=True):
    """`bytes_per_second[i][j]`: one direction between the cards with minors `minors[i]` and
    `minors[j]`, by NVLinks, with a switch or without; 0 where only PCIe is."""

    minors: tuple[int, ...]
    bytes_per_second: _Matrix


class GpuPartition(msgspec.Struct, frozen=True):
    """`ring_bytes_per_second`: None for one card. `score`: sets of one size with a higher score are
    allocated first."""

    minors: tuple[int, ...]
    link: str = _NVLINK
    ring_bytes_per_second: int | None = None
    score: int = 1


PartitionTable = dict[int, tuple[GpuPartition, ...]]
"""By number of cards."""


def link_matrix(devices: Iterable[Device], pairs: Iterable[GpuPair]) -> Links:
    """The links of the cards that can be allocated whole, also unhealthy ones: their sets return
    with the card."""
    minors = {
        device.uuid: device.minor
        for device in sorted(devices, key=lambda each: each.minor)
        if device.type == DeviceType.GPU and device.resources.get(GPU_CORE)
    }
    place = {uuid: at for at, uuid in enumerate(minors)}
    rows = [[0] * len(minors) for _ in minors]
    for pair in pairs:
        one, two = place.get(pair.one), place.get(pair.two)
        if one is not None and two is not None:
            rows[one][two] = rows[two][one] = pair.mb_per_second * 10**6
    return Links(tuple(minors.values()), tuple(map(tuple, rows)))


def gpu_partitions(links: Links) -> PartitionTable:
    """Empty without links between cards, and for more than MOST cards. A link whose two ends differ
    is as fast as the slower one. Raises ValueError for a matrix that is not square."""
    count = len(links.minors)
    rows = links.bytes_per_second
    if len(rows) != count or any(len(row) != count for row in rows):
        raise ValueError(f"links of {count} GPUs: not a row and a column each")
    if len(set(links.minors)) != count:
        raise ValueError(f"links of GPUs {links.minors}: one twice")
    if count > _MOST_CARDS:
        return {}
    order = sorted(range(count), key=links.minors.__getitem__)
    matrix = tuple(tuple(min(rows[i][j], rows[j][i]) for j in order) for i in order)
    numbers = sorted(links.minors)
    rings: dict[int, list[tuple[tuple[int, ...], int | None]]] = {}
    for members in _halves(matrix, tuple(range(count))):
        ring = _ring(matrix, members) if len(members) > 1 else None
        if ring != 0:
            minors = tuple(numbers[each] for each in members)
            rings.setdefault(len(members), []).append((minors, ring))
    if not any(size > 1 for size in rings):
        return {}
    return {size: _scored(sets) for size, sets in sorted(rings.items())}


def encode_partitions(table: PartitionTable) -> dict[str, str]:
    """The annotation, none of an empty table. Bandwidth in bytes per second."""
    body = {
        str(size): [
            {
                "minors": list(each.minors),
                "gpuLinkType": each.link,
                **(
                    {}
                    if each.ring_bytes_per_second is None
                    else {"ringBusBandwidth": _quantity(each.ring_bytes_per_second)}
                ),
                "allocationScore": each.score,
            }
            for each in partitions
        ]
        for size, partitions in sorted(table.items())
    }
    return {GPU_PARTITIONS: msgspec.json.encode(body).decode()} if body else {}


_decoder: Final = msgspec.json.Decoder(tuple[_Entry, ...] | None)


def _halves(matrix: _Matrix, members: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The set itself and all that it is parted into, in order of their lowest cards."""
    if not members:
        return
    yield members
    if len(members) == 1:
        return
    low = _best_half(matrix, members)
    high = tuple(each for each in members if each not in low)
    for half in sorted((low, high)):
        yield from _halves(matrix, half)


def _best_half(matrix: _Matrix, members: tuple[int, ...]) -> tuple[int, ...]:
    """The half with the lowest card; of an odd number it is the greater half."""
    first, *others = members
    size = (len(members) + 1) // 2
    best: tuple[int, int] | None = None
    chosen = members
    for rest in combinations(others, size - 1):
        half = (first, *rest)
        other = [each for each in others if each not in rest]
        pairs = [matrix[i][j] for i, j in (*combinations(half, 2), *combinations(other, 2))]
        worth = (min(pairs, default=0), sum(pairs))
        if best is None or worth > best:
            best, chosen = worth, half
    return chosen


def _ring(matrix: _Matrix, members: tuple[int, ...]) -> int:
    """The slowest link of the best way around all members, 0 where there is none."""
    speeds = sorted({matrix[i][j] for i, j in combinations(members, 2)} - {0}, reverse=True)
    for speed in speeds:
        linked = [
            sum(1 << at for at, j in enumerate(members) if i != j and matrix[i][j] >= speed)
            for i in members
        ]
        if _leads_around(linked):
            return speed
    return 0


def _leads_around(linked: list[int]) -> bool:
    """Whether a way leads through all places and back; `linked`: masks of the neighbours. Two
    places need but one link between them."""
    count = len(linked)
    if all(2 * each.bit_count() >= count for each in linked):
        return True  # Dirac's theorem, and the case of two.
    everyone = (1 << count) - 1
    ends = {1: 1}  # By the set of places passed since the first, those where a way may end.
    for _ in range(count - 1):
        longer: dict[int, int] = {}
        for passed, lasts in ends.items():
            for place in range(1, count):
                if not passed >> place & 1 and linked[place] & lasts:
                    longer[passed | 1 << place] = longer.get(passed | 1 << place, 0) | 1 << place
        ends = longer
    return bool(ends.get(everyone, 0) & linked[0])


def _scored(sets: list[tuple[tuple[int, ...], int | None]]) -> tuple[GpuPartition, ...]:
    """The faster, the higher."""
    speeds = sorted({ring or 0 for _, ring in sets})
    return tuple(
        GpuPartition(minors, ring_bytes_per_second=ring, score=1 + speeds.index(ring or 0))
        for minors, ring in sorted(sets)
    )


def _quantity(amount: int) -> str:
    for power, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if amount % power == 0:
            return f"{amount // power}{suffix}"
    return str(amount)
