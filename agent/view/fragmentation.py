"""What a cluster loses to fragmentation, free CPUs and GPUs that its pods can't use, as values and
as text: the sums, and the nodes that lose most."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.rebind_resource import StatusMeasures
from agent.view import format


class RebindGain(msgspec.Struct, frozen=True):
    """What a rebind would improve."""

    pods: int
    """How many would move."""
    before: StatusMeasures
    after: StatusMeasures


class NodeFragmentation(msgspec.Struct, frozen=True):
    """What one node loses to fragmentation."""

    node: str
    free_cpus: int = 0
    cpus_on_broken_cores: int = 0
    cpus_on_small_numa_rests: float = 0.0
    free_gpus: float = 0.0
    gpus_lost_to_shares: float = 0.0
    gpus_without_cpu_or_memory: float = 0.0
    rebind: RebindGain | None = None
    """What the best plan would improve, None if no plan improves the node."""
    fitting: int | None = None
    """How many more pods like a given one fit, None without one."""

    @property
    def lost(self) -> tuple[float, float]:
        """GPUs and CPUs, to compare nodes."""
        gpus = self.gpus_lost_to_shares + self.gpus_without_cpu_or_memory
        return gpus, self.cpus_on_broken_cores + self.cpus_on_small_numa_rests


class ClusterFragmentation(msgspec.Struct, frozen=True):
    """What all nodes lose to fragmentation."""

    cpus: int
    gpus: int
    free_cpus: int
    cpus_on_broken_cores: int
    cpus_on_small_numa_rests: float
    free_gpus: float
    gpus_lost_to_shares: float
    gpus_without_cpu_or_memory: float
    rebind_nodes: int
    rebind_pods: int
    cores_mended_by_rebind: int
    numa_crossings_mended_by_rebind: int
    fitting: int | None
    nodes: tuple[NodeFragmentation, ...]
    """The nodes that lose most come first."""
    schema_version: int = 1
    """The version of this format."""


MAX_NODES: Final = 20
"""The number of nodes in the text; the JSON output has all."""


def draw(cluster: ClusterFragmentation, width: int) -> str:
    lines = [*_cpus(cluster), *_gpus(cluster), *_rebinds(cluster)]
    if cluster.fitting is not None:
        lines.append(f"{cluster.fitting} more pods like this fit.")
    losing = [each for each in cluster.nodes if any(each.lost) or each.rebind]
    if losing:
        lines += ["", *_nodes(losing[:MAX_NODES], width, counted=cluster.fitting is not None)]
        if len(losing) > MAX_NODES:
            lines.append(f"{len(losing) - MAX_NODES} more nodes; --output json has all")
    return "\n".join(lines) + "\n"


def _cpus(cluster: ClusterFragmentation) -> list[str]:
    return [
        f"{cluster.cpus} CPUs, {cluster.free_cpus} without an owner.",
        f"  {cluster.cpus_on_broken_cores} of these are on broken cores: another CPU of the core "
        "has an owner.",
        f"  {_amount(cluster.cpus_on_small_numa_rests)} are on NUMA nodes with fewer free CPUs "
        "than a pod of this cluster owns (mean over its pods).",
    ]


def _gpus(cluster: ClusterFragmentation) -> list[str]:
    if not cluster.gpus:
        return []
    return [
        f"{cluster.gpus} GPUs, {_amount(cluster.free_gpus)} free.",
        f"  {_amount(cluster.gpus_lost_to_shares)} are fragmented by shares: the free part of a "
        "GPU is worth less than its size.",
        f"  {_amount(cluster.gpus_without_cpu_or_memory)} will stay idle, because the CPU or "
        "memory of their node runs out first.",
    ]


def _rebinds(cluster: ClusterFragmentation) -> list[str]:
    if not cluster.rebind_nodes:
        return ["No rebind improves a node."]
    return [
        f"Rebinds of {cluster.rebind_nodes} nodes, with {cluster.rebind_pods} pods to move, would "
        f"save {cluster.cores_mended_by_rebind} broken cores and "
        f"{cluster.numa_crossings_mended_by_rebind} NUMA crossings (topolet rebind NODE --dry-run)."
    ]


def _nodes(nodes: list[NodeFragmentation], width: int, *, counted: bool) -> list[str]:
    titles = [
        "NODE",
        "FREE CPUS",
        "BROKEN CORES",
        "SMALL RESTS",
        "FREE GPUS",
        "FRAGMENTED GPUS",
        "PODS TO MOVE",
    ]
    rows = [[*titles, *(["FITTING"] if counted else [])]]
    for each in nodes:
        lost = each.gpus_lost_to_shares + each.gpus_without_cpu_or_memory
        row = [
            each.node,
            str(each.free_cpus),
            str(each.cpus_on_broken_cores),
            _amount(each.cpus_on_small_numa_rests),
            _amount(each.free_gpus),
            _amount(lost),
            str(each.rebind.pods) if each.rebind else "-",
        ]
        rows.append([*row, *([str(each.fitting)] if counted else [])])
    return format.table(rows, width)


def _amount(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
