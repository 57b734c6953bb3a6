"""Placements of GPUs that others published, as alternatives and for comparison.

FGD (Weng et al., USENIX ATC 2023) keeps the fragmentation low. The fragmentation of a node is the
expected number of its idle GPUs that a pod can't use, over the kinds that make up 95 % of the pods.
The score is a whole number, as in the authors' simulator (pkg/simulator/plugin/fgd_score.go).
BestFit has the formula and the constants of best_fit_score.go there. BinPack, MostAllocated and
LeastAllocated depend on the amounts alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from typing import Final

from agent.allocate.placement.demand import FULL, PodKind, Room, Verdict

_TYPICAL: Final = 0.95
_MAX_CPU: Final = 128_000
"""Milli-CPU of the largest node of the published traces."""
_MAX_GPU: Final = 8 * FULL
_MAX_TABLES: Final = 100_000


class Fragmentation:
    """Computes how many of a node's idle GPUs a typical pod can't use. Results are cached by the
    GPUs of a node; they change with its CPU only in steps."""

    def __init__(self, counts: Mapping[PodKind, int]) -> None:
        merged: dict[PodKind, int] = {}
        for kind, pods in counts.items():
            plain = PodKind(kind.cpu, 0, kind.gpus, kind.milli, kind.models)
            merged[plain] = merged.get(plain, 0) + pods
        ordered = sorted(merged.items(), key=lambda each: (-each[1], each[0]))
        total, before = sum(merged.values()), 0
        self._typical: list[tuple[PodKind, int]] = []
        for kind, pods in ordered:
            if before >= _TYPICAL * total:
                break
            self._typical.append((kind, pods))
            before += pods
        self._pods = max(1, before)
        self._tables: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[float]]] = {}

    def of(self, model: str, cpu: int, left: tuple[int, ...]) -> float:
        """In thousandths of a GPU. `cpu`: the free milli-CPU. `left`: the free thousandths of each
        GPU, sorted."""
        table = self._tables.get((model, left))
        if table is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            table = self._tables[model, left] = self._table(model, left)
        return table[1][bisect_right(table[0], cpu)]

    def of_room(self, room: Room) -> float:
        return self.of(room.site.model, room.cpu, tuple(sorted(room.left.values())))

    def _table(self, model: str, left: tuple[int, ...]) -> tuple[list[int], list[float]]:
        """Returns the steps of CPU at which one more kind fits, ascending, and for each interval
        between them the GPUs (thousandths) that stay unusable: one entry more than steps."""
        idle = sum(left)
        steps: dict[int, float] = {}
        for kind, pods in self._typical:
            if not kind.gpus or (kind.models and model not in kind.models):
                continue
            large = [each for each in left if each >= kind.milli]
            if len(large) >= kind.gpus:
                steps[kind.cpu] = steps.get(kind.cpu, 0.0) + sum(large) * pods / self._pods
        cpus = sorted(steps)
        return cpus, [idle - each for each in accumulate((steps[cpu] for cpu in cpus), initial=0.0)]


class Fgd:
    """A pod goes where the fragmentation rises least."""

    def __init__(self, counts: Mapping[PodKind, int]) -> None:
        self._fragmentation = Fragmentation(counts)

    def verdict(self, room: Room, kind: PodKind) -> Verdict:
        model, cpu, of = room.site.model, room.cpu - kind.cpu, self._fragmentation.of
        before = self._fragmentation.of_room(room)
        if not kind.shared or kind.gpus > 1:
            cards = _cards(room, kind, lambda free: -free)
            found = self._score(of(model, cpu, _after(room, kind, cards)) - before)
            return Verdict(-found, found, cards if kind.shared else ())
        best, card, tried = -1, 0, set()
        for minor, free in room.left.items():
            if free < kind.milli or free in tried:
                continue
            tried.add(free)
            score = self._score(of(model, cpu, _after(room, kind, (minor,))) - before)
            if score > best:
                best, card = score, minor
        return Verdict(-best, best, (card,))

    def _score(self, rise: float) -> int:
        return math.floor(100 / (1 + math.exp(rise / FULL)))


class ByAmounts:
    """A placement by the free amounts of a node alone."""

    def __init__(self, score: Callable[[Room, PodKind], float], whole: bool = False) -> None:
        """`score`: 0 to 100, more is better. `whole`: scores are rounded down to whole numbers."""
        self._score, self._whole = score, whole

    def verdict(self, room: Room, kind: PodKind) -> Verdict:
        score = max(0.0, min(100.0, self._score(room, kind)))
        cost = -math.floor(score) if self._whole else -round(score * 1e6)
        cards = _cards(room, kind, lambda free: free) if kind.shared else ()
        return Verdict(cost, int(score), cards)


def best_fit(room: Room, kind: PodKind) -> float:
    gpu = sum(room.left.values()) - kind.gpus * kind.milli
    return (1 - (room.cpu - kind.cpu) / _MAX_CPU / 2 - gpu / _MAX_GPU / 2) * 100


def bin_pack(room: Room, kind: PodKind) -> float:
    """By the free GPUs; of nodes with equally many, by the free CPU."""
    free = sum(room.left.values()) - kind.gpus * kind.milli
    cpu = (room.cpu - kind.cpu) / max(1, room.site.cpu)
    return 100 - free / _MAX_GPU * 99 - cpu / 100


def most_allocated(room: Room, kind: PodKind) -> float:
    """The mean over CPU, memory and GPUs of the part that is used."""
    site = room.site
    shares = [
        1 - (room.cpu - kind.cpu) / max(1, site.cpu),
        1 - (room.memory - kind.memory) / max(1, site.memory),
    ]
    if site.gpus:
        free = sum(room.left.values()) - kind.gpus * kind.milli
        shares.append(1 - free / (site.gpus * FULL))
    return 100 * sum(shares) / len(shares)


def least_allocated(room: Room, kind: PodKind) -> float:
    return 100 - most_allocated(room, kind)


def _cards(room: Room, kind: PodKind, order: Callable[[int], int]) -> tuple[int, ...]:
    """The fitting cards, the smallest by `order` first."""
    fitting = [
        (order(free), minor) for minor, free in room.left.items() if free >= max(1, kind.milli)
    ]
    return tuple(minor for _, minor in sorted(fitting)[: kind.gpus])


def _after(room: Room, kind: PodKind, cards: Collection[int]) -> tuple[int, ...]:
    """The free thousandths of each GPU after the pod got these cards, sorted."""
    return tuple(
        sorted(free - kind.milli if minor in cards else free for minor, free in room.left.items())
    )
