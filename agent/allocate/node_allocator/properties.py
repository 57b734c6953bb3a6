"""The properties of a node that no pod changes: CPUs, NUMA nodes, policies and devices, read from
its Node, NodeResourceTopology and Device.

CPUs and the kubelet's policies are those of the NodeResourceTopology; labels and amplification
those of the Node (Koordinator: pkg/scheduler/plugins/nodenumaresource, NewTopologyOptions in
topology_options.go and amplifyNUMANodeResources in util.go). If an annotation about which CPUs may
be owned can't be read, no CPU is bound: the owner of each CPU is unknown."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from agent.allocate.device_holders import reported_devices
from agent.allocate.device_holders.holdings import functions_taken, resolve_holdings, taken
from agent.allocate.device_holders.names import keys
from agent.allocate.devices import partitions
from agent.allocate.devices.inventory import (
    Inventory,
    LinkTable,
    NodeDevices,
    inventory,
    links_of,
)
from agent.allocate.devices.partitions import Partitions
from agent.allocate.kubelet.static_policy import WholeCores
from agent.allocate.node_allocation import Amounts, TopologyOptions
from agent.allocate.nrt.node import ZoneReport
from agent.allocate.placement.demand import FreeAmounts, NodePlacement, node_capacity
from agent.allocate.policies_in_force import PROFILES, Profile, node_policies
from agent.model.bounds import unknown_value
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import (
    PARTITION_LABEL,
    GpuObjective,
    NumaPolicy,
    Strategy,
)
from agent.model.cpu.topology import Cpu
from agent.model.devices import interconnect
from agent.model.devices.device_allocation import DeviceAmounts, VirtualFunctions
from agent.model.devices.device_object import (
    GPU_CORE,
    GPU_MEMORY_RATIO,
    GPU_PARTITIONS,
    DeviceObject,
    DeviceType,
)
from agent.model.devices.device_request import DeviceRequest
from agent.model.devices.holding import DeviceHolding as Held
from agent.model.devices.interconnect import GPU_LINKS
from agent.model.nrt import node_annotations
from agent.model.nrt.node_annotations import (
    CPU_MANAGER_POLICIES,
    CPU_MANAGER_POLICY,
    NUMA_MEMORY_POLICY,
    CpuManager,
    ReportedSettings,
    amplification_ratios,
    label_faults,
    node_reservation,
    reported_settings,
    system_qos,
)
from agent.model.nrt.node_status import GPU_MODEL, GPU_VENDOR
from agent.model.nrt.resource_topology import KIND, NodeTopology
from agent.model.pod.annotations import GPU_ISOLATION_PROVIDER, AnnotationError
from agent.model.pod_request import GPU_MILLI
from agent.model.settings.plugin_args import SchedulerArgs, ZoneScoring

_PERCENT: Final = 100
_MODELS: Final = 32
"""The models of nodes for which large values are cached: up to some megabytes each, if a stolen
agent reports as much as is read."""


class AllocatorRules(msgspec.Struct, frozen=True):
    """The configuration of a node allocator."""

    strategy: Strategy = Strategy.LEAST_ALLOCATED
    """The order of devices."""
    shares: Strategy = Strategy.MOST_ALLOCATED
    """The order of devices for pods that request parts of GPUs: spreading these would leave no
    whole GPU."""
    unshared: dict[str, frozenset[str]] = {}
    """By vendor, the GPU models that are never divided."""
    scoring: SchedulerArgs | None = None
    """The scoring of CPUs and NUMA nodes; None: by the strategy of the node."""
    zones: ZoneScoring = ZoneScoring()
    """The scoring of nodes for pods without CPUs or devices from Topolet."""
    gpu_objective: GpuObjective = GpuObjective.BANDWIDTH
    """Which linked GPUs of a node suit a pod best."""
    placement: NodePlacement | None = None
    """What scores nodes, and orders the cards for parts of GPUs, instead of the other
    strategies."""

    def strategy_of(self, request: DeviceRequest) -> Strategy:
        """The order of devices for a pod."""
        cards = request.requests.get(DeviceType.GPU)
        return self.shares if cards is not None and cards.shared else self.strategy


class Imported(msgspec.Struct, frozen=True):
    """Devices that one pod holds without an allocation of a scheduler."""

    devices: DeviceAmounts
    functions: VirtualFunctions


class NodeProperties(msgspec.Struct, frozen=True):
    """What a node has and reports, whatever pods it has."""

    name: str
    cpus: TopologyOptions | None = None
    """None without a usable NodeResourceTopology."""
    inventory: Inventory | None = None
    """None without a Device object."""
    imported: dict[str, Imported] = {}
    """By the uid of a pod."""
    isolation: str = ""
    """The library that enforces parts of GPUs here, "" for none."""
    shares_gpus: bool = True
    """Whether GPUs may be divided."""
    rules: AllocatorRules = AllocatorRules()
    zones: ZoneReport | None = None
    """The node's report of its NUMA nodes; None: it does not count."""
    faults: tuple[str, ...] = ()
    """The faults of the node's objects."""
    allocatable: dict[str, int] = {}
    """The amounts of the whole node, by resource."""
    model: str = ""
    """The model of its GPUs."""

    @property
    def binds_all(self) -> bool:
        """Koordinator's labels and annotations of the node concern every pod, not only
        Koordinator's own."""
        cpus = self.cpus
        if cpus is None:
            return False
        return cpus.cpu_ratio > 1 or cpus.policies.bind_label is not None or self.aligns_all

    @property
    def zones_align(self) -> bool:
        """Whether pods without devices have to fit on NUMA nodes of the report, or are scored by
        them."""
        zones, strategy = self.zones, self.rules.zones.type
        return zones is not None and (zones.declines or strategy is Strategy.LEAST_NUMA_NODES)

    @property
    def whole_cores(self) -> WholeCores | None:
        """The cores that the kubelet assigns to pods, None unless its option is full-pcpus-only."""
        cpus = self.cpus
        if cpus is None or cpus.layout is None or not cpus.policies.full_pcpus_only:
            return None
        layout = cpus.layout
        reserved = layout.expand(layout.touched(cpus.kubelet_reserved.mask))
        return WholeCores((layout.cpus & ~reserved).bit_count(), layout.threads)

    @property
    def aligns_all(self) -> bool:
        """Whether the policies align every pod to NUMA nodes; then the node's report counts only
        for the kubelet's policy restricted."""
        label = self.cpus.policies.numa_label if self.cpus else None
        return label not in (None, NumaPolicy.NONE)


