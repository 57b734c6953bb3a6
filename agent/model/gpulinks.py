"""How fast two GPUs reach each other: NVLinks counted from both ends, bandwidths added."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from agent.model.gpus import Ancestor, Gpu, GpuPair, LinkEnd, NvLink

MB_PER_SECOND: Final = {1: 20_000, 2: 25_000, 3: 25_000, 4: 25_000, 5: 50_000}
"""Of one link one way, by NVLink version (hwloc's topology-nvml.c)."""

_UNTOLD: Final = 2
_NEWEST: Final = 5

Sharing = tuple[Ancestor | None, bool | None]
"""What two cards share on the way to each other, and whether they may be peers."""


def pairs(gpus: Iterable[Gpu], sharing: Mapping[frozenset[str], Sharing]) -> tuple[GpuPair, ...]:
    """Of every two cards, in order of index. `sharing`: by their two UUIDs.

    Links straight between two cards are counted at both ends, and the lower count holds: an end
    that is down carries nothing. Cards at switches reach all others there with all the links that
    both have.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    return tuple(_pair(one, two, sharing) for one, two in itertools.combinations(ordered, 2))


def _pair(one: Gpu, two: Gpu, sharing: Mapping[frozenset[str], Sharing]) -> GpuPair:
    ancestor, peer = sharing.get(frozenset((one.uuid, two.uuid)), (None, None))
    straight = _straight(one, two), _straight(two, one)
    switched = _switched(one), _switched(two)
    for ends in straight, switched:
        if any(ends):
            links = min(map(len, ends))
            through = bool(links) and ends is switched
            speed = min(map(_speed, ends))
            return GpuPair(one.uuid, two.uuid, ancestor, peer, links, speed, through)
    return GpuPair(one.uuid, two.uuid, ancestor, peer)


def _straight(gpu: Gpu, other: Gpu) -> list[NvLink]:
    return [link for link in gpu.links if link.end is LinkEnd.GPU and link.bus == other.bus]


def _switched(gpu: Gpu) -> list[NvLink]:
    return [link for link in gpu.links if link.end is LinkEnd.SWITCH]


def _speed(links: list[NvLink]) -> int:
    versions = (min(link.version or _UNTOLD, _NEWEST) for link in links)
    return sum(MB_PER_SECOND[version] for version in versions)
