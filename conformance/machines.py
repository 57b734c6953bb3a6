"""Machines as vectors describe them: a shape, and the numbering of its CPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Cpu, NumaNode, Topology

_MAX_CPUS: Final = 65_536


def cpus(shape: Sequence[float], numbering: str, caches: int | None = None) -> tuple[Cpu, ...]:
    """The CPUs of a machine.

    `shape`: sockets, NUMA nodes per socket (0.5: a node spans two sockets), cores per node, threads
        per core.
    `caches`: L3 caches of the whole machine.

    Raises ValueError for impossible values."""
    if not math.prod(shape) <= _MAX_CPUS:
        raise ValueError(f"shape {list(shape)} has more than {_MAX_CPUS} CPUs")
    sockets, nodes_per_socket, cores_per_node, threads = shape
    nodes = round(sockets * nodes_per_socket)
    cores = nodes * int(cores_per_node)
    if not (1 <= sockets <= cores and threads >= 1):
        raise ValueError(f"shape {list(shape)} has no CPUs, or a socket without CPUs")
    if caches is not None and not 1 <= caches <= cores:
        raise ValueError(f"{caches} L3 caches for {cores} cores")
    numbered = []
    for core in range(cores):
        ids = [
            _id(core, thread, numbering, (nodes, cores, int(threads)))
            for thread in range(int(threads))
        ]
        for cpu in ids:
            numbered.append(
                Cpu(
                    id=cpu,
                    core=min(ids),
                    l3=None if caches is None else core // (cores // caches),
                    die=None,
                    socket=core // (cores // int(sockets)),
                    node=core // int(cores_per_node),
                )
            )
    return tuple(sorted(numbered, key=lambda cpu: cpu.id))


def topology(shape: Sequence[float], numbering: str) -> Topology:
    """The machine with all CPUs online. Raises ValueError as `cpus`."""
    made = cpus(shape, numbering)
    nodes = sorted({cpu.node for cpu in made})
    return Topology(
        cpus=made,
        numa_nodes=tuple(
            NumaNode(node, CpuSet(cpu.id for cpu in made if cpu.node == node), 0) for node in nodes
        ),
        offline=EMPTY,
        isolated=EMPTY,
        smt=any(cpu.core != cpu.id for cpu in made),
    )


def _id(core: int, thread: int, numbering: str, sizes: tuple[int, int, int]) -> int:
    nodes, cores, threads = sizes
    if numbering == "adjacent":
        return core * threads + thread
    if numbering == "interleaved":
        return core + thread * cores
    if numbering == "alternating":
        cores_per_node = cores // nodes
        return core % cores_per_node * nodes + core // cores_per_node + thread * cores
    raise ValueError(f"numbering {numbering!r} is not known")
