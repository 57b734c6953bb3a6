"""The peaks that pods and the system are expected to reach, and what production pods request above
theirs, as koordlet predicts them (Koordinator: pkg/koordlet/prediction; the histogram is that of
the vertical pod autoscaler, pkg/recommender/util/decaying_histogram.go).

A sample weighs twice as much as one that is a half-life older. A percentile is the end of its
bucket, so that a pod which uses nothing has the first bucket's end as its peak."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_GROWTH: Final = 1.05
_LEAST_WEIGHT: Final = 0.0001
"""The first and the last bucket with this weight bound the histogram."""
_MOST_HALF_LIVES: Final = 100.0
"""After so many, the reference moves to the new sample."""
_KEPT_WEIGHT: Final = 10_000
"""The weight of the heaviest bucket in a checkpoint."""
MARGIN: Final = 1.10
"""The factor of peaks for safety."""
COLD_SECONDS: Final = 86_400.0
"""A younger pod counts with its request."""


class Buckets(msgspec.Struct, frozen=True):
    """The layout of a histogram: each bucket is 5 % wider than the one before."""

    first: float
    """The end of the first bucket."""
    largest: float
    half_life_seconds: float

    @property
    def count(self) -> int:
        growing = math.log(self.largest * (_GROWTH - 1) / self.first + 1, _GROWTH)
        return math.ceil(growing) + 1

    def start(self, bucket: int) -> float:
        return self.first * (_GROWTH**bucket - 1) / (_GROWTH - 1)

    def of(self, value: float) -> int:
        if value < self.first:
            return 0
        growing = math.log(value * (_GROWTH - 1) / self.first + 1) / math.log(_GROWTH)
        return min(math.floor(growing), self.count - 1)


CPU_BUCKETS: Final = Buckets(0.025, 1024.0, 43_200.0)
"""In CPUs."""
MEMORY_BUCKETS: Final = Buckets(float(5 << 20), float(1 << 41), 86_400.0)
"""In bytes."""


class HistogramCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """A histogram without the precision of its weights."""

    reference_seconds: float
    """Seconds since 1970."""
    bucket_weights: dict[int, int]
    total_weight: float


class DecayingHistogram:
    """Samples of weight 1 at their time. Times are in seconds since 1970."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._weights: dict[int, float] = {}
        self._total = 0.0
        self._reference: float | None = None

    @property
    def empty(self) -> bool:
        return not self._bounds()

    def add(self, value: float, at: float) -> None:
        half_life = self._buckets.half_life_seconds
        if self._reference is None or at > self._reference + half_life * _MOST_HALF_LIVES:
            self._refer_to(at)
        assert self._reference is not None
        weight = 2.0 ** ((at - self._reference) / half_life)
        bucket = self._buckets.of(value)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + weight
        self._total += weight

    def percentile(self, share: float) -> float:
        """The end of the bucket that the share of the weight reaches; 0 without samples."""
        bounds = self._bounds()
        if not bounds:
            return 0.0
        bucket, last = bounds
        reached = self._weights.get(bucket, 0.0)
        while bucket < last and reached < share * self._total:
            bucket += 1
            reached += self._weights.get(bucket, 0.0)
        return self._buckets.start(min(bucket + 1, self._buckets.count - 1))

    def checkpoint(self) -> HistogramCheckpoint:
        heaviest = max(self._weights.values(), default=0.0)
        scale = _KEPT_WEIGHT / heaviest if heaviest else 0.0
        weights = {
            bucket: kept
            for bucket, weight in sorted(self._weights.items())
            if (kept := math.floor(weight * scale + 0.5)) > 0
        }
        return HistogramCheckpoint(self._reference or 0.0, weights, self._total)

    @staticmethod
    def restored(buckets: Buckets, checkpoint: HistogramCheckpoint) -> DecayingHistogram:
        histogram = DecayingHistogram(buckets)
        kept = sum(checkpoint.bucket_weights.values())
        if kept:
            scale = checkpoint.total_weight / kept
            histogram._weights = {
                bucket: weight * scale for bucket, weight in checkpoint.bucket_weights.items()
            }
            histogram._total = checkpoint.total_weight
        histogram._reference = checkpoint.reference_seconds
        return histogram

    def _refer_to(self, at: float) -> None:
        half_life = self._buckets.half_life_seconds
        reference = math.floor(at / half_life + 0.5) * half_life
        if self._reference is not None:
            scale = 2.0 ** round((self._reference - reference) / half_life)
            self._weights = {bucket: weight * scale for bucket, weight in self._weights.items()}
            self._total *= scale
        self._reference = reference

    def _bounds(self) -> tuple[int, int] | None:
        """The first and the last bucket that count."""
        heavy = [bucket for bucket, weight in self._weights.items() if weight >= _LEAST_WEIGHT]
        return (min(heavy), max(heavy)) if heavy else None


