"""The links between a node's GPUs, and the sets of GPUs that are allocated together.

The annotation `topolet.io/gpu-links` of the Device object lists pairs of cards by minor; pairs with
the same values are in one entry: `[{"ancestor": "switch", "nvlinks": 2, "mbPerSecond": 50000,
"pairs": [[0, 1], [2, 3]]}]`. The values are the driver's, not scores.

Koordinator's annotation gpu-partitions is computed from the links. The set of all cards is divided
into halves, and these again, down to single cards. Each division makes the slowest link within the
halves as fast as possible, then the sum of the links within both halves as high as possible; of
equal divisions the one counts in which the half with the lowest card has the lowest numbers. A set
is listed if a ring of links connects all its cards: collective operations run around the ring, at
the speed of its slowest link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Annotated, Final, Literal

import msgspec

from agent.model import bounds
from agent.model.devices.device_object import GPU_CORE, GPU_PARTITIONS, Device, DeviceType
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.pod.annotations import AnnotationError, decoded

GPU_LINKS: Final = "topolet.io/gpu-links"


class GpuLink(msgspec.Struct, frozen=True):
    """The link between two cards; fields as in GpuPair."""

    ancestor: Ancestor | None = None
    links: int = 0
    mb_per_second: int = 0
    switched: bool = False


Interconnect = dict[tuple[int, int], GpuLink]
"""By two minors, the lower first. The link of a missing pair is unknown."""


def encode_links(devices: Iterable[Device], pairs: Iterable[GpuPair]) -> dict[str, str]:
    """The annotation, empty if nothing is known about any pair of these devices. The text does not
    depend on the order of the pairs."""
    numbers = {each.uuid: each.minor for each in devices if each.type == DeviceType.GPU}
    by_link: dict[GpuLink, list[tuple[int, int]]] = {}
    for pair in pairs:
        one, two = numbers.get(pair.one), numbers.get(pair.two)
        link = GpuLink(pair.ancestor, pair.links, pair.mb_per_second, pair.switched)
        if one is not None and two is not None and link != _UNKNOWN:
            by_link.setdefault(link, []).append((min(one, two), max(one, two)))
    entries = sorted(
        (_entry(link, sorted(found)) for link, found in by_link.items()),
        key=lambda entry: entry.pairs,
    )
    return {GPU_LINKS: msgspec.json.encode(entries).decode()} if entries else {}


def decode_links(annotations: Mapping[str, str]) -> Interconnect:
    """The links in the annotation of a Device object, empty if it is absent. Raises
    AnnotationError."""
    entries = decoded(annotations, GPU_LINKS, _decoder, bounds.OBJECT_LIST_BYTES) or ()
    found: Interconnect = {}
    for place, entry in enumerate(entries):
        ancestor = None if entry.ancestor is None else _ANCESTORS[entry.ancestor]
        link = GpuLink(ancestor, entry.nvlinks, entry.mb_per_second, entry.switched)
        for number, (one, two) in enumerate(entry.pairs):
            pair = min(one, two), max(one, two)
            where = f"[{place}].pairs[{number}]"
            if one == two:
                raise AnnotationError(GPU_LINKS, f"{where}: GPU {one} is paired with itself")
            if pair in found:
                raise AnnotationError(GPU_LINKS, f"{where}: GPUs {one} and {two} are listed twice")
            found[pair] = link
    return found


def gpu_pairs(links: Interconnect, devices: Iterable[Device]) -> tuple[GpuPair, ...]:
    """The pairs of these devices by UUID; `peer` is unknown."""
    names = {each.minor: each.uuid for each in devices if each.type == DeviceType.GPU}
    return tuple(
        GpuPair(
            names[one],
            names[two],
            link.ancestor,
            None,
            link.links,
            link.mb_per_second,
            link.switched,
        )
        for (one, two), link in sorted(links.items())
        if one in names and two in names
    )


_UNKNOWN: Final = GpuLink()

_Name = Literal["board", "switch", "switches", "hostBridge", "numaNode", "system"]
_ANCESTORS: Final[dict[_Name, Ancestor]] = {
    "board": Ancestor.BOARD,
    "switch": Ancestor.SWITCH,
    "switches": Ancestor.SWITCHES,
    "hostBridge": Ancestor.HOST_BRIDGE,
    "numaNode": Ancestor.NODE,
    "system": Ancestor.SYSTEM,
}
_NAMES: Final = {ancestor: name for name, ancestor in _ANCESTORS.items()}

_Minor = Annotated[int, msgspec.Meta(ge=0, lt=bounds.MAX_DEVICES)]
_MAX_LINKS: Final = 1_000
_FASTEST: Final = 10**9


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pairs: tuple[tuple[_Minor, _Minor], ...]
    ancestor: _Name | None = None
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=_MAX_LINKS)] = 0
    mb_per_second: Annotated[int, msgspec.Meta(ge=0, le=_FASTEST)] = 0
    switched: bool = False


def _entry(link: GpuLink, found: list[tuple[int, int]]) -> _Entry:
    name = None if link.ancestor is None else _NAMES[link.ancestor]
    return _Entry(tuple(found), name, link.links, link.mb_per_second, link.switched)


_NVLINK: Final = "NVLink"

_MAX_CARDS: Final = 16
"""The most cards of a node for which all halvings can be tried."""

_Matrix = tuple[tuple[int, ...], ...]


class Links(msgspec.Struct, frozen=True):
    """`bytes_per_second[i][j]`: the NVLink bandwidth from the card `minors[i]` to the card
    `minors[j]`, through a switch or not; 0 if they are linked only by PCIe."""

    minors: tuple[int, ...]
    bytes_per_second: _Matrix


class GpuPartition(msgspec.Struct, frozen=True):
    """A set of cards that may be allocated together."""

    minors: tuple[int, ...]
    link: str = _NVLINK
    ring_bytes_per_second: int | None = None
    """None for a set of one card."""
    score: int = 1
    """Of the sets of one size, the highest is allocated first."""


PartitionTable = dict[int, tuple[GpuPartition, ...]]
"""By number of cards."""


def link_matrix(devices: Iterable[Device], pairs: Iterable[GpuPair]) -> Links:
    """The links of the cards that can be allocated whole. Unhealthy cards are included, so that the
    sets do not change with the health of a card."""
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
    """The table, empty without links between cards and for more than `_MAX_CARDS` cards. If the
    two directions of a link differ, the slower one counts. Raises ValueError for a matrix that is
    not square."""
    count = len(links.minors)
    rows = links.bytes_per_second
    if len(rows) != count or any(len(row) != count for row in rows):
        raise ValueError(f"links of {count} GPUs: the matrix is not {count} x {count}")
    if len(set(links.minors)) != count:
        raise ValueError(f"links of GPUs {links.minors}: a GPU is listed twice")
    if count > _MAX_CARDS:
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
    """The annotation, empty for an empty table. Bandwidth is in bytes per second."""
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
    """The set itself, and all sets into which it is divided, in order of their lowest cards."""
    if not members:
        return
    yield members
    if len(members) == 1:
        return
    low = _best_half(matrix, members)
    high = tuple(card for card in members if card not in low)
    for half in sorted((low, high)):
        yield from _halves(matrix, half)


def _best_half(matrix: _Matrix, members: tuple[int, ...]) -> tuple[int, ...]:
    """The half with the lowest card, which is the larger one if the number is odd."""
    first, *others = members
    size = (len(members) + 1) // 2
    best: tuple[int, int] | None = None
    chosen = members
    for rest in combinations(others, size - 1):
        half = (first, *rest)
        other = [card for card in others if card not in rest]
        pairs = [matrix[i][j] for i, j in (*combinations(half, 2), *combinations(other, 2))]
        score = (min(pairs, default=0), sum(pairs))
        if best is None or score > best:
            best, chosen = score, half
    return chosen


def _ring(matrix: _Matrix, members: tuple[int, ...]) -> int:
    """The speed of the slowest link in the best ring through all members; 0 without a ring."""
    speeds = sorted({matrix[i][j] for i, j in combinations(members, 2)} - {0}, reverse=True)
    for speed in speeds:
        linked = [
            sum(1 << at for at, j in enumerate(members) if i != j and matrix[i][j] >= speed)
            for i in members
        ]
        if _has_ring(linked):
            return speed
    return 0


def _has_ring(linked: list[int]) -> bool:
    """Whether a ring connects all places (a Hamiltonian cycle); two places need only one link
    between them. `linked` has a mask of the neighbours of each place."""
    count = len(linked)
    if all(2 * neighbours.bit_count() >= count for neighbours in linked):
        return True  # Dirac's theorem, and the case of two.
    everyone = (1 << count) - 1
    ends = {1: 1}  # By the set of visited places, the places where a path from the first may end.
    for _ in range(count - 1):
        longer: dict[int, int] = {}
        for passed, lasts in ends.items():
            for place in range(1, count):
                if not passed >> place & 1 and linked[place] & lasts:
                    longer[passed | 1 << place] = longer.get(passed | 1 << place, 0) | 1 << place
        ends = longer
    return bool(ends.get(everyone, 0) & linked[0])


def _scored(sets: list[tuple[tuple[int, ...], int | None]]) -> tuple[GpuPartition, ...]:
    """The sets with their scores: the faster its ring, the higher the score of a set."""
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
