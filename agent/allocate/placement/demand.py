"""What placements read: a node's free amounts, the kind of a pod, and the kinds of the pods that
were seen.

The pods that were seen are counted by kind. Placements are rebuilt from the counts after 1, 50,
100, 200, 400, ... pods: often while little is known, then rarely."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

FULL: Final = 1000
"""Thousandths of one GPU."""
FIRST_PODS: Final = 50
"""Pods after which a placement is rebuilt for the second time; then each time their number has
doubled."""
REBUILD_PODS: Final = 20_000
"""Pods after which it is rebuilt in any case."""
MAX_PODS: Final = 200_000
"""Beyond them all counts are halved: what was seen long ago counts less."""
MAX_KINDS: Final = 400
"""Kinds kept. Beyond them the rarest are dropped, so that the state fits into a ConfigMap."""


class PodKind(msgspec.Struct, frozen=True, order=True):
    """`cpu` in milli-CPU, `memory` in bytes; `milli` of each of `gpus` GPUs, FULL for whole ones;
    `models`: the allowed GPU models, sorted; empty: any."""

    cpu: int
    memory: int
    gpus: int = 0
    milli: int = 0
    models: tuple[str, ...] = ()

    @property
    def gpu(self) -> float:
        """GPUs in sum."""
        return self.gpus * self.milli / FULL

    @property
    def shared(self) -> bool:
        return 0 < self.milli < FULL


NO_KIND: Final = PodKind(0, 0)


class Site(msgspec.Struct, frozen=True):
    """A node without pods. `cpu` in milli-CPU, `memory` in bytes; `rank` is 0 to 1, a pseudo-random
    place in the order of all nodes."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str
    rank: float


def site(name: str, cpu: int, memory: int, gpus: int, model: str) -> Site:
    return Site(name, cpu, memory, gpus, model, zlib.crc32(name.encode()) / (1 << 32))


class Room(msgspec.Struct, frozen=True):
    """What pods leave free on a node. `left`: of each healthy GPU, by minor, in thousandths."""

    site: Site
    cpu: int
    memory: int
    left: Mapping[int, int]

    def fits(self, kind: PodKind) -> bool:
        """Whether the sums and the GPUs suffice."""
        if self.cpu < kind.cpu or self.memory < kind.memory:
            return False
        if kind.models and self.site.model not in kind.models:
            return False
        if not kind.gpus:
            return True
        milli = kind.milli
        return sum(left >= milli for left in self.left.values()) >= kind.gpus


class Verdict(msgspec.Struct, frozen=True):
    """How good a node is for a pod: less `cost` is better; `points` (0 to 100) is a coarser measure
    of the same order, more is better. `cards`: for parts of GPUs, the preferred minors."""

    cost: int
    points: int
    cards: tuple[int, ...] = ()


class CardOrder(msgspec.Struct, frozen=True):
    """The cards that a placement prefers on a node."""

    cards: tuple[int, ...]

    def score_of(self, minor: int) -> int:
        return 100 if minor in self.cards else 0


class NodePlacement(Protocol):
    def verdict(self, room: Room, kind: PodKind) -> Verdict:
        """For a pod that fits there."""
        ...


class Demand:
    """The pods that were seen, by kind; `pods` are all that were ever added. Not safe for several
    threads."""

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
            self._replace(commonest(self._counts, MAX_KINDS))

    def due(self, built_at: int) -> bool:
        """Whether a placement that was built from `built_at` pods has to be rebuilt."""
        if not self.pods:
            return False
        more = min(built_at, REBUILD_PODS)
        return not built_at or self.pods >= max(FIRST_PODS, built_at + more)

    def merge(self, counts: Mapping[PodKind, int]) -> None:
        """Adds the pods that another process has seen, or this one before it was restarted. A pod
        that both have seen must not count twice: the larger number of each kind counts."""
        before = self._counts.total()
        self._replace(self._counts | Counter(counts))
        self.pods += max(0, self._kept - before)

    def _replace(self, counts: Mapping[PodKind, int]) -> None:
        self._counts = Counter(counts)
        self._kept = self._counts.total()


def commonest(counts: Mapping[PodKind, int], kinds: int) -> dict[PodKind, int]:
    """The most frequent kinds; among equally frequent ones the smallest."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return dict(ordered[:kinds])


def capacity(sites: Iterable[Site], models: Collection[str] = ()) -> int:
    """The GPUs of these models; of any without `models`."""
    return sum(each.gpus for each in sites if not models or each.model in models)
