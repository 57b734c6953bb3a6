"""How CPUs are chosen for one request: Koordinator's rule, on masks.

There are enough free CPUs; what is left to decide is which. A step that finds all that is needed
ends the search:

1. For FullPCPUs, and where cores have one thread: the whole cores of one NUMA node, else of one
   socket. Else over sockets: those whose whole cores are all needed, most first, then core by core
   from the others, fewest first, while a whole core is still needed.
2. For the other policies: one thread of each core in one NUMA node, else more threads of its cores;
   else the same in one socket. Every core gives one thread before any gives a second.
3. What is still missing, CPU by CPU (see singles).

The strategy says which NUMA node or socket of those that have enough: the one with the fewest free
CPUs (MostAllocated), else with the most.

A pod with an exclusive policy first does without the cores or NUMA nodes that pods of the same
policy hold, then with them: at NUMA nodes in step 1, for one thread per core in step 2, in step 3.
Whole cores in a socket, and one thread per core in a socket where NUMA nodes are what is exclusive,
are taken without that first attempt.
"""

from __future__ import annotations

import msgspec

from agent.allocate.bits import lowest
from agent.allocate.caches import in_fewest
from agent.allocate.cpu_request import CpuRequest, Step
from agent.allocate.holdings import Holdings
from agent.allocate.layout import Layout
from agent.allocate.ranking import best_fit, core_tiers, first_of, rounds, tiers
from agent.allocate.singles import take_singles
from agent.model.policies import BindPolicy, ExclusivePolicy, NumaStrategy


class Blocked(msgspec.Struct, frozen=True):
    """CPUs that a pod would rather leave alone: on cores, or in NUMA nodes, held exclusively."""

    cores: int = 0
    nodes: int = 0


def blocked(layout: Layout, holdings: Holdings, exclusive: ExclusivePolicy) -> Blocked:
    """What pods with the same exclusive policy hold."""
    if exclusive is ExclusivePolicy.PCPU_LEVEL and holdings.core_exclusive:
        return Blocked(cores=layout.expand(layout.touched(holdings.core_exclusive[0])))
    if exclusive is ExclusivePolicy.NUMA_NODE_LEVEL and holdings.node_exclusive:
        return Blocked(nodes=_nodes_of(layout, holdings.node_exclusive[0]))
    return _NOTHING


def pack(
    layout: Layout,
    free: int,
    need: int,
    request: CpuRequest,
    off: Blocked,
    levels: tuple[int, ...],
) -> tuple[int, tuple[Step, ...]]:
    """`need` of the free CPUs, which are at least as many, and the steps that gave them.

    Of the request its policies count. `levels`: see ranking.
    """
    if not need:
        return 0, ()
    if request.bind is BindPolicy.FULL_PCPUS or layout.threads == 1:
        return _cores(layout, free, need, request, off, levels)
    return _threads(layout, free, need, request, off, levels)


def _cores(
    layout: Layout,
    free: int,
    need: int,
    request: CpuRequest,
    off: Blocked,
    levels: tuple[int, ...],
) -> tuple[int, tuple[Step, ...]]:
    most = request.strategy is NumaStrategy.MOST_ALLOCATED
    whole = layout.expand(layout.whole(free))
    step = Step.CORES_IN_NODE
    open_ = whole & ~off.nodes
    area = best_fit(layout.nodes, open_, open_, free & ~off.nodes, need, most)
    if not area and open_ != whole:
        area = best_fit(layout.nodes, whole, whole, free, need, most)
    if not area:
        step = Step.CORES_IN_SOCKET
        area = best_fit(layout.sockets, whole, whole, 0, need, most)
    if area:
        cpus = _first_cores(layout, whole & area, need, levels)
        if request.prefer_l3:
            cpus = in_fewest(layout, whole & area, cpus, levels, _first_cores)
        return cpus, (step,)
    cpus = _over_sockets(layout, whole, need, levels, request.prefer_l3)
    missing = need - cpus.bit_count()
    steps = (Step.CORES_OVER_SOCKETS,) if cpus else ()
    if not missing:
        return cpus, steps
    if request.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        off = Blocked(nodes=off.nodes | _nodes_of(layout, cpus))
    return cpus | _singles(layout, free, missing, cpus, off, levels, most), (
        *steps,
        Step.SINGLE_CPUS,
    )


