"""The devices of a node for allocation: their health, topology and groups, the links between its
GPUs, and their free amounts. Sets of devices of one type are masks over their minors.

An Inventory is built once for a Device object; NodeDevices adds what the pods of the node hold. A
LinkTable has the value of each pair of GPUs for an objective, by its links and by its nearest
common ancestor.

Devices are scored by their utilization, 0 to 100 in whole numbers: LeastAllocated prefers emptier
devices, MostAllocated fuller ones. The score is the mean over the resources with a weight that the
devices have: memory and memory ratio of GPUs, all resources of other types.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.devices.gpu_sets import MAX_GPUS, GpuTable, Matrix, table
from agent.allocate.devices.partitions import MAX_MINOR, Partitions
from agent.allocate.score import points
from agent.model.cpu.policies import GpuObjective, Strategy
from agent.model.devices.device_allocation import (
    DeviceAmounts,
    DeviceTopologyScope,
    VirtualFunctions,
)
from agent.model.devices.device_object import GPU_MEMORY, GPU_MEMORY_RATIO, Device, DeviceType
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.interconnect import GpuLink, Interconnect

LEVELS: Final = {
    DeviceTopologyScope.ANYWHERE: 0,
    DeviceTopologyScope.NODE: 1,
    DeviceTopologyScope.NUMA_NODE: 2,
    DeviceTopologyScope.PCIE: 3,
    DeviceTopologyScope.DEVICE: 4,
}
"""The level of each scope: the narrower the scope, the higher its level."""

_WEIGHED_OF_GPUS: Final = (GPU_MEMORY_RATIO, GPU_MEMORY)

_PCIE_MB_PER_SECOND: Final = {
    Ancestor.BOARD: 6_000,
    Ancestor.SWITCH: 5_000,
    Ancestor.SWITCHES: 4_000,
    Ancestor.HOST_BRIDGE: 3_000,
    Ancestor.NODE: 2_000,
    Ancestor.SYSTEM: 1_000,
}
"""An order rather than a measure: nearer is better, and any NVLink is better than PCIe."""

_BESTEFFORT_POINTS: Final = {
    Ancestor.BOARD: 60,
    Ancestor.SWITCH: 50,
    Ancestor.SWITCHES: 40,
    Ancestor.HOST_BRIDGE: 30,
    Ancestor.NODE: 20,
    Ancestor.SYSTEM: 10,
}

_BESTEFFORT_LINK: Final = 100
"""go-gpuallocator's points of a pair (gpuallocator/besteffort_policy.go, calculateGPUPairScore)."""

Amounts = dict[str, int]


class Inventory(msgspec.Struct, frozen=True):
    """The devices of a node. `fleets`: by device type. `types`: by resource, the device types
    (without GPUs) that list it."""

    fleets: dict[str, Fleet]
    partitions: Partitions = Partitions()
    links: LinkTable | None = None
    types: dict[str, tuple[str, ...]] = {}


class Fleet(msgspec.Struct, frozen=True):
    """All devices of one type. Sets of them are masks of minors."""

    devices: dict[int, Device]
    """By minor."""
    whole: dict[str, int]
    """By resource, the amount of the largest device, healthy or not."""
    weighed: tuple[str, ...]
    """The resources that are scored."""
    totals: dict[int, dict[str, int]]
    """By minor, the amounts of the device; an unhealthy one has none."""
    sums: dict[str, int]
    """The sums of `totals`, for scored resources."""
    all_minors: int
    healthy: int
    numa: dict[int, int]
    """By NUMA node."""
    pcies: dict[str, int]
    """By PCIe switch."""
    groups: tuple[GpuGroup, ...] | None
    """The groups of GPUs, narrow ones before wider ones; None if a device has no topology."""
    virtual: bool
    """Whether a device has virtual functions."""


class GpuGroup(msgspec.Struct, frozen=True):
    """GPUs within one scope: under a PCIe switch, of a NUMA node, or all. `around`: those of its
    NUMA node; of all GPUs none."""

    level: int
    mask: int
    around: int


