"""The models of the peaks of pods, of priority classes and of the system, which learn from the
samples, and are kept in a file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from agent.host import files
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.usage.prediction import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    Buckets,
    DecayingHistogram,
    HistogramCheckpoint,
    Peak,
)

log = logging.getLogger(__name__)

FILE: Final = "predictions.json"
"""The name of the file in the state folder."""
TRAIN_SECONDS: Final = 60.0
"""The time between two samples of each model."""
SAVE_SECONDS: Final = 600.0
"""The time between two writes of the file."""
_UNSEEN_SECONDS: Final = 1800.0
"""A model that got no sample for so long is dropped."""
_MAX_BYTES: Final = 32 << 20
_MAX_MODELS: Final = 4096
_CPU_SHARE: Final = 0.95
_MEMORY_SHARE: Final = 0.98


class _Model:
    __slots__ = ("cpus", "memory", "seen_at")

    def __init__(self, seen_at: float, cpus: DecayingHistogram, memory: DecayingHistogram) -> None:
        self.cpus = cpus
        self.memory = memory
        self.seen_at = seen_at


class _SavedModel(msgspec.Struct, frozen=True):
    seen_at: float
    cpus: HistogramCheckpoint
    memory: HistogramCheckpoint


class _Saved(msgspec.Struct, frozen=True):
    models: Annotated[dict[str, _SavedModel], msgspec.Meta(max_length=_MAX_MODELS)] = {}


_decoder: Final = msgspec.json.Decoder(_Saved)


class Predictor:
    """The models by the uid of a pod, or by the name of a class. Safe for many threads.

    `path`: the file. One that can't be read is replaced: its models learn anew."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._saved_at: float | None = None
        self._models = self._loaded()

    def train(self, used: Mapping[str, tuple[float, float]], at: float) -> None:
        """Adds a sample to each of these models: CPUs and bytes. Saves the models from time to
        time. `at`: seconds since 1970."""
        with self._lock:
            for key, (cpus, memory_bytes) in used.items():
                model = self._models.get(key)
                if model is None and len(self._models) < _MAX_MODELS:
                    histograms = DecayingHistogram(CPU_BUCKETS), DecayingHistogram(MEMORY_BUCKETS)
                    model = self._models[key] = _Model(at, *histograms)
                if model is not None:
                    model.cpus.add(cpus, at)
                    model.memory.add(memory_bytes, at)
                    model.seen_at = at
            self._models = {
                key: model
                for key, model in self._models.items()
                if at - model.seen_at < _UNSEEN_SECONDS
            }
            if self._saved_at is not None and at - self._saved_at < SAVE_SECONDS:
                return
            self._saved_at = at
            saved = _Saved(
                {
                    key: _SavedModel(
                        model.seen_at, model.cpus.checkpoint(), model.memory.checkpoint()
                    )
                    for key, model in self._models.items()
                }
            )
        try:
            files.replace(self._path, msgspec.json.encode(saved), durable=False)
        except OSError as error:
            log.warning("the predictions are not kept: %s", files.reason(error))

    def peaks(self) -> dict[str, Peak]:
        """The peak of each model, without the margin: the p95 of CPU and the p98 of memory."""
        with self._lock:
            return {
                key: Peak(
                    int(1000 * model.cpus.percentile(_CPU_SHARE)),
                    int(model.memory.percentile(_MEMORY_SHARE)),
                )
                for key, model in self._models.items()
            }

    def _loaded(self) -> dict[str, _Model]:
        try:
            saved = bounds.decode(_decoder, files.read(self._path, _MAX_BYTES))
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("the predictions start anew: %s", files.reason(error))
            return {}
        except JsonError as error:
            log.warning("the predictions start anew: %s: %s", self._path, error)
            return {}
        return {
            key: _Model(
                model.seen_at,
                _restored(CPU_BUCKETS, model.cpus),
                _restored(MEMORY_BUCKETS, model.memory),
            )
            for key, model in saved.models.items()
        }


def _restored(buckets: Buckets, saved: HistogramCheckpoint) -> DecayingHistogram:
    """Without buckets that the layout does not have."""
    weights = {
        bucket: weight
        for bucket, weight in saved.bucket_weights.items()
        if 0 <= bucket < buckets.count and weight > 0
    }
    return DecayingHistogram.restored(
        buckets, msgspec.structs.replace(saved, bucket_weights=weights)
    )
