"""Residual-value placement: a pod goes to the node where the GPUs lose the least value.

The unit of every term of the cost is one GPU:

    cost = 3 * split + (stranded after - stranded before) + price * requested GPUs + rank

- split: the value that the pod takes from a GPU beyond the size of its part. The value of the
  remainder of a GPU is the greatest sum of prices of the parts that fit into it. The prices are the
  dual solution of the problem "hold the demand for parts on the fewest GPUs".
- stranded: the idle GPUs that are expected to stay idle because the node runs out of CPU or memory
  first. The CPU that idle GPUs need is taken as normally distributed.
- price: a GPU costs more if many pods allow only its model, and on a node whose CPU pods without
  GPUs will need.
- rank: a fixed pseudo-random order of the nodes, so that they are filled one after the other and
  whole nodes stay for large pods.

The weights were set on published traces; other weights near them change the result little."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.placement import published
from agent.allocate.placement.demand import (
    FreeAmounts,
    NodeCapacity,
    NodePlacement,
    Rating,
    gpu_total,
)
from agent.model.cpu.policies import PlacementPolicy
from agent.model.pod_request import GPU_MILLI, PodKind

SPLIT: Final = 3.0
SPREAD: Final = 0.25
MODEL: Final = 0.5
CPU_RICH: Final = 1.0
RANK: Final = 1.0
"""The weights of the terms of the cost: `SPREAD` of the deviation in `stranded`, `MODEL` and
`CPU_RICH` of the two parts of the price."""

CELL: Final = 10
"""Thousandths of a GPU: the step of the values of remainders."""
MICRO: Final = 1_000_000
"""Costs are whole millionths of a GPU."""
_MAX_STEPS: Final = 500
_TINY: Final = 1e-9
_FAR: Final = 6.0
"""Standard deviations beyond which a normal distribution is a constant."""


class AmountPerGpu(msgspec.Struct, frozen=True):
    """The CPU (milli-CPU) or memory (bytes) that pods request for each GPU: the mean, and the
    weighted standard deviation for one GPU."""

    mean: float
    spread: float


class Residual(msgspec.Struct, frozen=True):
    """The prices by which a pod's place is chosen."""

    value: tuple[float, ...]
    """The value, in GPUs, of each remainder of a GPU, by its number of CELLs."""
    cpu: AmountPerGpu
    memory: AmountPerGpu
    models: dict[str, float]
    """The price of a GPU by model."""
    pressure: float
    """The part of the CPU beyond the need of GPUs that pods without GPUs request, to the third
    power."""

    def rating(self, free: FreeAmounts, kind: PodKind) -> Rating:
        idle = sum(free.gpu_milli.values()) / GPU_MILLI
        requested, node = kind.gpu, free.capacity
        split, cards = self._split(free.gpu_milli, kind) if kind.shared else (0.0, ())
        rise = self.stranded(
            idle - requested,
            free.cpu_milli - kind.cpu_milli,
            free.memory_bytes - kind.memory_bytes,
        )
        rise -= self.stranded(idle, free.cpu_milli, free.memory_bytes)
        cost = SPLIT * split + rise + self._price(node) * requested + RANK * node.rank
        return Rating(round(cost * MICRO), points(cost), cards)

    def stranded(self, idle: float, cpu_milli: float, memory_bytes: float) -> float:
        """The number of `idle` GPUs that are expected to stay idle with this free CPU and
        memory."""
        if idle <= 0:
            return 0.0
        root = math.sqrt(idle)
        by_cpu = _shortage(self.cpu, idle, root, cpu_milli)
        by_memory = _shortage(self.memory, idle, root, memory_bytes)
        return min(idle, max(by_cpu, by_memory))

    def _split(self, gpu_milli: Mapping[int, int], kind: PodKind) -> tuple[float, tuple[int, ...]]:
        """Returns the value that is lost beyond the pod's parts, and the cards that lose the least,
        of equal ones those with the lowest minors."""
        value, part = self.value, kind.gpu_milli
        lost = sorted(
            (value[free // CELL] - value[(free - part) // CELL], minor)
            for minor, free in gpu_milli.items()
            if free >= part
        )[: kind.gpus]
        return sum(loss for loss, _ in lost) - kind.gpu, tuple(minor for _, minor in lost)

    def _price(self, node: NodeCapacity) -> float:
        spare = max(0.0, node.cpu_milli - self.cpu.mean * node.gpus)
        return self.models.get(node.model, 0.0) + self.pressure * spare / max(1, node.cpu_milli)


def residual(counts: Mapping[PodKind, int], nodes: Collection[NodeCapacity]) -> Residual:
    """The placement for pods like `counts`, whose requests are scaled to all GPUs of the
    cluster."""
    with_gpus = {kind: pods for kind, pods in counts.items() if kind.gpus}
    requested = sum(kind.gpu * pods for kind, pods in with_gpus.items()) or 1.0
    scale = gpu_total(nodes) / requested
    cpu = _amount_per_gpu(
        [(each.cpu_milli, each.gpu, n) for each, n in with_gpus.items()], requested
    )
    memory = _amount_per_gpu(
        [(each.memory_bytes, each.gpu, n) for each, n in with_gpus.items()], requested
    )
    parts: dict[int, int] = {}
    for kind, pods in with_gpus.items():
        if kind.shared:
            parts[kind.gpu_milli] = parts.get(kind.gpu_milli, 0) + kind.gpus * pods
    models = _model_prices(with_gpus, nodes, scale)
    spare = sum(max(0.0, each.cpu_milli - cpu.mean * each.gpus) for each in nodes)
    without = sum(kind.cpu_milli * pods for kind, pods in counts.items() if not kind.gpus)
    pressure = CPU_RICH * min(1.0, scale * without / max(_TINY, spare)) ** 3
    return Residual(remainder_values(dict(sorted(parts.items()))), cpu, memory, models, pressure)


def _model_prices(
    with_gpus: Mapping[PodKind, int], nodes: Collection[NodeCapacity], scale: float
) -> dict[str, float]:
    """By GPU model: the requests of the pods that allow only some models, for each GPU of these."""
    requested: dict[tuple[str, ...], float] = {}
    for kind, pods in sorted(with_gpus.items()):
        if kind.models:
            requested[kind.models] = requested.get(kind.models, 0.0) + kind.gpu * pods
    prices: dict[str, float] = {}
    for models, gpus in requested.items():
        price = MODEL * scale * gpus / max(1, gpu_total(nodes, models))
        for model in models:
            prices[model] = prices.get(model, 0.0) + price
    return prices


def points(cost: float) -> int:
    """0 to 100, more for less cost."""
    return int(100 / (1 + math.exp(max(-50.0, min(50.0, cost)))))


def _amount_per_gpu(amounts: Sequence[tuple[int, float, int]], gpus: float) -> AmountPerGpu:
    """The amount per GPU.

    `amounts`: for each kind the amount and the GPUs of a pod, and the number of pods.
    `gpus`: the GPUs of all these pods."""
    mean = sum(amount * pods for amount, _, pods in amounts) / gpus or _TINY
    variance = sum(pods * (amount - mean * gpu) ** 2 for amount, gpu, pods in amounts) / gpus
    return AmountPerGpu(mean, max(_TINY * mean, SPREAD * math.sqrt(variance)))


def _shortage(needed: AmountPerGpu, idle: float, root: float, free: float) -> float:
    """The expected number of `idle` GPUs for which `free` is not enough. `root` is the square root
    of `idle`."""
    mean, deviation = needed.mean, needed.spread * root
    score = (mean * idle - free) / deviation
    if score < -_FAR:
        return 0.0
    if score > _FAR:
        return deviation * score / mean
    density = math.exp(-score * score / 2) / math.sqrt(2 * math.pi)
    return deviation * (density + score * 0.5 * math.erfc(-score / math.sqrt(2))) / mean


def remainder_values(parts: Mapping[int, int]) -> tuple[float, ...]:
    """The value of each remainder of a GPU, by its number of CELLs; a whole GPU has the value 1.

    Column generation for the cutting-stock problem. Each column is a set of parts that fit into one
    GPU. The set with the most value by the current prices enters the basis while its value exceeds
    that of a GPU.

    `parts`: the number of requests for each part, by its thousandths."""
    demand = parts or {GPU_MILLI: 1}
    cells = GPU_MILLI // CELL
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
    """By the number of free cells: the greatest value that fits, and the index of the part that was
    added last, -1 for none."""
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
    """The number of times that each part is in the most valuable set."""
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
    """Replaces the column of the basis that reaches 0 first by the entering one."""
    size = range(len(weights))
    change = [sum(row[each] * entering[each] for each in size) for row in inverse]
    solution = [sum(row[each] * need[each] for each in size) for row in inverse]
    leaving = min(
        (each for each in size if change[each] > _TINY),
        key=lambda each: solution[each] / change[each],
    )
    pivot = [each / change[leaving] for each in inverse[leaving]]
    for row in size:
        if row != leaving and change[row]:
            inverse[row] = [
                old - change[row] * new for old, new in zip(inverse[row], pivot, strict=True)
            ]
    inverse[leaving], weights[leaving] = pivot, weight


def placement(
    policy: PlacementPolicy, counts: Mapping[PodKind, int], nodes: Collection[NodeCapacity]
) -> NodePlacement:
    """The placement of this policy, for pods like `counts` on such nodes."""
    if policy is PlacementPolicy.RESIDUAL:
        return residual(counts, nodes)
    if policy is PlacementPolicy.FGD:
        return published.Fgd(counts)
    if policy is PlacementPolicy.BEST_FIT:
        return published.ByAmounts(published.best_fit, whole=True)
    if policy is PlacementPolicy.BIN_PACK:
        return published.ByAmounts(published.bin_pack)
    if policy is PlacementPolicy.MOST_ALLOCATED:
        return published.ByAmounts(published.most_allocated)
    return published.ByAmounts(published.least_allocated)
