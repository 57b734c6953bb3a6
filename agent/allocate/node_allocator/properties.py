"""The static properties of a node: CPUs, NUMA nodes, devices, and the reports of its agent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from agent.allocate.device_holders.holdings import existing, functions_taken, taken
from agent.allocate.device_holders.names import keys
from agent.allocate.devices import partitions
from agent.allocate.devices.allocation import DeviceRequest
from agent.allocate.devices.inventory import Inventory, inventory
from agent.allocate.devices.links import LinkTable, links_of
from agent.allocate.devices.partitions import PARTITION_POLICY, Partitions
from agent.allocate.nrt.node import ZoneReport
from agent.allocate.topology_options import TopologyOptions
from agent.model import holding, interconnect
from agent.model.annotations import GPU_ISOLATION_PROVIDER, AnnotationError
from agent.model.device_allocation import Holdings, VirtualFunctions
from agent.model.deviceobject import GPU_PARTITIONS, DeviceObject
from agent.model.devices import DeviceType
from agent.model.holding import DeviceHolding as Held
from agent.model.interconnect import GPU_LINKS
from agent.model.nodestatus import GPU_MODEL, GPU_VENDOR
from agent.model.policies import GpuObjective, NumaPolicy, Strategy
from agent.model.schedulerargs import SchedulerArgs, ZoneScoring


class AllocatorRules(msgspec.Struct, frozen=True):
    """The configuration. `strategy`: which devices are preferred; `shares`: for pods that request
    parts of GPUs, which leave no whole one when they are spread. `unshared`: by vendor, the GPU
    models that are never divided. `scoring`: of CPUs and NUMA nodes; None: by the strategy of the
    node. `zones`: the scoring of nodes for pods without CPUs or devices of ours. `gpu_objective`:
    which linked GPUs of a node suit a pod best."""

    strategy: Strategy = Strategy.LEAST_ALLOCATED
    shares: Strategy = Strategy.MOST_ALLOCATED
    unshared: dict[str, frozenset[str]] = {}
    scoring: SchedulerArgs | None = None
    zones: ZoneScoring = ZoneScoring()
    gpu_objective: GpuObjective = GpuObjective.BANDWIDTH

    def strategy_of(self, request: DeviceRequest) -> Strategy:
        """The order of devices for a pod."""
        cards = request.asks.get(DeviceType.GPU)
        return self.shares if cards is not None and cards.shared else self.strategy


class Imported(msgspec.Struct, frozen=True):
    """Devices that one pod holds though no scheduler gave it them."""

    devices: Holdings
    functions: VirtualFunctions


class NodeProperties(msgspec.Struct, frozen=True):
    """`cpus` None: no usable NodeResourceTopology; `inventory` None: no Device object. `imported`
    by the uid of a pod; `isolation`: the library that enforces parts of GPUs here, "" for none;
    `shares_gpus`: GPUs may be divided. `zones`: the node's report of its NUMA nodes; None: it does
    not count. `faults`: of the node's objects. `allocatable`: of the whole node, by resource."""

    name: str
    cpus: TopologyOptions | None = None
    inventory: Inventory | None = None
    imported: dict[str, Imported] = {}
    isolation: str = ""
    shares_gpus: bool = True
    rules: AllocatorRules = AllocatorRules()
    zones: ZoneReport | None = None
    faults: tuple[str, ...] = ()
    allocatable: dict[str, int] = {}

    @property
    def binds_all(self) -> bool:
        """Koordinator's labels and annotations of the node concern every pod, not only
        Koordinator's own."""
        cpus = self.cpus
        if cpus is None:
            return False
        return cpus.cpu_ratio > 1 or cpus.policies.bind_label is not None or self.aligns_all

    @property
    def aligns_all(self) -> bool:
        """Whether the policies align every pod to NUMA nodes: the node's report does not count
        then."""
        said = self.cpus.policies.numa_label if self.cpus else None
        return said not in (None, NumaPolicy.NONE)


def node_properties(
    name: str,
    labels: Mapping[str, str],
    cpus: TopologyOptions | None = None,
    device: DeviceObject | None = None,
    rules: AllocatorRules | None = None,
    faults: tuple[str, ...] = (),
    allocatable: Mapping[str, int] | None = None,
    zones: ZoneReport | None = None,
) -> NodeProperties:
    """`labels` and `allocatable`: the Node's; `faults`: those that were found so far. Of a Device
    object what can't be read of the partition table, the links of GPUs and the imported holdings is
    left out."""
    rules = rules or AllocatorRules()
    found = list(faults)
    shares = labels.get(GPU_MODEL, "") not in rules.unshared.get(labels.get(GPU_VENDOR, ""), ())
    return NodeProperties(
        name,
        cpus,
        None if device is None else _inventory(device, labels, rules, found),
        {} if device is None else _imported(device, found),
        labels.get(GPU_ISOLATION_PROVIDER, ""),
        shares,
        rules,
        zones,
        tuple(found),
        dict(allocatable or {}),
    )


def _inventory(
    device: DeviceObject, labels: Mapping[str, str], rules: AllocatorRules, faults: list[str]
) -> Inventory:
    try:
        table = _partitions(
            device.annotations.get(GPU_PARTITIONS, ""),
            device.labels.get(PARTITION_POLICY, ""),
            labels.get(PARTITION_POLICY, ""),
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


@lru_cache(maxsize=256)
def _partitions(text: str, of_device: str, of_node: str, model: str, vendor: str) -> Partitions:
    """Nodes of one model share a table. Raises AnnotationError."""
    return partitions.partitions(
        {PARTITION_POLICY: of_device},
        {GPU_PARTITIONS: text},
        {PARTITION_POLICY: of_node, GPU_MODEL: model, GPU_VENDOR: vendor},
    )


@lru_cache(maxsize=256)
def _links(text: str, objective: GpuObjective) -> LinkTable | None:
    """Nodes of one model share them. Raises AnnotationError."""
    return links_of(interconnect.decode({GPU_LINKS: text}), objective)


def _imported(device: DeviceObject, faults: list[str]) -> dict[str, Imported]:
    try:
        grants = holding.decode(device.annotations)
    except AnnotationError as error:
        faults.append(f"Device {device.name}: {error}")
        return {}
    if not grants:
        return {}
    told = existing(grants, keys(device.devices), {}, None)
    faults.extend(f"Device {device.name}: {problem}" for problem in told.problems)
    by_pod: dict[str, list[Held]] = {}
    for each in told.holdings:
        by_pod.setdefault(each.uid, []).append(each)
    return {
        uid: Imported(taken(held, device.devices), functions_taken(held, device.devices))
        for uid, held in by_pod.items()
    }
