"""The content of a node's report, before it is encoded: zones, annotations, labels and resources.

The zones are the machine's NUMA nodes with the amounts that are available, by the rules of
resource-topology-exporter (pkg/resourcemonitor/resourcemonitor.go, Scan), with two differences: a
pod's memory counts on each NUMA node only for the part that is there, not in full on every node;
and only CPUs that pods own are subtracted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import NumaNode, Topology
from agent.model.devices.device_allocation import DeviceAmounts
from agent.model.devices.device_object import Device, Portion, portions
from agent.model.devices.gpus import GpuInfo
from agent.model.nrt import node_status
from agent.model.nrt.node_annotations import (
    NearRequests,
    NodeConfiguration,
    PodCpuAlloc,
    RefusedClaim,
    koordinator_annotations,
)
from agent.model.nrt.node_status import node_labels
from agent.model.nrt.resource_topology import (
    FINGERPRINT_METHOD,
    L3_CPUS,
    Amounts,
    FingerprintMethod,
    NodeTopology,
    OwnerReference,
    Zone,
)
from agent.model.pod.qos import Pools

MANAGED_BY = "app.kubernetes.io/managed-by"


class Allocated(msgspec.Struct, frozen=True):
    """The resources of one pod: the CPUs that it owns, and amounts by NUMA node and resource
    (bytes, or a number of devices; `cpu` is a share of a pool and is not counted). A pod counts
    until the runtime has removed it."""

    cpus: CpuSet = EMPTY
    amounts: Mapping[int, Mapping[str, int]] = {}


class Reserved(msgspec.Struct, frozen=True):
    """The reserved CPUs, and the reserved bytes of memory by NUMA node."""

    cpus: CpuSet = EMPTY
    memory_bytes: Mapping[int, int] = {}


NO_AMOUNTS: Final[Mapping[int, Mapping[str, int]]] = MappingProxyType({})


def zones(
    topology: Topology,
    held: Iterable[Allocated] = (),
    reserved: Reserved | None = None,
    devices: Iterable[Portion] = (),
    offered: Mapping[int, Mapping[str, int]] = NO_AMOUNTS,
) -> tuple[Zone, ...]:
    """One zone for each NUMA node.

    `allocatable` of cpu includes reserved CPUs, because Koordinator's scheduler subtracts them by
    the annotations. `available`, the only value that other schedulers read, is without them.

    `offered`: the batch resources of NUMA nodes by name; no pod is subtracted, as by koord-manager.
    """
    held, devices = tuple(held), tuple(devices)
    reserved = reserved or Reserved()
    taken = union(each.cpus for each in held) | reserved.cpus
    return tuple(
        Zone(
            node.id,
            {
                **_host(node, taken, _held_on(node.id, held), reserved.memory_bytes),
                **_devices(each for each in devices if each.node == node.id),
                **{
                    name: Amounts(amount, amount, amount)
                    for name, amount in offered.get(node.id, {}).items()
                },
            },
            dict(zip((other.id for other in topology.numa_nodes), node.distances, strict=False)),
            _caches(node, topology),
        )
        for node in topology.numa_nodes
    )


def core_kinds(topology: Topology) -> dict[str, str]:
    """Attributes with the CPUs of each core kind, on a machine with several kinds."""
    kinds = sorted({cpu.kind for cpu in topology.cpus if cpu.kind is not None})
    if len(kinds) < 2:
        return {}
    return {
        f"cpu_{kind}": str(CpuSet(cpu.id for cpu in topology.cpus if cpu.kind == kind))
        for kind in kinds
    }


def _host(
    node: NumaNode, taken: CpuSet, held: Mapping[str, int], reserved_bytes: Mapping[int, int]
) -> dict[str, Amounts]:
    cpu_milli = 1000 * len(node.cpus)
    amounts = {"cpu": Amounts(cpu_milli, cpu_milli, 1000 * len(node.cpus - taken))}
    memory_bytes = node.memory_bytes
    for pages in node.hugepages:
        size = pages.size_bytes
        total, name = size * pages.total, f"hugepages-{_binary(size)}"
        memory_bytes -= total
        if total:
            left = min(total - held.get(name, 0), size * pages.free)
            amounts[name] = Amounts(total, total, max(0, left))
    memory_bytes = max(0, memory_bytes)
    allocatable = max(0, memory_bytes - reserved_bytes.get(node.id, 0))
    left = max(0, allocatable - held.get("memory", 0))
    amounts["memory"] = Amounts(memory_bytes, allocatable, left)
    return amounts


def _held_on(node: int, held: Iterable[Allocated]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in held:
        for name, amount in each.amounts.get(node, {}).items():
            sums[name] = sums.get(name, 0) + amount
    return sums


def _devices(portions: Iterable[Portion]) -> dict[str, Amounts]:
    sums: dict[str, Amounts] = {}
    for each in portions:
        before = sums.get(each.resource, Amounts(0, 0, 0))
        sums[each.resource] = Amounts(
            before.capacity + each.capacity,
            before.allocatable + each.allocatable,
            before.available + max(0, each.allocatable - each.held),
        )
    return sums


def _caches(node: NumaNode, topology: Topology) -> dict[str, str]:
    by_cache: dict[int, list[int]] = {}
    for cpu in topology.cpus:
        if cpu.id in node.cpus and cpu.l3 is not None:
            by_cache.setdefault(cpu.l3, []).append(cpu.id)
    if len(by_cache) < 2:
        return {}
    return {L3_CPUS: ";".join(str(CpuSet(cpus)) for _, cpus in sorted(by_cache.items()))}


def _binary(size_bytes: int) -> str:
    for unit, shift in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


class DeviceReport(msgspec.Struct, frozen=True):
    """The devices of a node, and the amounts that pods hold of them."""

    devices: tuple[Device, ...] = ()
    gpus: GpuInfo = GpuInfo()
    annotations: dict[str, str] = {}
    """The annotations of the Device object."""
    held: DeviceAmounts = {}
    withheld: tuple[Device, ...] | None = None
    """The devices that the Device object and the Node list instead, for schedulers that do not read
    holdings; None for all."""

    @property
    def listed(self) -> tuple[Device, ...]:
        """The devices that schedulers see."""
        return self.devices if self.withheld is None else self.withheld


class ReportedOffer(msgspec.Struct, frozen=True):
    """The batch and mid resources that a node offers."""

    resources: Mapping[str, int] = {}
    """The Node's, by name."""
    annotations: Mapping[str, str] = {}
    """The Node's about them."""
    zones: Mapping[int, Mapping[str, int]] = {}
    """Those of NUMA nodes, by name."""


