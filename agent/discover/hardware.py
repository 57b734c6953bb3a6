"""Models of CPUs, caches, and kinds of memory, to be displayed; no decision depends on them. A
value whose file is missing or invalid is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agent.discover.sysfs import CPU, NODE, SysfsReader, number
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import (
    CacheGroup,
    CacheKind,
    CpuModel,
    Hardware,
    MemoryKind,
    MemoryTraits,
    NumaNode,
    Topology,
)

_TIERS: Final = "sys/devices/virtual/memory_tiering"
_DAX: Final = "sys/bus/dax/devices"
_NVIDIA: Final = "proc/driver/nvidia/gpus"
_BUSES: Final = (
    ("/ndbus", MemoryKind.PERSISTENT),
    ("/dax_region", MemoryKind.CXL),
    ("/cxl", MemoryKind.CXL),
    ("/hmem", MemoryKind.SPECIAL),
)
"""By a part of the path of the DAX device that became memory of the node: NVDIMMs, a region of CXL,
memory that firmware has marked as special-purpose (drivers/dax of the kernel)."""
_NAMES: Final = ("model name", "cpu model", "uarch", "cpu")
"""The keys of /proc/cpuinfo that name a model: x86, MIPS, RISC-V, POWER."""
_SIZE: Final = re.compile(r"([0-9]{1,12})([KM]?)")
_GPU_NODE: Final = re.compile(r"^Node:\s*([0-9]{1,5})$", re.MULTILINE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20}


def read(root: str, topology: Topology) -> Hardware:
    """What the files below `root` say about this machine."""
    reader = SysfsReader(Tree(root))
    return Hardware(
        tuple(_models(reader.text("proc/cpuinfo") or "", topology.online)),
        tuple(_caches(reader, topology)),
        tuple(_memory(reader, topology.numa_nodes)),
    )


def _models(text: str, online: CpuSet) -> Iterator[CpuModel]:
    by_name: dict[str, list[int]] = {}
    of_all = ""
    for block in text.split("\n\n"):
        facts: dict[str, str] = {}
        for line in block.splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), " ".join(value.split()))
        # Kernels for ARM before 3.8 name the model once, as the "Processor".
        of_all = facts.get("Processor", of_all)
        cpu = number(facts.get("processor"))
        if cpu is not None and 0 <= cpu < 1 << 16 and cpu in online:
            by_name.setdefault(_model(facts), []).append(cpu)
    if of_all:
        by_name = {of_all: list(online)}
    yield from (CpuModel(name, CpuSet(cpus)) for name, cpus in by_name.items() if name)


def _model(facts: dict[str, str]) -> str:
    lower = {key.lower(): value for key, value in facts.items()}
    for name in _NAMES:
        if lower.get(name):
            return lower[name]
    if part := lower.get("cpu part"):
        return f"implementer {lower.get('cpu implementer', 'unknown')}, part {part}"
    vendor, family = lower.get("vendor", ""), lower.get("family", "")
    return f"{vendor} family {family}" if vendor and family else ""


def _caches(reader: SysfsReader, topology: Topology) -> Iterator[CacheGroup]:
    threads: dict[int, list[int]] = {}
    for cpu in topology.cpus:
        threads.setdefault(cpu.core, []).append(cpu.id)
    online = topology.online.mask
    claimed: dict[tuple[int, CacheKind], int] = {}
    groups: dict[tuple[int, CacheKind, int], list[CpuSet]] = {}
    for cpu in topology.cpus:
        folder = f"{CPU}/cpu{cpu.id}/cache"
        for path in (f"{folder}/{name}" for name in reader.names(folder) if "index" in name):
            level = reader.integer(f"{path}/level")
            kind = (reader.text(f"{path}/type") or "").lower()
            if level is None or kind not in _KINDS:
                continue
            key = level, CacheKind(kind)
            others = claimed.get(key, 0)
            if others >> cpu.id & 1:
                continue
            # Some ia64 kernels have empty maps: then the cache belongs to the core.
            sharers = reader.mask(f"{path}/shared_cpu_map") or CpuSet(threads[cpu.core])
            of_cache = sharers.mask & online
            members = (of_cache | 1 << cpu.id) & ~others
            claimed[key] = others | members
            size = _size_bytes(reader.text(f"{path}/size")) or 0
            groups.setdefault((*key, size), []).append(CpuSet.from_int(members))
    for level, kind, size in sorted(groups, key=lambda it: (it[0], _KINDS.index(it[1]), -it[2])):
        yield CacheGroup(level, kind, size or None, tuple(groups[level, kind, size]))


_KINDS: Final = tuple(CacheKind)


def _size_bytes(text: str | None) -> int | None:
    match = _SIZE.fullmatch(text) if text else None
    return int(match[1]) * _UNITS[match[2]] if match else None


def _memory(reader: SysfsReader, nodes: tuple[NumaNode, ...]) -> Iterator[MemoryTraits]:
    tiers = _tiers(reader)
    buses = _of_buses(reader) | dict.fromkeys(_of_gpus(reader), MemoryKind.GPU)
    speeds = {node.id: _speed(reader, node.id) for node in nodes}
    with_cpus = [node.id for node in nodes if node.cpus]
    rate_of_cpus = min((speeds[node][0] or 0 for node in with_cpus), default=0)
    tier_of_cpus = max((tiers[node] for node in with_cpus if node in tiers), default=None)
    for node in nodes:
        rate, latency = speeds[node.id]
        tier = tiers.get(node.id)
        kind = buses.get(node.id)
        if kind in (None, MemoryKind.SPECIAL):
            kind = _by_speed(rate, rate_of_cpus, tier, tier_of_cpus) or kind
        if not node.memory_bytes:
            kind = None
        elif kind is None and node.cpus:
            kind = MemoryKind.DRAM
        side_cache = _side_cache_bytes(reader, node.id)
        yield MemoryTraits(node.id, kind, tier, rate, latency, side_cache)


def _by_speed(
    rate: int | None, rate_of_cpus: int, tier: int | None, tier_of_cpus: int | None
) -> MemoryKind | None:
    """The kind of a node's memory, compared with the slowest node with CPUs by bandwidth, otherwise
    by tier; None if neither is known. HBM has a multiple of the bandwidth of DRAM."""
    if rate and rate_of_cpus:
        if rate >= 2 * rate_of_cpus:
            return MemoryKind.HBM
        return MemoryKind.SLOW if 2 * rate <= rate_of_cpus else MemoryKind.DRAM
    if tier is None or tier_of_cpus is None:
        return None
    if tier == tier_of_cpus:
        return MemoryKind.DRAM
    return MemoryKind.HBM if tier < tier_of_cpus else MemoryKind.SLOW


def _tiers(reader: SysfsReader) -> dict[int, int]:
    """The tier of each NUMA node (since Linux 6.1)."""
    tiers: dict[int, int] = {}
    for name in reader.names(_TIERS):
        tier = number(name.removeprefix("memory_tier"))
        path = f"{_TIERS}/{name}/nodelist"
        if tier is not None:
            tiers |= dict.fromkeys(reader.cpus(path, path) or (), tier)
    return tiers


def _of_buses(reader: SysfsReader) -> dict[int, MemoryKind]:
    """The kind of the NUMA nodes whose memory was made from DAX devices."""
    kinds = {}
    for name in reader.names(_DAX):
        node = reader.integer(f"{_DAX}/{name}/target_node")
        link = reader.link(f"{_DAX}/{name}")
        kind = next((kind for part, kind in _BUSES if part in link), None)
        if node is not None and kind is not None:
            kinds[node] = kind
    return kinds


def _of_gpus(reader: SysfsReader) -> Iterator[int]:
    """The nodes with the memory of NVIDIA's cards, on machines whose CPUs address it."""
    for address in reader.names(_NVIDIA):
        match = _GPU_NODE.search(reader.text(f"{_NVIDIA}/{address}/numa_status") or "")
        if match:
            yield int(match[1])


def _speed(reader: SysfsReader, node: int) -> tuple[int | None, int | None]:
    """MiB/s and ns of reads. `access1` is of the nearest CPUs; `access0` may be of another
    initiator, such as a GPU, and is the only one before Linux 5.10."""
    for access in ("access1", "access0"):
        folder = f"{NODE}/node{node}/{access}/initiators"
        rate = reader.integer(f"{folder}/read_bandwidth")
        latency = reader.integer(f"{folder}/read_latency")
        if rate or latency:
            return rate or None, latency or None
    return None, None


def _side_cache_bytes(reader: SysfsReader, node: int) -> int | None:
    folder = f"{NODE}/node{node}/memory_side_cache"
    sizes = (number(reader.text(f"{folder}/{name}/size")) for name in reader.names(folder))
    return sum(each or 0 for each in sizes) or None
