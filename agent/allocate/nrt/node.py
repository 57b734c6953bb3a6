"""The free resources of a node's NUMA nodes, as its NodeResourceTopology reports them, without the
pods that were assigned since; and whether the report counts the pods that are known on the node.

The node's agent reports a fingerprint of the pods that it counts (scheduler-plugins:
pkg/noderesourcetopology/cache/store.go, checkPodFingerprintForNode).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from agent.model.cpu.policies import (
    DeviceLocality,
    NumaPolicy,
    TopologyManagerScope,
    kubelet_numa_policy,
)
from agent.model.devices.device_object import DOMAIN
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import (
    NO_MEMORY_MANAGER,
    STATIC_MEMORY,
    ReportedSettings,
    cpu_manager,
    near_requests,
    reported_settings,
)
from agent.model.nrt.resource_topology import (
    FINGERPRINT_METHOD,
    Amounts,
    FingerprintMethod,
    NodeTopology,
    Zone,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.numa_request import foreign, of_memory

MAX_NUMA_NODES: Final = 8
"""The most NUMA nodes that the kubelet's topology manager supports by default."""

FAR: Final = 255
"""The distance of two NUMA nodes for which none is reported."""

DECLINING: Final = (NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED)
"""The policies that can reject a pod."""

_ON_EVERY_NODE: Final = frozenset(("cpu", "memory", "ephemeral-storage", "pods"))


class ZonedNode(msgspec.Struct, frozen=True):
    """What a node has on its NUMA nodes; `cpu` in milli-CPU, the rest in units."""

    policy: NumaPolicy
    scope: TopologyManagerScope
    max_numa_nodes: int
    zones: tuple[int, ...]
    """The ids of the NUMA nodes, ascending, possibly with gaps."""
    available: dict[str, dict[int, int]]
    """The free amounts by resource and NUMA node, without NUMA nodes that do not report the
    resource."""
    together: dict[str, int]
    """The sums of `available` by resource."""
    distances: tuple[tuple[int, ...], ...]
    """Between all pairs, in the order of `zones`."""
    resources: frozenset[str]
    """The names of the whole node's resources."""
    hinted: dict[str, dict[int, int]] = {}
    """The resources for which the kubelet's managers give hints, with the amount of each empty NUMA
    node; these decide how many NUMA nodes the kubelet prefers."""
    aligns_memory: bool = True
    """False: the kubelet is known to take memory and huge pages from any NUMA node."""
    device_locality: DeviceLocality | None = None
    """The policy of the node's agent; None without Topolet's agent."""
    near: dict[int, int] = {}
    """The CPU requests in milli-CPU of containers with devices that run on some NUMA nodes only, by
    the mask of these."""

    def aligns(self, resource: str) -> bool:
        """Whether NUMA nodes must have the amount of an aligned pod."""
        return self.aligns_memory or not of_memory(resource)


class ZoneReport(msgspec.Struct, frozen=True):
    """A node's report of its NUMA nodes."""

    reported: ZonedNode
    """The node with the pods that the report counts."""
    empty: ZonedNode
    """The node without any pod."""
    fingerprint: str | None = None
    """The fingerprint of the counted pods, None if there is none."""
    method: FingerprintMethod = FingerprintMethod.ALL
    """What selects these pods."""

    @property
    def declines(self) -> bool:
        """Whether the node's policy can reject a pod."""
        return self.reported.policy in DECLINING


def zone_report(
    topology: NodeTopology,
    allocatable: Iterable[str],
    share: Callable[[ZonedNode], ZonedNode],
) -> ZoneReport:
    """The report of a node. Only the names of `allocatable`, the Node's, matter. `share` returns
    one of several equal nodes: that without pods, most of whose parts the report has too."""
    empty = share(zoned_node(topology, allocatable, empty=True))
    reported = _with_pods(empty, topology)
    return ZoneReport(reported, empty, topology.fingerprint, method_of(topology))


