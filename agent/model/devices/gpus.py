"""GPUs as their driver reports them: identity, links and readings. A value that the driver does not
report is None, never 0."""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


class LinkEnd(enum.StrEnum):
    """The device at the other end of an NVLink. The address of a switch is not that of a GPU."""

    GPU = "gpu"
    NPU = "npu"
    SWITCH = "switch"
    UNKNOWN = "unknown"


class Ancestor(enum.IntEnum):
    """The nearest common ancestor of two cards, as NVML numbers it."""

    BOARD = 0
    SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NODE = 40
    SYSTEM = 50


class NvLink(msgspec.Struct, frozen=True):
    """An active link."""

    number: int
    version: int | None
    end: LinkEnd
    bus: str = ""
    """The PCI address of its other end, "" if unknown."""


class MigInstance(msgspec.Struct, frozen=True):
    uuid: str
    gpu_instance: int
    compute_instance: int | None = None
    slices: tuple[int, int] | None = None
    """The slices of the GPU instance, and of the compute instance in it; None if they are
    unknown."""
    memory_bytes: int | None = None
    index: int | None = None
    """NVML's number of the instance on its card, None if unknown."""


class Gpu(msgspec.Struct, frozen=True):
    """One card. None: the driver does not report the value."""

    uuid: str
    index: int
    """Its place in NVML's enumeration, which a boot may change; -1 if it has none."""
    bus: str
    """Its PCI address as sysfs writes it."""
    product: str = ""
    minor: int | None = None
    """The number in /dev/nvidiaN, which may differ from the index."""
    memory_bytes: int | None = None
    """None for a card that uses the host's memory (GB10)."""
    serial: str | None = None
    module: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool | None = None
    """None if the card has no MIG mode."""
    instances: tuple[MigInstance, ...] = ()
    links: tuple[NvLink, ...] = ()


class GpuPair(msgspec.Struct, frozen=True):
    """Two cards by UUID, the one with the lower index first."""

    one: str
    two: str
    ancestor: Ancestor | None = None
    peer: bool | None = None
    """Whether each may read the other's memory, None if unknown."""
    links: int = 0
    """The NVLinks between them, or from each to the NVSwitches."""
    mb_per_second: int = 0
    """The bandwidth of all these links, one way."""
    switched: bool = False
    """The links go through NVSwitches."""


class SilentGpu(msgspec.Struct, frozen=True):
    """A card that the driver enumerates without all values."""

    index: int
    fault: str
    """The reason of a Condition."""
    uuid: str = ""
    bus: str = ""


class GpuInventory(msgspec.Struct, frozen=True):
    driver: str
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    silent: tuple[SilentGpu, ...] = ()


class RemappedRows(msgspec.Struct, frozen=True):
    """Rows of memory that spare rows replace."""

    uncorrectable: int
    pending: bool
    """A reset will remap more rows."""
    failed: bool
    """No spare row was left."""


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that uses a card, by its pid on the host."""

    pid: int
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    graphics: bool = False
    sm_percent: int | None = None
    """None if the driver has no sample of the last second."""


class GpuReading(msgspec.Struct, frozen=True):
    """The current values of one card. None: the driver does not report the value. ECC errors and
    energy are counted since the driver was loaded."""

    uuid: str
    memory_used_bytes: int | None = None
    gpu_percent: int | None = None
    sm_mhz: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    energy_millijoules: int | None = None
    ecc_uncorrected: int | None = None
    remapped: RemappedRows | None = None
    retirement_pending: bool | None = None
    """Failed memory pages wait for a reset; None if the card remaps rows instead."""
    recovery_action: int | None = None
    """The driver's number of the action, 0 for none."""
    processes: tuple[GpuProcess, ...] | None = None


class GpuEvent(msgspec.Struct, frozen=True):
    """An event of the driver."""

    uuid: str
    """Empty if the card is unknown."""
    xid: int | None = None
    """None for another event, after which a new report is needed."""
    gpu_instance: int | None = None
    """The affected part of the card, None for the whole."""


NO_ANSWER: Final = "NoAnswer"
NO_PROCESS: Final = "NoProcess"
CHILD_ENDED: Final = "ChildEnded"
CLOSED: Final = "LetGo"
NOT_QUERIED: Final = frozenset({NO_PROCESS, CHILD_ENDED, CLOSED})
"""Reasons why the driver was not queried; they are not faults of a card."""


class GpuReport(msgspec.Struct, frozen=True):
    """A report of all cards."""

    fault: str = ""
    """Why the driver could not be queried; then there is no inventory."""
    message: str = ""
    inventory: GpuInventory | None = None
    readings: tuple[GpuReading, ...] = ()


def pci_address(text: str) -> str:
    """NVML's `00000000:3B:00.0` as sysfs writes it, `0000:3b:00.0`: a domain has as many digits as
    it needs and at least four. "" for an invalid address, and for NVML's address of an unknown end
    (all ones)."""
    match = _ADDRESS.fullmatch(text.strip("\0 "))
    if match is None:
        return ""
    domain, bus, device = (int(part, 16) for part in match.groups()[:3])
    if domain == 0xFFFFFFFF or device > 0x1F:
        return ""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match[4]}"


class GpuInfo(msgspec.Struct, frozen=True):
    """What a node's cards have in common; "" if unknown, or if they differ."""

    vendor: str = ""
    product: str = ""
    """The driver's name (`NVIDIA A100-SXM4-80GB`)."""
    driver_version: str = ""
