"""The input of placements: a node's free amounts, the kind of a pod, and the number of pods of each
kind.

Placements are rebuilt from these numbers after 1, 50, 100, 200, 400, ... pods: often while few pods
are counted, then rarely."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from agent.model.pod_request import PodKind

FIRST_PODS: Final = 50
"""Pods after which a placement is rebuilt for the second time; then each time their number has
doubled."""
REBUILD_PODS: Final = 20_000
"""The most pods between two rebuilds."""
MAX_PODS: Final = 200_000
"""Beyond this sum all counts are halved, so that older pods count less."""
MAX_KINDS: Final = 400
"""Kinds that are kept. The rarest are dropped, so that the counts fit into a ConfigMap."""


class NodeCapacity(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: int
    model: str
    rank: float
    """The node's pseudo-random position in the order of all nodes, 0 to 1."""


def node_capacity(
    name: str, cpu_milli: int, memory_bytes: int, gpus: int, model: str
) -> NodeCapacity:
    rank = zlib.crc32(name.encode()) / (1 << 32)
    return NodeCapacity(name, cpu_milli, memory_bytes, gpus, model, rank)


class FreeAmounts(msgspec.Struct, frozen=True):
    capacity: NodeCapacity
    cpu_milli: int
    memory_bytes: int
    gpu_milli: Mapping[int, int]
    """The free thousandths of each healthy GPU, by minor."""

    def fits(self, kind: PodKind) -> bool:
        """Whether a pod of this kind fits, by the sums of CPU and memory and by the GPUs."""
        if self.cpu_milli < kind.cpu_milli or self.memory_bytes < kind.memory_bytes:
            return False
        if kind.models and self.capacity.model not in kind.models:
            return False
        if not kind.gpus:
            return True
        requested = kind.gpu_milli
        return sum(left >= requested for left in self.gpu_milli.values()) >= kind.gpus


class Rating(msgspec.Struct, frozen=True):
    """How good a node is for a pod."""

    cost: int
    """The node with the least cost is best."""
    points: int
    """The order of the costs in fewer steps, 0 to 100; more is better."""
    cards: tuple[int, ...] = ()
    """For parts of GPUs, the preferred minors."""


class CardOrder(msgspec.Struct, frozen=True):
    """The cards that a placement prefers on a node."""

    cards: tuple[int, ...]

    def score_of(self, minor: int) -> int:
        return 100 if minor in self.cards else 0


class NodePlacement(Protocol):
    def rating(self, free: FreeAmounts, kind: PodKind) -> Rating:
        """Rates the node with these free amounts for a pod that fits there."""
        ...


class Demand:
    """Counts pods by kind. `pods` is the number of all that were ever added, also those that no
    count has any more. Not safe for several threads."""

    def __init__(self, counts: Mapping[PodKind, int] | None = None) -> None:
        self._counts: Counter[PodKind] = Counter(counts or {})
        self._kept = self.pods = self._counts.total()

    @property
    def counts(self) -> Mapping[PodKind, int]:
        return self._counts

    def add(self, kind: PodKind) -> None:
        self._counts[kind] += 1
        self.pods += 1
        self._kept += 1
        if self._kept > MAX_PODS:
            halved = {each: pods // 2 for each, pods in self._counts.items() if pods > 1}
            self._replace(halved)
        if len(self._counts) > 2 * MAX_KINDS:
            self._replace(most_frequent(self._counts, MAX_KINDS))

    def due(self, built_from: int) -> bool:
        """Whether a placement that was built from this number of pods has to be rebuilt; 0: none
        was built."""
        if not self.pods:
            return False
        more = min(built_from, REBUILD_PODS)
        return not built_from or self.pods >= max(FIRST_PODS, built_from + more)

    def merge(self, counts: Mapping[PodKind, int]) -> None:
        """Adds the counts of another process, or of this one before it was restarted. Of each kind
        the larger number counts, because both may have counted the same pods."""
        before = self._counts.total()
        self._replace(self._counts | Counter(counts))
        self.pods += max(0, self._kept - before)

    def _replace(self, counts: Mapping[PodKind, int]) -> None:
        self._counts = Counter(counts)
        self._kept = self._counts.total()


def most_frequent(counts: Mapping[PodKind, int], kinds: int) -> dict[PodKind, int]:
    """The most frequent kinds; among equally frequent ones the smallest."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return dict(ordered[:kinds])


def gpu_total(nodes: Iterable[NodeCapacity], models: Collection[str] = ()) -> int:
    """The number of GPUs of these models; of all models if `models` is empty."""
    return sum(each.gpus for each in nodes if not models or each.model in models)