def zoned_node(
    topology: NodeTopology, allocatable: Iterable[str], *, empty: bool = False
) -> ZonedNode:
    """The node's NUMA nodes. Only the names of `allocatable`, the Node's, matter.

    `empty`: the node without any pod; no eviction helps a pod that does not fit on it."""
    zones = sorted(topology.zones, key=lambda zone: zone.node)
    settings = _settings(topology)
    memory_policy = settings.memory_manager_policy
    ids = tuple(zone.node for zone in zones)
    available = _by_resource(zones, lambda amounts: amounts.allocatable)
    node = ZonedNode(
        kubelet_numa_policy(topology.policy) or NumaPolicy.NONE,
        TopologyManagerScope(topology.scope),
        topology.max_numa_nodes or MAX_NUMA_NODES,
        ids,
        available,
        _sums(available),
        tuple(tuple(zone.costs.get(other, FAR) for other in ids) for zone in zones),
        _ON_EVERY_NODE.union(allocatable),
        _hinted(topology, memory=memory_policy == STATIC_MEMORY),
        memory_policy != NO_MEMORY_MANAGER,
        _device_locality(settings),
    )
    return node if empty else _with_pods(node, topology)


def _with_pods(empty: ZonedNode, topology: NodeTopology) -> ZonedNode:
    zones = sorted(topology.zones, key=lambda zone: zone.node)
    available = _by_resource(zones, lambda amounts: amounts.available)
    return msgspec.structs.replace(
        empty, available=available, together=_sums(available), near=_near(topology)
    )


def _by_resource(
    zones: Iterable[Zone], amount: Callable[[Amounts], int]
) -> dict[str, dict[int, int]]:
    by_resource: dict[str, dict[int, int]] = {}
    for zone in zones:
        for resource, amounts in zone.resources.items():
            by_resource.setdefault(resource, {})[zone.node] = amount(amounts)
    return by_resource


