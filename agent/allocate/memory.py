"""Which NUMA nodes' memory goes with CPUs."""

from __future__ import annotations

from agent.model.cpuset import CpuSet
from agent.model.topology import Topology


class Memory:
    """Of one machine; nothing where memory is not bound."""

    def __init__(self, topology: Topology, *, bind: bool) -> None:
        self._node_of = {cpu.id: cpu.node for cpu in topology.cpus} if bind else {}
        self._with_memory = CpuSet(
            node.id for node in topology.numa_nodes if bind and node.memory_bytes
        )

    def of(self, cpus: CpuSet) -> CpuSet | None:
        """The nodes; None (any) where memory is not bound, or some node has none of its own: its
        CPUs would have none near."""
        nodes = CpuSet(self._node_of[cpu] for cpu in cpus if cpu in self._node_of)
        return nodes if nodes and nodes <= self._with_memory else None
