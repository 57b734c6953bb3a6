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
    """An active link; `bus`: the PCI address of its other end, "" when unknown."""

    number: int
    version: int | None
    end: LinkEnd
    bus: str = ""


class MigInstance(msgspec.Struct, frozen=True):
    """`index`: NVML's number of the instance on its card. `slices`: those of the GPU instance, and
    those of the compute instance in it."""

    uuid: str
    gpu_instance: int
    compute_instance: int | None = None
    slices: tuple[int, int] | None = None
    memory_bytes: int | None = None
    index: int | None = None


class Gpu(msgspec.Struct, frozen=True):
    """One card. `index`: its place in NVML's enumeration, which a boot may change, -1 if it has
    none. `minor`: the number in /dev/nvidiaN, which may differ from the index. `bus`: as sysfs
    writes it. `mig` None: the card has no MIG mode. `memory_bytes` None: it uses the host's memory
    (GB10)."""

    uuid: str
    index: int
    bus: str
    product: str = ""
    minor: int | None = None
    memory_bytes: int | None = None
    serial: str | None = None
    module: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    links: tuple[NvLink, ...] = ()


class GpuPair(msgspec.Struct, frozen=True):
    """Two cards by UUID, the lower index first. `peer`: whether each may read the other's memory.
    `links`: the number of NVLinks between them; if they are connected through NVSwitches
    (`switched`), the number that each has to the switches. `mb_per_second`: the bandwidth of all
    these links, one way."""

    one: str
    two: str
    ancestor: Ancestor | None = None
    peer: bool | None = None
    links: int = 0
    mb_per_second: int = 0
    switched: bool = False


class SilentGpu(msgspec.Struct, frozen=True):
    """A card that the driver enumerates, but not with all values; `fault`: the reason of a
    Condition."""

    index: int
    fault: str
    uuid: str = ""
    bus: str = ""


class GpuInventory(msgspec.Struct, frozen=True):
    driver: str
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    silent: tuple[SilentGpu, ...] = ()


class RemappedRows(msgspec.Struct, frozen=True):
    """`pending`: a reset will remap more rows. `failed`: no spare row was left."""

    uncorrectable: int
    pending: bool
    failed: bool


class GpuProcess(msgspec.Struct, frozen=True):
    """`pid`: in the host's namespace. Percents are None if the driver has no sample of the last
    second."""

    pid: int
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    graphics: bool = False
    sm_percent: int | None = None


class GpuReading(msgspec.Struct, frozen=True):
    """The current values of one card. ECC counts and energy are since the driver was loaded.
    `retirement_pending`: failed memory pages wait for a reset, None if the card remaps rows
    instead. `recovery_action`: the driver's, 0 for none. `processes` None: unknown."""

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
    recovery_action: int | None = None
    processes: tuple[GpuProcess, ...] | None = None


class GpuEvent(msgspec.Struct, frozen=True):
    """An event of the driver. `xid` None: another event, after which a new report is needed. `uuid`
    "": the card is unknown. `gpu_instance`: the affected part of the card."""

    uuid: str
    xid: int | None = None
    gpu_instance: int | None = None


NO_ANSWER: Final = "NoAnswer"
NO_PROCESS: Final = "NoProcess"
CHILD_ENDED: Final = "ChildEnded"
CLOSED: Final = "LetGo"
NOT_QUERIED: Final = frozenset({NO_PROCESS, CHILD_ENDED, CLOSED})
"""Reasons why the driver was not queried; they are not faults of a card."""


class GpuReport(msgspec.Struct, frozen=True):
    """A report of all cards. `fault` other than "": the reason why the driver could not be queried;
    then `inventory` is None."""

    fault: str = ""
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
    """Properties of a node's cards; "" if unknown, or if the cards differ. `product`: as the driver
    writes it (`NVIDIA A100-SXM4-80GB`)."""

    vendor: str = ""
    product: str = ""
    driver_version: str = ""