class ReportValues(msgspec.Struct, frozen=True):
    """The input of a report. Owner and fingerprint are None without a cluster."""

    name: str
    topology: Topology
    pools: Pools
    allocs: tuple[PodCpuAlloc, ...]
    held: tuple[Allocated, ...]
    reserved: Reserved
    configured: NodeConfiguration
    devices: DeviceReport = DeviceReport()
    plugged: tuple[Portion, ...] = ()
    """Devices of device plugins."""
    owner: OwnerReference | None = None
    fingerprint: str | None = None
    refused: tuple[RefusedClaim, ...] = ()
    near: tuple[NearRequests, ...] = ()
    offered: ReportedOffer = ReportedOffer()


class Report(msgspec.Struct, frozen=True):
    """What the agent writes to the cluster."""

    topology: NodeTopology
    labels: dict[str, str]
    """Topolet's labels of the Node."""
    resources: dict[str, int]
    """The Node's extended resources by name."""
    devices: DeviceReport
    annotations: Mapping[str, str] = {}
    """Topolet's annotations of the Node."""


def build(values: ReportValues) -> Report:
    """The report; it depends only on the input."""
    devices, configured = values.devices.devices, values.configured
    attributes = core_kinds(values.topology)
    if values.fingerprint is not None:
        attributes[FINGERPRINT_METHOD] = FingerprintMethod.ALL.value
    gpu_labels = node_status.gpu_labels(values.devices.gpus, devices, discovery=True)
    topology = NodeTopology(
        values.name,
        zones(
            values.topology,
            values.held,
            values.reserved,
            portions(devices, values.devices.held) + values.plugged,
            values.offered.zones,
        ),
        configured.topology_policy,
        configured.topology_scope,
        configured.max_numa_nodes,
        values.fingerprint,
        attributes,
        {MANAGED_BY: configured.managed_by},
        koordinator_annotations(
            values.topology,
            values.pools,
            values.allocs,
            configured,
            values.refused,
            values.near,
        ),
        values.owner,
    )
    return Report(
        topology,
        {**node_labels(values.topology), **gpu_labels},
        {
            **node_status.extended_resources(values.devices.listed, values.devices.gpus),
            **values.offered.resources,
        },
        values.devices,
        values.offered.annotations,
    )