def free_amounts(
    properties: NodeProperties, requested: Mapping[str, int], devices: NodeDevices | None
) -> FreeAmounts:
    """The free amounts of the node, for placements. `requested`: the sum of its pods. A card has as
    much free as the lesser of its core and its memory."""
    amounts, stock = properties.allocatable, None
    if devices is not None:
        stock = devices.stocks.get(DeviceType.GPU)
    gpu_milli = {
        minor: min(each.get(GPU_CORE, _PERCENT), each.get(GPU_MEMORY_RATIO, _PERCENT))
        * (GPU_MILLI // _PERCENT)
        for minor, each in (stock.free.items() if stock else ())
        if each
    }
    cpu_milli, memory_bytes = amounts.get("cpu", 0), amounts.get("memory", 0)
    return FreeAmounts(
        node_capacity(properties.name, cpu_milli, memory_bytes, len(gpu_milli), properties.model),
        cpu_milli - requested.get("cpu", 0),
        memory_bytes - requested.get("memory", 0),
        gpu_milli,
    )


def node_properties(
    name: str,
    labels: Mapping[str, str],
    cpus: TopologyOptions | None = None,
    device: DeviceObject | None = None,
    rules: AllocatorRules | None = None,
    faults: tuple[str, ...] = (),
    allocatable: dict[str, int] | None = None,
) -> NodeProperties:
    """`labels` and `allocatable`: the Node's; `faults`: the faults that were found so far. A
    partition table, links of GPUs and imported holdings in the Device object that can't be read are
    left out."""
    rules = rules or AllocatorRules()
    found = list(faults)
    if device is not None:
        found += (f"Device {device.name}: {fault}" for fault in label_faults(device.labels))
    shares = labels.get(GPU_MODEL, "") not in rules.unshared.get(labels.get(GPU_VENDOR, ""), ())
    return NodeProperties(
        name,
        cpus,
        None if device is None else _inventory(device, labels, rules, found),
        {} if device is None else _imported(device, found),
        labels.get(GPU_ISOLATION_PROVIDER, ""),
        shares,
        rules,
        None,
        tuple(found),
        allocatable or {},
        labels.get(GPU_MODEL, ""),
    )


def _inventory(
    device: DeviceObject, labels: Mapping[str, str], rules: AllocatorRules, faults: list[str]
) -> Inventory:
    try:
        table = _partitions(
            device.annotations.get(GPU_PARTITIONS, ""),
            device.labels.get(PARTITION_LABEL, ""),
            labels.get(PARTITION_LABEL, ""),
            labels.get(GPU_MODEL, ""),
            labels.get(GPU_VENDOR, ""),
        )
    except AnnotationError as error:
        faults.append(f"Device {device.name}: {error}")
        table = Partitions()
    links = None
    try:
        links = _links(device.annotations.get(GPU_LINKS, ""), rules.gpu_objective)
    except AnnotationError as error:
        faults.append(f"Device {device.name}: {error}")
    return inventory(device.devices, table, links)


@lru_cache(maxsize=_MODELS)
def _partitions(text: str, of_device: str, of_node: str, model: str, vendor: str) -> Partitions:
    """Cached: nodes of one model share a table. Raises AnnotationError."""
    return partitions.partitions(
        {PARTITION_LABEL: of_device},
        {GPU_PARTITIONS: text},
        {PARTITION_LABEL: of_node, GPU_MODEL: model, GPU_VENDOR: vendor},
    )


@lru_cache(maxsize=_MODELS)
def _links(text: str, objective: GpuObjective) -> LinkTable | None:
    """Cached: nodes of one model share them. Raises AnnotationError."""
    return links_of(interconnect.decode_links({GPU_LINKS: text}), objective)


def _imported(device: DeviceObject, faults: list[str]) -> dict[str, Imported]:
    try:
        reported = reported_devices.of_device_object(device.annotations)
    except AnnotationError as error:
        faults.append(f"Device {device.name}: {error}")
        return {}
    if not reported:
        return {}
    resolved = resolve_holdings(reported, keys(device.devices), {}, None)
    faults.extend(f"Device {device.name}: {problem}" for problem in resolved.problems)
    by_pod: dict[str, list[Held]] = {}
    for each in resolved.holdings:
        by_pod.setdefault(each.uid, []).append(each)
    return {
        uid: Imported(taken(held, device.devices), functions_taken(held, device.devices))
        for uid, held in by_pod.items()
    }


_NO_CLAIMS: Final[Mapping[str, CpuSet]] = {}


def topology_options(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    topology: NodeTopology,
    cpu_milli: int | None = None,
    profile: Profile = PROFILES["koordinator"],
    claims: Mapping[str, CpuSet] = _NO_CLAIMS,
) -> tuple[TopologyOptions, tuple[str, ...]]:
    """The options, and a message for every value that can't be read or is not known; messages about
    the NodeResourceTopology name it. `labels` and `annotations` are the Node's, `cpu_milli` its
    allocatable CPU (already amplified), None if unknown. `claims`: the CPUs that pods hold by their
    annotations, by uid. If the kubelet assigned the same CPUs to a pod, they count once; if it
    assigned other CPUs, both count as taken."""
    reported = list(topology.faults)
    cpus = _NO_CPUS
    try:
        cpus = _cpus(topology, claims)
    except AnnotationError as error:
        reported.append(str(error))
    if (policy := cpus.manager.policy) and policy not in CPU_MANAGER_POLICIES:
        field = f"annotation {CPU_MANAGER_POLICY}: policy"
        reported.append(unknown_value(field, policy, CPU_MANAGER_POLICIES))
    faults = [f"{KIND} {topology.name}: {fault}" for fault in reported]
    ratios: Mapping[str, float] = {}
    try:
        ratios = amplification_ratios(annotations)
    except AnnotationError as error:
        faults.append(str(error))
    policies, complaints = node_policies(labels, topology.policy, cpus.manager.static_options())
    options = TopologyOptions(
        layout=cpus.layout,
        numa_allocatable=_numa_allocatable(topology, ratios),
        never_owned=cpus.never_owned,
        kubelet_reserved=cpus.kubelet_reserved,
        node_reserved=cpus.node_reserved,
        policies=policies,
        profile=profile,
        cpu_ratio=ratios.get("cpu", 1.0),
        cpu_milli=cpu_milli,
        kubelet_static=cpus.manager.static_options() is not None,
        owners_on_reserved=cpus.settings.owners_on_reserved,
        counts_memory=NUMA_MEMORY_POLICY in labels or cpus.settings.bind_memory,
    )
    return options, (*faults, *complaints)


class _Cpus(msgspec.Struct, frozen=True):
    layout: Layout | None = None
    never_owned: CpuSet = EMPTY
    kubelet_reserved: CpuSet = EMPTY
    node_reserved: CpuSet = EMPTY
    manager: CpuManager = CpuManager()
    settings: ReportedSettings = ReportedSettings()


_NO_CPUS: Final = _Cpus()


def _cpus(topology: NodeTopology, claims: Mapping[str, CpuSet]) -> _Cpus:
    notes = topology.annotations
    manager = node_annotations.cpu_manager(notes)
    system = system_qos(notes)
    allocated = node_annotations.kubelet_allocated(notes)
    given = union(cpus - claims.get(uid, EMPTY) for uid, cpus in allocated.items())
    of_node = node_reservation(notes).cpus()
    reserved = given | of_node
    if system.cpuset_exclusive:
        reserved |= system.cpus()
    return _Cpus(
        _layout(node_annotations.reported_cpus(topology)),
        reserved,
        manager.reserved(),
        of_node,
        manager,
        reported_settings(notes),
    )


@lru_cache(maxsize=_MODELS)
def _layout(cpus: tuple[Cpu, ...]) -> Layout | None:
    """Cached: nodes of one model share a layout."""
    return layouts.of(cpus) if cpus else None


def prepare_topology(topology: NodeTopology) -> None:
    """Computes what a node with this report needs and caches, before a lock is taken."""
    with contextlib.suppress(AnnotationError):
        _layout(node_annotations.reported_cpus(topology))


def prepare_devices(device: DeviceObject, objective: GpuObjective) -> None:
    """Computes what a node with this Device object needs and caches, before a lock is taken."""
    with contextlib.suppress(AnnotationError):
        _links(device.annotations.get(GPU_LINKS, ""), objective)


def _numa_allocatable(topology: NodeTopology, ratios: Mapping[str, float]) -> Amounts:
    """CPU is not amplified here: TopologyOptions subtracts reserved CPUs first."""
    return {
        zone.node: {
            name: math.ceil(amounts.allocatable * ratios[name])
            if name in ratios and name != "cpu"
            else amounts.allocatable
            for name, amounts in zone.resources.items()
        }
        for zone in topology.zones
    }