def _threads(
    layout: Layout,
    free: int,
    need: int,
    request: CpuRequest,
    off: Blocked,
    levels: tuple[int, ...],
) -> tuple[int, tuple[Step, ...]]:
    most = request.strategy is NumaStrategy.MOST_ALLOCATED
    open_ = free & ~(off.cores | off.nodes)
    firsts = _firsts(layout, open_, levels)
    step = Step.THREADS_IN_NODE
    area = best_fit(layout.nodes, firsts, open_, open_, need, most)
    if not area:
        area = best_fit(layout.nodes, free, free, free, need, most)
        if area:
            return _by_rounds(layout, free & area, need, levels), (Step.CPUS_IN_NODE,)
        step = Step.THREADS_IN_SOCKET
        if off.nodes:
            open_ = free
            firsts = _firsts(layout, open_, levels)
        area = best_fit(layout.sockets, firsts, firsts, 0, need, most)
    if area:
        cpus = _first_threads(layout, open_ & area, need, levels)
        if request.prefer_l3:
            cpus = in_fewest(layout, firsts & area, cpus, levels, _first_threads)
        return cpus, (step,)
    area = best_fit(layout.sockets, free, free, 0, need, most)
    if area:
        return _by_rounds(layout, free & area, need, levels), (Step.CPUS_IN_SOCKET,)
    return _singles(layout, free, need, 0, off, levels, most), (Step.SINGLE_CPUS,)


def _over_sockets(
    layout: Layout, whole: int, need: int, levels: tuple[int, ...], prefer_l3: bool
) -> int:
    """Whole cores only; fewer CPUs than needed where those are too few or not all needed."""
    by_size = sorted(
        ((whole & area.cpus).bit_count(), area.id, whole & area.cpus) for area in layout.sockets
    )
    taken = 0
    left = []
    for count, id_, cpus in sorted(by_size, key=lambda each: (-each[0], each[1])):
        if count <= need:
            taken |= cpus
            need -= count
        else:
            left.append((count, id_, cpus))
    for _, _, cpus in sorted(left):
        part = whole_cores(layout, cpus, need, levels)
        if prefer_l3 and part:
            part = in_fewest(layout, cpus, part, levels, whole_cores)
        taken |= part
        need -= part.bit_count()
    return taken


def _singles(
    layout: Layout,
    free: int,
    need: int,
    taken: int,
    off: Blocked,
    levels: tuple[int, ...],
    most: bool,
) -> int:
    free &= ~taken
    found = take_singles(layout, free & ~(off.cores | off.nodes), need, taken, levels, most)
    missing = need - found.bit_count()
    if missing:
        found |= take_singles(layout, free & ~found, missing, taken | found, levels, most)
    return found


def whole_cores(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    """As many of these whole cores as are needed entirely; those with most threads first."""
    taken = 0
    for threads, alike in layout.sizes:
        for leads in core_tiers(layout, cpus & alike, cpus, levels):
            chosen = lowest(leads, need // threads)
            taken |= layout.expand(chosen)
            need -= threads * chosen.bit_count()
    return taken


def _first_cores(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    """Whole cores, and a part of one where the need does not end with a core."""
    taken = whole_cores(layout, cpus, need, levels)
    missing = need - taken.bit_count()
    if not missing:
        return taken
    for _, alike in reversed(layout.sizes):
        for leads in core_tiers(layout, cpus & alike & ~taken, cpus, levels):
            return taken | lowest(layout.expand(leads & -leads), missing)
    return taken


def _firsts(layout: Layout, cpus: int, levels: tuple[int, ...]) -> int:
    """One of these CPUs on each core."""
    return sum(next(rounds(layout, tiers(cpus, levels)), ())) if levels else layout.firsts(cpus)


def _first_threads(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    if not levels:
        return lowest(layout.firsts(cpus), need)
    return first_of(next(rounds(layout, tiers(cpus, levels)), ()), need)


def _by_rounds(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    order = tiers(cpus, levels)
    if cpus.bit_count() <= layout.threads:
        return first_of(order, need)
    taken = 0
    for this in rounds(layout, order):
        part = first_of(this, need)
        taken |= part
        need -= part.bit_count()
        if not need:
            break
    return taken


def _nodes_of(layout: Layout, cpus: int) -> int:
    return sum(node.cpus for node in layout.nodes if node.cpus & cpus)


_NOTHING = Blocked()