def _sums(available: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    return {resource: sum(there.values()) for resource, there in available.items()}


def _settings(topology: NodeTopology) -> ReportedSettings:
    try:
        return reported_settings(topology.annotations)
    except AnnotationError:
        return ReportedSettings()


def _device_locality(settings: ReportedSettings) -> DeviceLocality | None:
    policy = settings.device_locality
    return DeviceLocality(policy) if policy in tuple(DeviceLocality) else None


def _near(topology: NodeTopology) -> dict[int, int]:
    try:
        requests = near_requests(topology.annotations)
    except AnnotationError:
        return {}
    return {nodes.mask: cpu_milli for nodes, cpu_milli in requests.items()}


def _hinted(topology: NodeTopology, *, memory: bool) -> dict[str, dict[int, int]]:
    """All CPUs of the NUMA nodes under the CPU manager policy static, without align-by-socket,
    which prefers further sets; allocatable memory and huge pages under the memory manager policy
    Static (`memory`); and all devices of plugins."""
    try:
        options = cpu_manager(topology.annotations).static_options()
    except AnnotationError:
        options = None
    cpus = options is not None and options.get("align-by-socket") != "true"
    hinted: dict[str, dict[int, int]] = {}
    for zone in topology.zones:
        for name, amounts in zone.resources.items():
            if of_memory(name):
                if memory:
                    hinted.setdefault(name, {})[zone.node] = amounts.allocatable
            elif cpus if name == "cpu" else of_plugin(name):
                hinted.setdefault(name, {})[zone.node] = amounts.capacity
    return hinted


def of_plugin(resource: str) -> bool:
    """Whether it is a resource that only a device plugin gives."""
    return foreign(resource) and not resource.startswith(DOMAIN)


def method_of(topology: NodeTopology) -> FingerprintMethod:
    """ALL if the node reports no method or an unknown one."""
    reported = topology.attributes.get(FINGERPRINT_METHOD)
    return (
        FingerprintMethod.EXCLUSIVE
        if reported == FingerprintMethod.EXCLUSIVE
        else FingerprintMethod.ALL
    )


Key = TypeVar("Key", int, str)


class Assumed(msgspec.Struct, frozen=True):
    """The amounts that one pod takes."""

    zones: Mapping[int, Mapping[str, int]] = {}
    """By NUMA node and resource."""
    anywhere: Mapping[str, int] = {}
    """By resource, from NUMA nodes that the kubelet chooses, so that it may be any of them."""
    near_milli: int = 0
    """The CPU request in milli-CPU of containers that will run near to devices."""
    near_nodes: int = 0
    """The mask of the NUMA nodes of these devices; 0 if they may be on any."""


def without(node: ZonedNode, pods: Iterable[Assumed]) -> ZonedNode:
    """The amounts that are certainly free in addition to these pods. An amount that may come from
    any NUMA node is subtracted from each of them, but only once from the sum of all. No amount
    becomes negative; resources that the zones do not report are ignored."""
    zones: dict[str, dict[int, int]] = {}
    total = dict(node.together)
    near = dict(node.near)
    for pod in pods:
        if pod.near_milli:
            any_node = [1 << zone for zone in node.zones]
            for mask in [pod.near_nodes] if pod.near_nodes else any_node:
                near[mask] = near.get(mask, 0) + pod.near_milli
        for zone, amounts in pod.zones.items():
            for resource, amount in amounts.items():
                there = node.available.get(resource, {})
                if zone in there:
                    _take(zones.setdefault(resource, dict(there)), (zone,), amount)
                    _take(total, (resource,), amount)
        for resource, amount in pod.anywhere.items():
            there = node.available.get(resource, {})
            if there:
                _take(zones.setdefault(resource, dict(there)), node.zones, amount)
                _take(total, (resource,), amount)
    return msgspec.structs.replace(
        node, available={**node.available, **zones}, together=total, near=near
    )


def with_freed(
    node: ZonedNode, empty: ZonedNode, pods: Iterable[Mapping[int, Mapping[str, int]]]
) -> ZonedNode:
    """Adds the amounts of pods that leave, by NUMA node and resource, up to those of `empty`."""
    available = {resource: dict(there) for resource, there in node.available.items()}
    together = dict(node.together)
    for zones in pods:
        for zone, amounts in zones.items():
            for resource, amount in amounts.items():
                most = empty.available.get(resource, {}).get(zone)
                if most is not None and zone in (there := available.get(resource, {})):
                    there[zone] = min(there[zone] + amount, most)
                    together[resource] = min(together[resource] + amount, empty.together[resource])
    return msgspec.structs.replace(node, available=available, together=together)


def _take(amounts: dict[Key, int], keys: Iterable[Key], amount: int) -> None:
    for key in keys:
        if key in amounts:
            amounts[key] = max(0, amounts[key] - amount)


MAX_MISSING: Final = 16
"""The most pods, of those started last, that may be missing in a report."""


class NrtFreshness(enum.StrEnum):
    CURRENT = "current"
    """The zones count exactly the known pods."""
    BEHIND = "behind"
    """The zones do not count the last started pods yet, or still count pods that ended."""
    OTHER = "other"
    """The zones count pods that are not known."""
    UNREPORTED = "unreported"
    """The node reports no fingerprint."""


class Freshness(msgspec.Struct, frozen=True):
    """Whether the report counts the pods of its node."""

    state: NrtFreshness
    missing: int = 0
    """How many of the last started pods the zones do not count yet."""


def freshness(reported: str | None, present: Sequence[int], ended: Sequence[int] = ()) -> Freshness:
    """Finds which pods the fingerprint counts: the present ones, without some of the last started
    and with some of the last ended ones.

    `reported`: the node's fingerprint.
    `present`: the hashes of the pods on the node that the method of the fingerprint selects, in the
        order of their start.
    `ended`: the hashes of ended pods, the last one at the end."""
    if reported is None:
        return Freshness(NrtFreshness.UNREPORTED)
    most = min(len(present), MAX_MISSING)
    for past in range(len(ended) + 1):
        before = ended[len(ended) - past :]
        for missing in range(most + 1):
            counted = (*present[: len(present) - missing], *before)
            if resource_topology.combined(counted) == reported:
                return Freshness(
                    NrtFreshness.BEHIND if missing or past else NrtFreshness.CURRENT, missing
                )
    return Freshness(NrtFreshness.OTHER)
