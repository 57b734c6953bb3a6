"""What stands about a node while pods come and go: machine, what may be given away, policies."""

from __future__ import annotations

import math

import msgspec

from agent.allocate.layout import Layout
from agent.allocate.policies_in_force import PROFILES, NodePolicies, Profile
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node_annotations import MOST_AMPLIFICATION

Amounts = dict[int, dict[str, int]]
"""By NUMA node and resource; `cpu` in milli-CPU, the rest in units (bytes, devices)."""


class NodeFacts(msgspec.Struct, frozen=True):
    """`layout` None: the CPU topology is unknown. `zones`: what NodeResourceTopology calls
    allocatable. `reserved`: CPUs that no pod may own (kubelet, node reservation, system QoS, given
    away by the kubelet); `kubelet_reserved`: those of them that the profile may give to owners.

    `cpu_ratio`: how many CPUs one CPU is sold as; bound CPUs are paid for in full. `cpu_milli`: the
    node's allocatable CPU after amplification, None unknown. `max_ref`: pods that may share a CPU.
    `kubelet_static`: the kubelet gives CPUs away itself, whatever a scheduler chose.
    Raises ValueError for a ratio that is no number up to 1000, and for a `max_ref` below 1.
    """

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
            raise ValueError(f"cpu_ratio: {self.cpu_ratio} is no amplification")
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
