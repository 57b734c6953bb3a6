"""What one look shows of each card: states, and which of them it tells nothing of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from agent.model import gpuactions
from agent.model.gpus import Gpu, GpuInventory, GpuReading, SilentGpu


class GpuStates:
    """`buses`: where PCI has NVIDIA's GPUs, None if nobody looked."""

    def __init__(
        self,
        inventory: GpuInventory,
        readings: Collection[GpuReading],
        buses: Collection[str] | None,
    ) -> None:
        self._silent = inventory.silent
        self._enumerated = {gpu.uuid for gpu in inventory.gpus}
        self._places = {gpu.bus for gpu in inventory.gpus}
        self._readings = {each.uuid: each for each in readings}
        self._buses = buses

    def reading(self, gpu: Gpu) -> GpuReading | None:
        return self._readings.get(gpu.uuid)

    def enumerates(self, gpu: Gpu) -> bool:
        """Whether the driver counts it, though it may tell nothing of it."""
        return gpu.uuid in self._enumerated or self._silence(gpu) is not None

    def replaced(self, gpu: Gpu) -> bool:
        """Another card is where this one was."""
        return gpu.uuid not in self._enumerated and gpu.bus in self._places

    def taken_out(self, gpu: Gpu) -> bool:
        """Neither NVML nor PCI has it."""
        here = gpu.uuid in self._enumerated or self._buses is None or gpu.bus in self._buses
        return not here and self._silence(gpu) is None

    def of(self, gpu: Gpu) -> Iterator[tuple[str, str]]:
        """Reasons and messages."""
        silent = self._silence(gpu)
        if silent is not None:
            yield silent.fault, "the driver gets no answer from the card"
        elif gpu.uuid not in self._enumerated:
            there = self._buses is not None and gpu.bus in self._buses
            also = f", while PCI has a card at {gpu.bus}" if there else ""
            yield gpuactions.NOT_ENUMERATED, f"the driver does not list the card{also}"
        reading = self.reading(gpu)
        if reading is not None:
            yield from _ills(reading)

    def unanswered(self, gpu: Gpu) -> frozenset[str]:
        """Reasons that the card's reading neither shows nor refutes: the driver did not tell."""
        reading = self.reading(gpu) or GpuReading(gpu.uuid)
        rows, pages = reading.remapped, reading.retirement_pending
        answered = {
            gpuactions.REMAP_PENDING: rows is not None,
            gpuactions.REMAP_FAILED: rows is not None,
            gpuactions.RETIREMENT_PENDING: rows is not None or pages is not None,
            gpuactions.UNCORRECTABLE: rows is not None or reading.ecc_uncorrected is not None,
            gpuactions.ADVISED: reading.recovery_action is not None,
        }
        return frozenset(reason for reason, told in answered.items() if not told)

    def _silence(self, gpu: Gpu) -> SilentGpu | None:
        """A lost card keeps its index even where the driver no longer tells whose it is."""
        for each in self._silent:
            nameless = not each.uuid and gpu.uuid not in self._enumerated
            if each.uuid == gpu.uuid or (nameless and each.index == gpu.index):
                return each
        return None


def _ills(reading: GpuReading) -> Iterator[tuple[str, str]]:
    rows = reading.remapped
    if rows is not None and rows.failed:
        yield gpuactions.REMAP_FAILED, "no spare rows are left where memory failed"
    if rows is not None and rows.pending:
        yield gpuactions.REMAP_PENDING, "a reset will replace rows of memory that failed"
    if reading.retirement_pending:
        yield gpuactions.RETIREMENT_PENDING, "a reset will retire pages of memory that failed"
    # Where rows are remapped, an error that was contained leaves the card as good as it was.
    if rows is None and reading.ecc_uncorrected:
        errors = f"{reading.ecc_uncorrected} uncorrectable ECC errors"
        yield gpuactions.UNCORRECTABLE, f"{errors} since the driver's start"
    if reading.recovery_action:
        yield gpuactions.ADVISED, f"the driver advises recovery action {reading.recovery_action}"
