"""The devices of a node for allocation: health, topology and groups. Sets of devices of one type
are masks over their minors. Built once for a Device object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.devices.bandwidth import MOST, Matrix
from agent.allocate.devices.besteffort import GpuTable, table
from agent.allocate.devices.partitions import MAX_MINOR, Partitions
from agent.allocate.devices.scores import summed
from agent.model.device_wishes import DeviceTopologyScope
from agent.model.devices import Device, DeviceType
from agent.model.policies import GpuObjective

LEVELS: Final = {
    DeviceTopologyScope.ANYWHERE: 0,
    DeviceTopologyScope.NODE: 1,
    DeviceTopologyScope.NUMA_NODE: 2,
    DeviceTopologyScope.PCIE: 3,
    DeviceTopologyScope.DEVICE: 4,
}
"""How narrow a scope is."""


class GpuGroup(msgspec.Struct, frozen=True):
    """GPUs within one scope: under a PCIe switch, of a NUMA node, or all. `around`: those of its
    NUMA node; of all GPUs none."""

    level: int
    mask: int
    around: int


class Fleet(msgspec.Struct, frozen=True):
    """All devices of one type. `totals`: nothing of an unhealthy one; `sums`: of the scored
    resources. `pcies`: by switch. `groups`: narrower ones before those around them, by NUMA id and
    switch; None when a device has no topology."""

    devices: dict[int, Device]
    totals: dict[int, dict[str, int]]
    sums: dict[str, int]
    everyone: int
    healthy: int
    numa: dict[int, int]
    pcies: dict[str, int]
    groups: tuple[GpuGroup, ...] | None
    virtual: bool


class LinkTable(msgspec.Struct, frozen=True):
    """GPUs by their places in the matrix that `table` is of. `plain`: place and minor are the
    same."""

    minors: tuple[int, ...]
    table: GpuTable
    plain: bool


class Inventory(msgspec.Struct, frozen=True):
    """By device type."""

    fleets: dict[str, Fleet]
    partitions: Partitions = Partitions()
    links: LinkTable | None = None


def inventory(
    devices: Iterable[Device],
    partitions: Partitions | None = None,
    links: LinkTable | None = None,
) -> Inventory:
    """Of two devices of one type and minor the later counts; a minor that no machine has is left
    out."""
    by_type: dict[str, dict[int, Device]] = {}
    for device in devices:
        if 0 <= device.minor <= MAX_MINOR:
            by_type.setdefault(device.type, {})[device.minor] = device
    fleets = {kind: _fleet(kind, found) for kind, found in by_type.items()}
    return Inventory(fleets, partitions or Partitions(), links)


def linked(
    minors: Iterable[int],
    matrix: Matrix,
    objective: GpuObjective = GpuObjective.BANDWIDTH,
    near: Matrix | None = None,
) -> LinkTable | None:
    """`near`: how near the GPUs of each pair are, more is nearer. None where there are too many
    GPUs for a table. Raises ValueError for a lopsided matrix."""
    places = tuple(minors)
    if len(places) > MOST:
        return None
    return LinkTable(places, table(matrix, objective, near), places == tuple(range(len(places))))


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
    return Fleet(
        devices,
        totals,
        summed(totals.values()),
        everyone=sum(1 << minor for minor in devices),
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