def inventory(
    devices: Iterable[Device],
    partitions: Partitions | None = None,
    links: LinkTable | None = None,
) -> Inventory:
    """If two devices have one type and minor, the later one counts; devices with impossible minors
    are left out."""
    by_type: dict[str, dict[int, Device]] = {}
    for device in devices:
        if 0 <= device.minor <= MAX_MINOR:
            by_type.setdefault(device.type, {})[device.minor] = device
    fleets = {kind: _fleet(kind, found) for kind, found in by_type.items()}
    types: dict[str, tuple[str, ...]] = {}
    for kind in sorted(fleets.keys() - {DeviceType.GPU}):
        for name in fleets[kind].whole:
            types[name] = (*types.get(name, ()), kind)
    return Inventory(fleets, partitions or Partitions(), links, types)


def _fleet(kind: str, found: dict[int, Device]) -> Fleet:
    devices = dict(sorted(found.items()))
    numa: dict[int, int] = {}
    pcies: dict[str, int] = {}
    for minor, device in devices.items():
        if device.topology is not None:
            node, pcie = device.topology.node, device.topology.pcie
            numa[node] = numa.get(node, 0) | 1 << minor
            pcies[pcie] = pcies.get(pcie, 0) | 1 << minor
    totals = {minor: each.resources if each.healthy else {} for minor, each in devices.items()}
    whole: dict[str, int] = {}
    for device in devices.values():
        for name, amount in device.resources.items():
            whole[name] = max(amount, whole.get(name, 0))
    weighed = _WEIGHED_OF_GPUS if kind == DeviceType.GPU else tuple(sorted(whole))
    return Fleet(
        devices,
        whole,
        weighed,
        totals,
        summed(weighed, totals.values()),
        all_minors=sum(1 << minor for minor in devices),
        healthy=sum(1 << minor for minor, each in devices.items() if each.healthy),
        numa=dict(sorted(numa.items())),
        pcies=dict(sorted(pcies.items())),
        groups=_groups(devices, numa) if kind == DeviceType.GPU else None,
        virtual=any(each.vf_groups for each in devices.values()),
    )


def _groups(devices: Mapping[int, Device], numa: Mapping[int, int]) -> tuple[GpuGroup, ...] | None:
    switches: dict[tuple[int, str], int] = {}
    for minor, device in devices.items():
        place = device.topology
        if place is None:
            return None
        at = place.node, place.pcie
        switches[at] = switches.get(at, 0) | 1 << minor
    groups = []
    for node, around in sorted(numa.items()):
        groups += [
            GpuGroup(LEVELS[DeviceTopologyScope.PCIE], mask, around)
            for (of_node, _), mask in sorted(switches.items())
            if of_node == node
        ]
        groups.append(GpuGroup(LEVELS[DeviceTopologyScope.NUMA_NODE], around, around))
    groups.append(
        GpuGroup(LEVELS[DeviceTopologyScope.NODE], sum(1 << minor for minor in devices), 0)
    )
    return tuple(groups)


class NodeDevices(msgspec.Struct, frozen=True):
    """The devices of a node with what pods leave free, by device type. `taken`: by type and minor,
    the bus ids of the virtual functions that pods hold."""

    inventory: Inventory
    stocks: dict[str, Stock]
    taken: VirtualFunctions = {}

    def state(self) -> Hashable:
        """A value that is equal for nodes of one inventory with the same free devices."""
        free = sorted(
            (kind, minor, *sorted(amounts.items()))
            for kind, stock in self.stocks.items()
            for minor, amounts in stock.free.items()
        )
        used = sorted((kind, stock.used, stock.idle) for kind, stock in self.stocks.items())
        return (
            tuple(free),
            tuple(used),
            tuple(sorted((at, *sorted(each)) for at, each in self.taken.items())),
        )


class Stock(msgspec.Struct, frozen=True):
    """The free amounts of one device type. `free`: by minor; an unhealthy device has none. `sums`:
    their sums. `used`: the devices that a pod holds, whole or in part, healthy or not. `idle`: the
    healthy devices that no pod holds."""

    free: dict[int, Amounts]
    sums: Amounts
    used: int
    idle: int