class Peak(msgspec.Struct, frozen=True):
    """Milli-CPU, and bytes of memory."""

    cpu_milli: int = 0
    memory_bytes: int = 0

    @staticmethod
    def of(amounts: Mapping[str, int]) -> Peak:
        """The `cpu` and the `memory` of these amounts."""
        return Peak(amounts.get("cpu", 0), amounts.get("memory", 0))

    @property
    def amounts(self) -> dict[str, int]:
        return {"cpu": self.cpu_milli, "memory": self.memory_bytes}

    def times(self, factor: float) -> Peak:
        return Peak(int(self.cpu_milli * factor), int(self.memory_bytes * factor))

    def __add__(self, other: Peak) -> Peak:
        return Peak(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def above(self, other: Peak) -> Peak:
        """What exceeds the other one, at least 0."""
        return Peak(
            max(0, self.cpu_milli - other.cpu_milli),
            max(0, self.memory_bytes - other.memory_bytes),
        )

    def lesser(self, other: Peak) -> Peak:
        return Peak(
            min(self.cpu_milli, other.cpu_milli), min(self.memory_bytes, other.memory_bytes)
        )

    def greater(self, other: Peak) -> Peak:
        return Peak(
            max(self.cpu_milli, other.cpu_milli), max(self.memory_bytes, other.memory_bytes)
        )


class PredictedPod(msgspec.Struct, frozen=True):
    """A production pod."""

    request: Peak
    peak: Peak | None
    """None without a model."""
    age_seconds: float
    ends: bool = False
    """It is being deleted, or has ended."""


class Prediction(msgspec.Struct, frozen=True):
    """What production pods will use at most, and what others may have of their requests."""

    peak: Peak
    reclaimable: Peak


def predicted(
    allocatable: Peak, pods: Iterable[PredictedPod], classes: Mapping[str, Peak]
) -> Prediction | None:
    """The smaller reclaimable amounts and the larger peak of two predictions: pod by pod, and of
    all production pods together with the system.

    A pod without a model, and a young one, also if it has ended, has its request as its peak. In
    the second prediction the request of a pod without a model is missing, as in koordlet.

    `allocatable`: before amplification.
    `classes`: the peaks of `SYSTEM`, `PROD` and `UNCLASSED`; None without one of these."""
    together = [classes.get(name) for name in (SYSTEM, PROD, UNCLASSED)]
    peak_of_all = Peak()
    for peak in together:
        if peak is None:
            return None
        peak_of_all += peak
    peak_of_all = peak_of_all.times(MARGIN)
    of_pods, spare, requests = Peak(), Peak(), Peak()
    for pod in pods:
        young = pod.age_seconds < COLD_SECONDS
        if pod.ends and not young:
            continue
        own = pod.request
        if not young and pod.peak is not None:
            own = pod.peak.times(MARGIN)
            spare += pod.request.above(own)
        of_pods += own
        if not pod.ends and (young or pod.peak is not None):
            requests += pod.request
    by_pod = Prediction(of_pods, spare.lesser(allocatable.above(of_pods)))
    by_class = Prediction(
        peak_of_all, requests.above(peak_of_all).lesser(allocatable.above(peak_of_all))
    )
    return Prediction(
        by_pod.peak.greater(by_class.peak), by_pod.reclaimable.lesser(by_class.reclaimable)
    )


SYSTEM: Final = "__node-sys__"
PROD: Final = "__node-koord-prod__"
UNCLASSED: Final = "__node-__"
