"""The use of GPUs, by the driver's readings: of each card, and of each pod on it, by its
processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from agent.model.devices.device_object import GPU_MEMORY, Device, DeviceType
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse
from agent.usage.series import Aggregate, SampleRing

_MACHINE_SAMPLES: Final = 180
"""Of half an hour: the driver is read every ten seconds."""
_POD_SAMPLES: Final = 60


class UsedGpu(msgspec.Struct, frozen=True):
    """The use of one card. None: the driver does not report it."""

    uuid: str
    minor: int
    core_percent: Aggregate | None = None
    memory_bytes: Aggregate | None = None
    memory_total_bytes: int | None = None


class _Series:
    __slots__ = ("core", "memory")

    def __init__(self, limit: int) -> None:
        self.core, self.memory = SampleRing(limit), SampleRing(limit)

    def add(self, at: float, core_percent: int | None, memory_bytes: int | None) -> None:
        if core_percent is not None:
            self.core.add(at, core_percent)
        if memory_bytes is not None:
            self.memory.add(at, memory_bytes)


class GpuSampler:
    """Keeps the readings of the cards. Any thread may call it.

    `clock`: monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._cards: dict[str, Device] = {}
        self._of_cards: dict[str, _Series] = {}
        self._of_pods: dict[tuple[str, str], _Series] = {}

    def add(
        self,
        devices: Iterable[Device],
        readings: Iterable[GpuReading],
        users: Iterable[GpuUse],
        pods: Collection[str],
    ) -> None:
        """Adds one reading of all cards.

        `users`: the containers that use the cards.
        `pods`: the titles of the pods of the node."""
        at = self._clock()
        with self._lock:
            self._cards = {
                device.uuid: device for device in devices if device.type == DeviceType.GPU
            }
            self._of_cards = {
                uuid: series for uuid, series in self._of_cards.items() if uuid in self._cards
            }
            self._of_pods = {
                key: series
                for key, series in self._of_pods.items()
                if key[0] in pods and key[1] in self._cards
            }
            # A pod whose processes have ended uses nothing.
            used: dict[tuple[str, str], tuple[int | None, int | None]]
            used = dict.fromkeys(self._of_pods, (0, 0))
            for user in users:
                if user.pod in pods and user.uuid in self._cards:
                    core, memory = used.get((user.pod, user.uuid), (None, None))
                    used[user.pod, user.uuid] = (
                        _sum(core, user.sm_percent),
                        _sum(memory, user.memory_bytes),
                    )
            by_uuid = {reading.uuid: reading for reading in readings if reading.uuid in self._cards}
            for uuid, reading in by_uuid.items():
                of_card = self._of_cards.setdefault(uuid, _Series(_MACHINE_SAMPLES))
                of_card.add(at, reading.gpu_percent, reading.memory_used_bytes)
            for (title, uuid), (core, memory) in used.items():
                if uuid not in by_uuid:
                    continue
                if core is None and by_uuid[uuid].gpu_percent is not None:
                    core = 0  # The driver has no sample of a process that computed nothing.
                series = self._of_pods.setdefault((title, uuid), _Series(_POD_SAMPLES))
                series.add(at, core, memory)

    def cards(self, seconds: float) -> tuple[UsedGpu, ...]:
        """The use of all cards in the last `seconds`, by minor."""
        with self._lock:
            at = self._clock() - seconds
            return _sorted(self._used(uuid, of, at) for uuid, of in self._of_cards.items())

    def pods(self, seconds: float) -> dict[str, tuple[UsedGpu, ...]]:
        """By the title of a pod, its use of each card in the last `seconds`."""
        with self._lock:
            at = self._clock() - seconds
            by_title: dict[str, list[UsedGpu]] = {}
            for (title, uuid), series in self._of_pods.items():
                by_title.setdefault(title, []).append(self._used(uuid, series, at))
            return {title: _sorted(used) for title, used in by_title.items()}

    def _used(self, uuid: str, series: _Series, at: float) -> UsedGpu:
        card = self._cards[uuid]
        core, memory = series.core.since(at), series.memory.since(at)
        return UsedGpu(uuid, card.minor, core, memory, card.resources.get(GPU_MEMORY))


def _sum(total: int | None, addend: int | None) -> int | None:
    return total if addend is None else addend + (total or 0)


def _sorted(used: Iterable[UsedGpu]) -> tuple[UsedGpu, ...]:
    return tuple(sorted(used, key=lambda gpu: (gpu.minor, gpu.uuid)))
