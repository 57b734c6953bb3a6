"""A machine with four NUMA nodes, whose memory has huge pages."""

from __future__ import annotations

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Cpu, HugePages, NumaNode, Topology
from conformance import machines

GIB = 1 << 30


def topology(cpus: tuple[Cpu, ...]) -> Topology:
    nodes = sorted({cpu.node for cpu in cpus})
    return Topology(
        cpus,
        tuple(
            NumaNode(
                node,
                CpuSet(cpu.id for cpu in cpus if cpu.node == node),
                8 * GIB,
                hugepages=(HugePages(2 << 20, 512, 100),),
            )
            for node in nodes
        ),
        EMPTY,
        EMPTY,
        smt=True,
    )


FOUR_NODES = topology(tuple(machines.cpus((2, 2, 4, 2), "adjacent", 8)))
"""Cores are 0-1, 2-3, ...; NUMA nodes 0-7, 8-15, ...; two L3 caches of two cores a node."""
ALL = CpuSet(range(32))
