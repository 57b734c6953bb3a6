"""Residual-value placement: a pod goes where the value of what is left of GPUs falls least.

The unit of every term of the cost is one GPU:

    cost = 3 * split + (stranded after - stranded before) + price * GPUs asked for + rank

- split: what a part of a GPU costs beyond its size. The value of what is left of a GPU is the best
  sum of prices of the parts that fit into it, and the prices are the dual solution of "the fewest
  GPUs that hold the demand for parts".
- stranded: the idle GPUs that are expected to stay idle, because CPU or memory of the node runs out
  first: the CPU that idle GPUs need is about normally distributed.
- price: of a GPU of this node, for models that many pods insist on, and for CPU that pods without
  GPUs will need.
- rank: a fixed pseudo-random order of the nodes, so that they are filled one after the other and
  whole nodes stay for large pods.

The weights were set on published traces; the result changes little around them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.placement import rivals
from agent.allocate.placement.demand import (
    FULL,
    NodePlacement,
    PodKind,
    Room,
    Site,
    Verdict,
    capacity,
)
from agent.model.cpu.policies import PlacementPolicy

SPLIT: Final = 3.0
SPREAD: Final = 0.25
MODEL: Final = 0.5
CPU_RICH: Final = 1.0
RANK: Final = 1.0

CELL: Final = 10
"""Thousandths of a GPU, the step of the values."""
MICRO: Final = 1_000_000
"""Costs are whole millionths of a GPU."""
_MAX_STEPS: Final = 500
_TINY: Final = 1e-9
_FAR: Final = 6.0
"""Standard deviations beyond which a normal distribution is a constant."""


class Companion(msgspec.Struct, frozen=True):
    """How much CPU or memory comes with one GPU: its mean, and its spread for one GPU."""

    mean: float
    spread: float


class Residual(msgspec.Struct, frozen=True):
    """`value`: in GPUs, of what is left of a GPU, by cells. `models`: the price of a GPU, by model.
    `pressure`: how much of the CPU that GPUs do not need, pods without GPUs ask for, to the third
    power."""

    value: tuple[float, ...]
    cpu: Companion
    memory: Companion
    models: dict[str, float]
    pressure: float

    def verdict(self, room: Room, kind: PodKind) -> Verdict:
        idle = sum(room.left.values()) / FULL
        asked = kind.gpu
        split, cards = self._split(room.left, kind) if kind.shared else (0.0, ())
        rise = self.stranded(idle - asked, room.cpu - kind.cpu, room.memory - kind.memory)
        rise -= self.stranded(idle, room.cpu, room.memory)
        place = room.site
        cost = SPLIT * split + rise + self._price(place) * asked + RANK * place.rank
        return Verdict(round(cost * MICRO), points(cost), cards)

    def stranded(self, idle: float, cpu: float, memory: float) -> float:
        """The idle GPUs that are expected to stay idle with this much free CPU and memory."""
        if idle <= 0:
            return 0.0
        root = math.sqrt(idle)
        by_cpu = _shortage(self.cpu, idle, root, cpu)
        by_memory = _shortage(self.memory, idle, root, memory)
        return min(idle, max(by_cpu, by_memory))

    def _split(self, left: Mapping[int, int], kind: PodKind) -> tuple[float, tuple[int, ...]]:
        """The cards that lose the least value, the lowest minors first, and the value that is lost
        beyond the parts themselves."""
        value, milli = self.value, kind.milli
        lost = sorted(
            (value[free // CELL] - value[(free - milli) // CELL], minor)
            for minor, free in left.items()
            if free >= milli
        )[: kind.gpus]
        return sum(each for each, _ in lost) - kind.gpu, tuple(minor for _, minor in lost)

    def _price(self, place: Site) -> float:
        spare = max(0.0, place.cpu - self.cpu.mean * place.gpus)
        return self.models.get(place.model, 0.0) + self.pressure * spare / max(1, place.cpu)


def residual(counts: Mapping[PodKind, int], sites: Collection[Site]) -> Residual:
    """The placement for this demand, blown up to all GPUs of the cluster."""
    of_gpus = {kind: pods for kind, pods in counts.items() if kind.gpus}
    asked = sum(kind.gpu * pods for kind, pods in of_gpus.items()) or 1.0
    scale = capacity(sites) / asked
    cpu = _companion([(each.cpu, each.gpu, pods) for each, pods in of_gpus.items()], asked)
    memory = _companion([(each.memory, each.gpu, pods) for each, pods in of_gpus.items()], asked)
    wanted: dict[tuple[str, ...], float] = {}
    parts: dict[int, int] = {}
    for kind, pods in sorted(of_gpus.items()):
        if kind.models:
            wanted[kind.models] = wanted.get(kind.models, 0.0) + kind.gpu * pods
        if kind.shared:
            parts[kind.milli] = parts.get(kind.milli, 0) + kind.gpus * pods
    models: dict[str, float] = {}
    for names, gpus in wanted.items():
        price = MODEL * scale * gpus / max(1, capacity(sites, names))
        for name in names:
            models[name] = models.get(name, 0.0) + price
    spare = sum(max(0.0, each.cpu - cpu.mean * each.gpus) for each in sites)
    without = sum(kind.cpu * pods for kind, pods in counts.items() if not kind.gpus)
    pressure = CPU_RICH * min(1.0, scale * without / max(_TINY, spare)) ** 3
    return Residual(values_of_rests(dict(sorted(parts.items()))), cpu, memory, models, pressure)


def points(cost: float) -> int:
    """0 to 100, more for less cost."""
    return int(100 / (1 + math.exp(max(-50.0, min(50.0, cost)))))


def _companion(amounts: Sequence[tuple[int, float, int]], asked: float) -> Companion:
    """`amounts`: the amount and the GPUs of each kind, and its pods."""
    mean = sum(amount * pods for amount, _, pods in amounts) / asked or _TINY
    variance = sum(pods * (amount - mean * gpu) ** 2 for amount, gpu, pods in amounts) / asked
    return Companion(mean, max(_TINY * mean, SPREAD * math.sqrt(variance)))


def _shortage(companion: Companion, idle: float, root: float, have: float) -> float:
    """The expected shortage, in GPUs."""
    mean, deviation = companion.mean, companion.spread * root
    score = (mean * idle - have) / deviation
    if score < -_FAR:
        return 0.0
    if score > _FAR:
        return deviation * score / mean
    density = math.exp(-score * score / 2) / math.sqrt(2 * math.pi)
    return deviation * (density + score * 0.5 * math.erfc(-score / math.sqrt(2))) / mean


def values_of_rests(parts: Mapping[int, int]) -> tuple[float, ...]:
    """By cells, the value of what is left of a GPU; a whole one has the value 1. `parts`: how often
    each part (thousandths) is asked for.

    Column generation for the cutting-stock problem: each column is a set of parts that one GPU
    holds; the one with the most value by the current prices enters while it is worth more than a
    GPU."""
    demand = parts or {FULL: 1}
    cells = FULL // CELL
    widths = [-(-part // CELL) for part in demand]
    need = [float(pods) for pods in demand.values()]
    size = range(len(widths))
    inverse = [
        [1.0 / (cells // widths[row]) if row == column else 0.0 for column in size] for row in size
    ]
    weights = [1.0] * len(widths)
    value = [0.0] * (cells + 1)
    for _ in range(_MAX_STEPS):
        prices = [sum(weights[row] * inverse[row][column] for row in size) for column in size]
        value, taken = _knapsack(widths, prices, cells)
        least = min(size, key=lambda each: prices[each])
        if prices[least] < -_TINY:
            entering, weight = [-1.0 if each == least else 0.0 for each in size], 0.0
        elif value[cells] > 1 + _TINY:
            entering, weight = _pattern(widths, taken, cells), 1.0
        else:
            break
        _pivot(inverse, weights, need, entering, weight)
    whole = value[cells] or 1.0
    return tuple(each / whole for each in value)


def _knapsack(
    widths: Sequence[int], prices: Sequence[float], cells: int
) -> tuple[list[float], list[int]]:
    """By free cells, the most value that fits, and the part that was put in last; -1: none."""
    value, taken = [0.0] * (cells + 1), [-1] * (cells + 1)
    items = list(enumerate(zip(widths, prices, strict=True)))
    for free in range(1, cells + 1):
        best, chosen = value[free - 1] + 1e-12, -1
        for part, (width, price) in items:
            if width <= free and (found := value[free - width] + price) >= best:
                best, chosen = found, part
        value[free], taken[free] = best, chosen
    return value, taken


def _pattern(widths: Sequence[int], taken: Sequence[int], cells: int) -> list[float]:
    """How often each part is in the most valuable set."""
    found = [0.0] * len(widths)
    while cells > 0:
        part = taken[cells]
        if part >= 0:
            found[part] += 1
        cells -= widths[part] if part >= 0 else 1
    return found


def _pivot(
    inverse: list[list[float]],
    weights: list[float],
    need: Sequence[float],
    entering: Sequence[float],
    weight: float,
) -> None:
    """Exchanges the column of the basis that reaches 0 first for the entering one."""
    size = range(len(weights))
    change = [sum(row[each] * entering[each] for each in size) for row in inverse]
    held = [sum(row[each] * need[each] for each in size) for row in inverse]
    leaving = min(
        (each for each in size if change[each] > _TINY),
        key=lambda each: held[each] / change[each],
    )
    pivot = [each / change[leaving] for each in inverse[leaving]]
    for row in size:
        if row != leaving and change[row]:
            inverse[row] = [
                old - change[row] * new for old, new in zip(inverse[row], pivot, strict=True)
            ]
    inverse[leaving], weights[leaving] = pivot, weight


def placement(
    policy: PlacementPolicy, counts: Mapping[PodKind, int], sites: Collection[Site]
) -> NodePlacement:
    """The placement for pods like these on such nodes."""
    if policy is PlacementPolicy.RESIDUAL:
        return residual(counts, sites)
    if policy is PlacementPolicy.FGD:
        return rivals.Fgd(counts)
    if policy is PlacementPolicy.BEST_FIT:
        return rivals.ByAmounts(rivals.best_fit, whole=True)
    if policy is PlacementPolicy.BIN_PACK:
        return rivals.ByAmounts(rivals.bin_pack)
    if policy is PlacementPolicy.MOST_ALLOCATED:
        return rivals.ByAmounts(rivals.most_allocated)
    return rivals.ByAmounts(rivals.least_allocated)