def node_devices(
    inventory: Inventory, held: DeviceAmounts, taken: VirtualFunctions | None = None
) -> NodeDevices:
    """Holdings beyond a device's resources, or of a missing device, leave nothing free; those with
    an impossible minor are ignored."""
    stocks = {}
    for kind, fleet in inventory.fleets.items():
        used = 0
        free = {}
        for minor, total in fleet.totals.items():
            of_device = held.get((kind, minor))
            free[minor] = _less(total, of_device) if of_device else total
        for (of_kind, minor), amounts in held.items():
            if of_kind == kind and 0 <= minor <= MAX_MINOR and any(amounts.values()):
                used |= 1 << minor
        sums = summed(fleet.weighed, free.values())
        stocks[kind] = Stock(free, sums, used, fleet.healthy & ~used)
    return NodeDevices(inventory, stocks, taken or {})


def _less(total: Mapping[str, int], held: Mapping[str, int]) -> Amounts:
    return {name: max(0, amount - held.get(name, 0)) for name, amount in total.items()}


def device_score(
    weighed: Iterable[str],
    requested: Mapping[str, int],
    total: Mapping[str, int],
    free: Mapping[str, int],
    strategy: Strategy,
) -> int:
    """The score of devices with these summed amounts, after `requested` is allocated too."""
    found = present = 0
    most = strategy is Strategy.MOST_ALLOCATED
    for name in weighed:
        capacity = total.get(name, 0)
        if capacity <= 0:
            continue
        present += 1
        used = capacity - free.get(name, 0) + requested.get(name, 0)
        found += points(most, capacity, used)
    return found // present if present else 0


def summed(weighed: Iterable[str], amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of the resources that have a weight."""
    sums = dict.fromkeys(weighed, 0)
    for each in amounts:
        for name in sums:
            if name in each:
                sums[name] += each[name]
    return sums


class LinkTable(msgspec.Struct, frozen=True):
    """`minors`: the GPUs in the order of the matrix of `table`. `plain`: place and minor are the
    same."""

    minors: tuple[int, ...]
    table: GpuTable
    plain: bool


def links_of(
    reported: Interconnect, objective: GpuObjective = GpuObjective.BANDWIDTH
) -> LinkTable | None:
    """The table for an inventory of these GPUs; None without reported pairs, or with too many GPUs
    for a table. A pair that is not reported has the value 0."""
    minors = sorted({minor for pair in reported for minor in pair})
    if not 0 < len(minors) <= MAX_GPUS:
        return None
    values = {pair: pair_value(link, objective) for pair, link in reported.items()}
    near = {pair: _nearness(link) for pair, link in reported.items()}
    return linked(minors, _matrix(minors, values), objective, _matrix(minors, near))


def linked(
    minors: Iterable[int],
    matrix: Matrix,
    objective: GpuObjective = GpuObjective.BANDWIDTH,
    near: Matrix | None = None,
) -> LinkTable | None:
    """`near`: how near the GPUs of each pair are, more is nearer. None if there are too many GPUs
    for a table. Raises ValueError for a matrix that is not symmetric."""
    places = tuple(minors)
    if len(places) > MAX_GPUS:
        return None
    return LinkTable(places, table(matrix, objective, near), places == tuple(range(len(places))))


def _matrix(minors: list[int], values: Mapping[tuple[int, int], int]) -> Matrix:
    """The matrix of values by pair, lower minor first; 0 for pairs without a value."""
    return tuple(
        tuple(values.get((min(one, two), max(one, two)), 0) for two in minors) for one in minors
    )


def _nearness(link: GpuPair | GpuLink) -> int:
    return 0 if link.ancestor is None else _BESTEFFORT_POINTS[link.ancestor]


def pair_value(pair: GpuPair | GpuLink, objective: GpuObjective) -> int:
    """MB/s in one direction for `bandwidth`, points for `besteffort`."""
    if objective is GpuObjective.BESTEFFORT:
        return _nearness(pair) + _BESTEFFORT_LINK * pair.links
    if pair.mb_per_second:
        return pair.mb_per_second
    return 0 if pair.ancestor is None else _PCIE_MB_PER_SECOND[pair.ancestor]
