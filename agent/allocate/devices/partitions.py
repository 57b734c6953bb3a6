"""Sets of GPUs by a machine's partition table, and the choice of one (Koordinator:
pkg/scheduler/plugins/deviceshare/allocator_gpu.go, allocateByPartition).

A Device may carry the table of its node: by size, the sets with their scores. Under the policy
Honor, or when the pod has a preference for partitions, only sets of the table are allocated;
otherwise the table comes first and is skipped without a fitting set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.policies import PARTITION_LABEL, GpuPartitionPolicy
from agent.model.devices.device_allocation import PartitionSpec
from agent.model.devices.device_object import GPU_PARTITIONS
from agent.model.nrt.node_status import GPU_MODEL, GPU_VENDOR
from agent.model.pod.annotations import AnnotationError, text_of
from agent.model.quantities import Quantity, QuantityError, whole

MAX_MINOR: Final = 1023
MAX_PARTITIONS: Final = 1024
"""The limit of one table. The table of a machine with eight GPUs has 15 partitions."""


class Partition(msgspec.Struct, frozen=True):
    """`bandwidth`: of the ring, None if the table has no value."""

    minors: tuple[int, ...]
    mask: int
    score: int = 1
    bandwidth: int | None = None


Table = dict[int, tuple[Partition, ...]]
"""By number of cards; better scores first, equal ones in the table's order."""


class Partitions(msgspec.Struct, frozen=True):
    """The partition table of a node, None if none is reported. `honor`: only its sets are
    allocated."""

    table: Table | None = None
    honor: bool = False


def partitions(
    device_labels: Mapping[str, str],
    device_annotations: Mapping[str, str],
    node_labels: Mapping[str, str],
) -> Partitions:
    """The Device's table with the policy in its labels. Without one, the known table of the Node's
    GPU model with the policy in the Node's labels. Raises AnnotationError."""
    text = text_of(device_annotations, GPU_PARTITIONS, bounds.OBJECT_LIST_BYTES)
    if text:
        return Partitions(_decoded(text), _honored(device_labels))
    # `H100-80GB-HBM3` is an H100; cards of no known vendor count as NVIDIA's.
    model = node_labels.get(GPU_MODEL, "").partition("-")[0]
    known = node_labels.get(GPU_VENDOR, "") in ("", "nvidia") and model in _HOPPERS
    return Partitions(_HOPPER if known else None, _honored(node_labels))


def _honored(labels: Mapping[str, str]) -> bool:
    return labels.get(PARTITION_LABEL) == GpuPartitionPolicy.HONOR


def feasible(
    table: Table,
    count: int,
    available: int,
    spec: PartitionSpec | None,
    groups: tuple[int, ...] = (),
) -> tuple[Partition, ...]:
    """The sets of `count` cards within the mask `available`, with a card of each of these groups,
    that have the best available score; a restricted pod accepts only the best score of the
    table."""
    sets = table.get(count, ())
    requested = spec.bandwidth if spec else None
    found: list[Partition] = []
    for each in sets:
        if (found or (spec and spec.restricted)) and each.score != (found or sets)[0].score:
            break
        if each.mask & ~available or not all(each.mask & group for group in groups):
            continue
        if requested is None or (each.bandwidth is not None and each.bandwidth >= requested):
            found.append(each)
    return tuple(found)


def packed(table: Table, sets: tuple[Partition, ...], free: int, count: int) -> Partition:
    """The set that leaves the most larger sets of the best score whole; the first one among equal
    sets. `free`: the cards that no pod holds, not even in part."""
    if len(sets) == 1:
        return sets[0]
    weighed = [
        (weight * each.score, each.mask)
        for size, weight in _WEIGHTS.items()
        if size >= count and (larger := table.get(size))
        for each in larger
        if each.score == larger[0].score and not each.mask & ~free
    ]
    return max(sets, key=lambda one: sum(score for score, mask in weighed if not mask & one.mask))


_WEIGHTS: Final = {8: 10_000, 4: 100, 2: 1}
"""The weight of a set of a given size that stays whole."""

_HOPPERS: Final = frozenset(("H100", "H800", "H20"))


def _table(sets: Iterable[Partition]) -> Table:
    by_size: dict[int, list[Partition]] = {}
    for each in sets:
        by_size.setdefault(len(each.minors), []).append(each)
    return {
        size: tuple(sorted(found, key=lambda each: -each.score))
        for size, found in sorted(by_size.items())
    }


def _mask(minors: tuple[int, ...]) -> int:
    """The mask of distinct minors."""
    return sum(1 << minor for minor in minors)


def _even(size: int) -> Iterable[Partition]:
    for first in range(0, 8, size):
        minors = tuple(range(first, first + size))
        yield Partition(minors, _mask(minors))


_HOPPER: Final = _table(each for size in (1, 2, 4, 8) for each in _even(size))


class _RawPartition(msgspec.Struct, frozen=True, rename="camel"):
    minors: tuple[int, ...]
    ring_bus_bandwidth: Quantity | None = None
    allocation_score: int = 0


_decoder: Final = msgspec.json.Decoder(dict[int, tuple[_RawPartition, ...] | None])


def _decoded(text: str) -> Table:
    table: Table = {}
    try:
        by_size = bounds.decode(_decoder, text)
    except JsonError as error:
        raise AnnotationError(GPU_PARTITIONS, str(error)) from None
    if (found := sum(len(raw or ()) for raw in by_size.values())) > MAX_PARTITIONS:
        reason = f"{found} sets are more than {MAX_PARTITIONS}"
        raise AnnotationError(GPU_PARTITIONS, reason)
    for size, raw in by_size.items():
        sets = (_partition(size, place, each) for place, each in enumerate(raw or ()))
        table[size] = tuple(sorted(sets, key=lambda each: -each.score))
    return table


def _partition(size: int, place: int, raw: _RawPartition) -> Partition:
    where = f"{size}[{place}]"
    if not all(0 <= minor <= MAX_MINOR for minor in raw.minors):
        raise AnnotationError(GPU_PARTITIONS, f"{where}.minors: not within 0 and {MAX_MINOR}")
    if not len(set(raw.minors)) == len(raw.minors) == size:
        raise AnnotationError(GPU_PARTITIONS, f"{where}.minors: not {size} different cards")
    try:
        bandwidth = None if raw.ring_bus_bandwidth is None else whole(raw.ring_bus_bandwidth)
    except QuantityError as error:
        raise AnnotationError(GPU_PARTITIONS, f"{where}.ringBusBandwidth: {error}") from None
    return Partition(raw.minors, _mask(raw.minors), raw.allocation_score, bandwidth)
