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

from agent.allocate.placement.demand import FreeAmounts, Rating
from agent.model.pod_request import GPU_MILLI, PodKind

_TYPICAL: Final = 0.95
_MAX_CPU: Final = 128_000
"""Milli-CPU of the largest node of the published traces."""
_MAX_GPU: Final = 8 * GPU_MILLI
_MAX_TABLES: Final = 100_000


class Fragmentation:
    """Computes how many of a node's idle GPUs a typical pod can't use. Results are cached by the
    GPUs of a node; they change with its CPU only in steps."""

    def __init__(self, counts: Mapping[PodKind, int]) -> None:
        merged: dict[PodKind, int] = {}
        for kind, pods in counts.items():
            plain = PodKind(kind.cpu_milli, 0, kind.gpus, kind.gpu_milli, kind.models)
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

    def of(self, model: str, cpu_milli: int, gpu_milli: tuple[int, ...]) -> float:
        """The fragmentation in thousandths of a GPU.

        `cpu_milli`: the free CPU.
        `gpu_milli`: the free thousandths of each GPU, sorted."""
        table = self._tables.get((model, gpu_milli))
        if table is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            table = self._tables[model, gpu_milli] = self._table(model, gpu_milli)
        return table[1][bisect_right(table[0], cpu_milli)]

    def of_node(self, free: FreeAmounts) -> float:
        gpu_milli = tuple(sorted(free.gpu_milli.values()))
        return self.of(free.capacity.model, free.cpu_milli, gpu_milli)

    def _table(self, model: str, gpu_milli: tuple[int, ...]) -> tuple[list[int], list[float]]:
        """Returns the steps of CPU at which one more kind fits, ascending, and for each interval
        between them the GPUs (thousandths) that stay unusable: one entry more than steps."""
        idle = sum(gpu_milli)
        steps: dict[int, float] = {}
        for kind, pods in self._typical:
            if not kind.gpus or (kind.models and model not in kind.models):
                continue
            large = [part for part in gpu_milli if part >= kind.gpu_milli]
            if len(large) >= kind.gpus:
                steps[kind.cpu_milli] = (
                    steps.get(kind.cpu_milli, 0.0) + sum(large) * pods / self._pods
                )
        cpus = sorted(steps)
        return cpus, [
            idle - amount for amount in accumulate((steps[cpu] for cpu in cpus), initial=0.0)
        ]


class Fgd:
    """A pod goes where the fragmentation rises least."""

    def __init__(self, counts: Mapping[PodKind, int]) -> None:
        self._fragmentation = Fragmentation(counts)

    def rating(self, free: FreeAmounts, kind: PodKind) -> Rating:
        model, of = free.capacity.model, self._fragmentation.of
        cpu_milli = free.cpu_milli - kind.cpu_milli
        before = self._fragmentation.of_node(free)
        if not kind.shared or kind.gpus > 1:
            cards = _cards(free, kind, lambda left: -left)
            found = self._score(of(model, cpu_milli, _after(free, kind, cards)) - before)
            return Rating(-found, found, cards if kind.shared else ())
        best, card, tried = -1, 0, set()
        for minor, left in free.gpu_milli.items():
            if left < kind.gpu_milli or left in tried:
                continue
            tried.add(left)
            score = self._score(of(model, cpu_milli, _after(free, kind, (minor,))) - before)
            if score > best:
                best, card = score, minor
        return Rating(-best, best, (card,))

    def _score(self, rise: float) -> int:
        return math.floor(100 / (1 + math.exp(rise / GPU_MILLI)))


class ByAmounts:
    """A placement by the free amounts of a node alone.

    `score`: 0 to 100, more is better.
    `whole`: scores are rounded down to whole numbers."""

    def __init__(self, score: Callable[[FreeAmounts, PodKind], float], whole: bool = False) -> None:
        self._score, self._whole = score, whole

    def rating(self, free: FreeAmounts, kind: PodKind) -> Rating:
        score = max(0.0, min(100.0, self._score(free, kind)))
        cost = -math.floor(score) if self._whole else -round(score * 1e6)
        cards = _cards(free, kind, lambda left: left) if kind.shared else ()
        return Rating(cost, int(score), cards)


def best_fit(free: FreeAmounts, kind: PodKind) -> float:
    cpu_milli = free.cpu_milli - kind.cpu_milli
    return (1 - cpu_milli / _MAX_CPU / 2 - _gpu_milli_after(free, kind) / _MAX_GPU / 2) * 100


def bin_pack(free: FreeAmounts, kind: PodKind) -> float:
    """By the free GPUs; of nodes with equally many, by the free CPU."""
    cpu = (free.cpu_milli - kind.cpu_milli) / max(1, free.capacity.cpu_milli)
    return 100 - _gpu_milli_after(free, kind) / _MAX_GPU * 99 - cpu / 100


def most_allocated(free: FreeAmounts, kind: PodKind) -> float:
    """The mean over CPU, memory and GPUs of the part that is used."""
    node = free.capacity
    shares = [
        1 - (free.cpu_milli - kind.cpu_milli) / max(1, node.cpu_milli),
        1 - (free.memory_bytes - kind.memory_bytes) / max(1, node.memory_bytes),
    ]
    if node.gpus:
        shares.append(1 - _gpu_milli_after(free, kind) / (node.gpus * GPU_MILLI))
    return 100 * sum(shares) / len(shares)


def least_allocated(free: FreeAmounts, kind: PodKind) -> float:
    return 100 - most_allocated(free, kind)


def _gpu_milli_after(free: FreeAmounts, kind: PodKind) -> int:
    """The free thousandths of all GPUs after the pod got its cards."""
    return sum(free.gpu_milli.values()) - kind.total_gpu_milli


def _cards(free: FreeAmounts, kind: PodKind, order: Callable[[int], int]) -> tuple[int, ...]:
    """The fitting cards, the smallest by `order` first."""
    least = max(1, kind.gpu_milli)
    fitting = [(order(left), minor) for minor, left in free.gpu_milli.items() if left >= least]
    return tuple(minor for _, minor in sorted(fitting)[: kind.gpus])


def _after(free: FreeAmounts, kind: PodKind, cards: Collection[int]) -> tuple[int, ...]:
    """The free thousandths of each GPU after the pod got these cards, sorted."""
    return tuple(
        sorted(
            left - kind.gpu_milli if minor in cards else left
            for minor, left in free.gpu_milli.items()
        )
    )
