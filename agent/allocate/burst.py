"""ConstrainedBurst: a pod that shares CPUs is held to NUMA nodes whose pools fit its limit.

It may then burst to its limit without leaving them (fine-grained CPU orchestration proposal). As
few NUMA nodes as possible: one, else the largest pools together.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.allocate import split
from agent.allocate.node_allocation import NodeAllocation
from agent.allocate.reasons import Reason, Rejection
from agent.allocate.topology_options import TopologyOptions
from agent.model.policies import Strategy


def pools(facts: TopologyOptions, account: NodeAllocation) -> dict[int, int]:
    """By NUMA node, the milli-CPU of the CPUs without an owner; CPUs that the kubelet reserves are
    in the pool, as they are on the node (fine-grained CPU orchestration proposal, Basic CPU
    orchestration principles)."""
    if facts.layout is None:
        return {}
    kept = facts.reserved - facts.kubelet_reserved
    shared = ~(account.holdings.full(1) | kept.mask)
    return {area.id: 1000 * (area.cpus & shared).bit_count() for area in facts.layout.nodes}


def nodes(
    limit_milli: int,
    request_milli: int,
    pools: Mapping[int, int],
    available: Mapping[int, int],
    strategy: Strategy,
) -> tuple[int, ...] | Rejection:
    """The NUMA nodes to hold the pod to. `available`: milli-CPU not promised to anyone; nodes that
    have none left hold no further pod.

    Among single nodes MostAllocated takes the smallest pool that fits, every other strategy the one
    with most CPU not promised; ties go to the lower id.
    """
    pools = {node: pool for node, pool in pools.items() if available.get(node, 0) > 0}
    fitting = [
        node
        for node, pool in pools.items()
        if pool >= limit_milli and available[node] >= request_milli
    ]
    if fitting:
        if strategy is Strategy.MOST_ALLOCATED:
            return (min(fitting, key=lambda node: (pools[node], available[node], node)),)
        return (min(fitting, key=lambda node: (-available[node], node)),)
    chosen: list[int] = []
    for node in sorted(pools, key=lambda node: (-pools[node], node)):
        chosen.append(node)
        fits = sum(pools[each] for each in chosen) >= limit_milli
        if fits and sum(available[each] for each in chosen) >= request_milli:
            return tuple(sorted(chosen))
    whole = sum(pools.values())
    if whole < limit_milli:
        return Rejection(Reason.NO_POOL_FITS, "cpu", limit_milli, whole)
    left = sum(available[node] for node in pools)
    return Rejection(Reason.NUMA_INSUFFICIENT, "cpu", request_milli, left, tuple(pools))


def amounts(
    request_milli: int, chosen: tuple[int, ...], available: Mapping[int, int]
) -> dict[int, int]:
    """The request over the chosen nodes, which have CPU left; each gets something, for that is what
    holds the pod to it."""
    shares = split.evenly(request_milli, {node: available[node] for node in chosen})
    return {node: max(1, shares.get(node, 0)) for node in chosen}
