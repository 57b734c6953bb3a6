"""The properties of a node's CPUs and NUMA nodes that no pod changes, read from its Node and its
NodeResourceTopology: the machine, the CPUs that pods may own, the policies.

CPUs and the kubelet's policies are those of the NodeResourceTopology; labels and amplification
those of the Node (Koordinator: pkg/scheduler/plugins/nodenumaresource, NewTopologyOptions in
topology_options.go and amplifyNUMANodeResources in util.go). Where an annotation about which CPUs
may be owned can't be read, no CPU is bound: the owner of each CPU is unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from agent.allocate import layout as layouts
from agent.allocate import policies_in_force
from agent.allocate.layout import Layout
from agent.allocate.policies_in_force import PROFILES, NodePolicies, Profile
from agent.model import node_annotations
from agent.model.annotations import AnnotationError
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node_annotations import (
    MOST_AMPLIFICATION,
    CpuManager,
    amplification_ratios,
    node_reservation,
    system_qos,
)
from agent.model.nodetopology import NodeTopology
from agent.model.topology import Cpu

Amounts = dict[int, dict[str, int]]
"""By NUMA node and resource; `cpu` in milli-CPU, the rest in units (bytes, devices)."""


class TopologyOptions(msgspec.Struct, frozen=True):
    """`layout` None: the CPU topology is unknown. `zones`: what NodeResourceTopology calls
    allocatable. `reserved`: CPUs that no pod may own (kubelet, node reservation, system QoS, given
    away by the kubelet); `kubelet_reserved`: those of them that the profile may give to owners.

    `cpu_ratio`: the amplification ratio of CPU; bound CPUs count amplified. `cpu_milli`: the node's
    allocatable CPU after amplification, None unknown. `max_ref`: pods that may share a CPU.
    `kubelet_static`: the kubelet gives CPUs away itself, also others than a scheduler chose. Raises
    ValueError for a ratio that is not a number up to 1000, and for a `max_ref` below 1."""

    layout: Layout | None
    zones: Amounts = {}
    reserved: CpuSet = EMPTY
    kubelet_reserved: CpuSet = EMPTY
    policies: NodePolicies = NodePolicies()
    profile: Profile = PROFILES["koordinator"]
    cpu_ratio: float = 1.0
    cpu_milli: int | None = None
    max_ref: int = 1
    kubelet_static: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.cpu_ratio <= MOST_AMPLIFICATION:
            raise ValueError(f"cpu_ratio: {self.cpu_ratio} is not an amplification ratio")
        if self.max_ref < 1:
            raise ValueError(f"max_ref: {self.max_ref} pods cannot share a CPU")

    @property
    def kept(self) -> CpuSet:
        """CPUs that no pod may own under the profile."""
        if self.profile.owners_on_reserved:
            return self.reserved - self.kubelet_reserved
        return self.reserved | self.kubelet_reserved

    def amplified(self, cpu_milli: int) -> int:
        """An amount of bound CPU as it is paid for (rounded up, as Koordinator does)."""
        return cpu_milli if self.cpu_ratio <= 1 else math.ceil(cpu_milli * self.cpu_ratio)

    def unamplified(self, cpu_milli: int) -> int:
        """The most bound CPU that so much pays for."""
        bound = cpu_milli if self.cpu_ratio <= 1 else int(cpu_milli / self.cpu_ratio) + 1
        while self.amplified(bound) > cpu_milli:
            bound -= 1
        return bound

    def totals(self) -> Amounts:
        """What the NUMA nodes have to give: zones without kept CPUs, CPU amplified."""
        totals = {node: dict(amounts) for node, amounts in self.zones.items()}
        kept = self.kept.mask
        for node, amounts in totals.items():
            if "cpu" in amounts:
                cpus = self.layout.of_nodes((node,)) if self.layout else 0
                free = amounts["cpu"] - 1000 * (cpus & kept).bit_count()
                amounts["cpu"] = self.amplified(max(0, free))
        return totals


_NO_CLAIMS: Final[Mapping[str, CpuSet]] = {}


def topology_options(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    topology: NodeTopology,
    cpu_milli: int | None = None,
    profile: Profile = PROFILES["koordinator"],
    claims: Mapping[str, CpuSet] = _NO_CLAIMS,
) -> tuple[TopologyOptions, tuple[str, ...]]:
    """The options, and a complaint for every value that can't be read. `labels` and `annotations`
    are the Node's, `cpu_milli` its allocatable CPU (already amplified), None if unknown. `claims`:
    the CPUs that pods hold by their annotations, by uid: where the kubelet gave a pod those, they
    are counted as the pod's and not a second time as the kubelet's; where it gave it others, both
    are taken."""
    faults: list[str] = []
    cpus = _NO_CPUS
    try:
        cpus = _cpus(topology, claims)
    except AnnotationError as error:
        faults.append(str(error))
    ratios: Mapping[str, float] = {}
    try:
        ratios = amplification_ratios(annotations)
    except AnnotationError as error:
        faults.append(str(error))
    policies, complaints = policies_in_force.node_policies(
        labels, topology.policy, cpus.manager.static_options()
    )
    facts = TopologyOptions(
        layout=cpus.layout,
        zones=_zones(topology, ratios),
        reserved=cpus.reserved,
        kubelet_reserved=cpus.kubelet_reserved,
        policies=policies,
        profile=profile,
        cpu_ratio=ratios.get("cpu", 1.0),
        cpu_milli=cpu_milli,
        kubelet_static=cpus.manager.static_options() is not None,
    )
    return facts, (*faults, *complaints)


class _Cpus(msgspec.Struct, frozen=True):
    layout: Layout | None = None
    reserved: CpuSet = EMPTY
    kubelet_reserved: CpuSet = EMPTY
    manager: CpuManager = CpuManager()


_NO_CPUS: Final = _Cpus()


def _cpus(topology: NodeTopology, claims: Mapping[str, CpuSet]) -> _Cpus:
    notes = topology.annotations
    manager = node_annotations.cpu_manager(notes)
    system = system_qos(notes)
    allocated = node_annotations.kubelet_allocated(notes)
    given = union(cpus - claims.get(uid, EMPTY) for uid, cpus in allocated.items())
    reserved = given | node_reservation(notes).cpus()
    if system.cpuset_exclusive:
        reserved |= system.cpus()
    kubelets = manager.reserved()
    return _Cpus(
        _layout(node_annotations.reported_cpus(topology)),
        reserved | kubelets,
        kubelets - reserved,
        manager,
    )


@lru_cache(maxsize=256)
def _layout(cpus: tuple[Cpu, ...]) -> Layout | None:
    """Nodes of one model share theirs."""
    return layouts.of(cpus) if cpus else None


def _zones(topology: NodeTopology, ratios: Mapping[str, float]) -> Amounts:
    """CPU is amplified by the facts, which take reserved CPUs off first."""
    return {
        zone.node: {
            name: math.ceil(amounts.allocatable * ratios[name])
            if name in ratios and name != "cpu"
            else amounts.allocatable
            for name, amounts in zone.resources.items()
        }
        for zone in topology.zones
    }
