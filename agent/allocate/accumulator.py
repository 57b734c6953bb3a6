"""Exactly so many CPUs for a pod, of those that are available.

What is available and not held by as many pods as may share a CPU is free. A required bind policy
narrows that: FullPCPUs to whole cores, SpreadByPCPUs to one CPU of each core. Preferred CPUs are
taken before all others, in a search of their own. How CPUs are chosen is in packing, how they are
shared out over NUMA nodes in evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from agent.allocate import evenly
from agent.allocate.bits import members
from agent.allocate.cpu_request import CpuRequest, Reason, Shortage, Step, Taken
from agent.allocate.holdings import Holdings
from agent.allocate.layout import Layout
from agent.allocate.packing import Blocked, blocked, pack, whole_cores
from agent.model.policies import BindPolicy, NumaStrategy


def take(
    layout: Layout,
    available: int,
    holdings: Holdings,
    request: CpuRequest,
    max_ref: int = 1,
    preferred: int = 0,
) -> Taken | Shortage:
    """The CPUs for the request; `max_ref`: how many pods may share a CPU."""
    free = available & layout.cpus & ~holdings.full(max_ref)
    if request.nodes is not None:
        free &= layout.of_nodes(members(request.nodes))
    fitting, preferred = _fitting(layout, free, preferred, request)
    if request.count > fitting.bit_count():
        return _shortage(request, free, fitting)
    levels = holdings.held[: max_ref - 1]
    off = blocked(layout, holdings, request.exclusive)
    search = _evenly if request.strategy is NumaStrategy.DISTRIBUTE_EVENLY else pack
    cpus, steps = _preferred_first(
        search, layout, fitting, preferred, request.count, request, off, levels
    )
    return _checked(layout, cpus, steps, request, off, free, fitting)


def take_on_nodes(
    layout: Layout,
    available: int,
    holdings: Holdings,
    request: CpuRequest,
    shares: Mapping[int, int],
    max_ref: int = 1,
    preferred: int = 0,
) -> Taken | Shortage:
    """So many CPUs from each NUMA node: `shares` by node id. ValueError where they do not add up to
    the request; its `nodes` and a strategy to distribute evenly do not matter here."""
    if sum(shares.values()) != request.count:
        raise ValueError(f"shares: {dict(shares)} do not add up to {request.count} CPUs")
    free = available & layout.cpus & ~holdings.full(max_ref)
    fitting, preferred = _fitting(layout, free, preferred, request)
    levels = holdings.held[: max_ref - 1]
    off = blocked(layout, holdings, request.exclusive)
    taken = 0
    steps = [Step.GIVEN_NODES]
    for id_, share in sorted(shares.items()):
        node = layout.of_nodes((id_,))
        if share > (fitting & node).bit_count():
            return _shortage(request, free & node, fitting & node, share, id_)
        cpus, more = _preferred_first(
            pack, layout, fitting & node, preferred & node, share, request, off, levels
        )
        taken |= cpus
        steps += more
    return _checked(layout, taken, _distinct(steps), request, off, free, fitting)


_Search: TypeAlias = Callable[
    [Layout, int, int, CpuRequest, Blocked, tuple[int, ...]], tuple[int, tuple[Step, ...]]
]
"""The type of `pack`."""


def _preferred_first(
    search: _Search,
    layout: Layout,
    free: int,
    preferred: int,
    need: int,
    request: CpuRequest,
    off: Blocked,
    levels: tuple[int, ...],
) -> tuple[int, tuple[Step, ...]]:
    first = free & preferred
    if not first:
        return search(layout, free, need, request, off, levels)
    count = min(need, first.bit_count())
    cpus, steps = search(layout, first, count, request, off, levels)
    rest, more = search(layout, free & ~first, need - count, request, off, levels)
    return cpus | rest, _distinct((Step.PREFERRED, *steps, *more))


def _evenly(
    layout: Layout,
    free: int,
    need: int,
    request: CpuRequest,
    off: Blocked,
    levels: tuple[int, ...],
) -> tuple[int, tuple[Step, ...]]:
    whole_cores = request.bind is BindPolicy.FULL_PCPUS
    open_ = free & ~(off.nodes if whole_cores else off.nodes | off.cores)
    if open_.bit_count() >= need:
        free = open_
    taken = 0
    steps = [Step.EVENLY]
    shares = evenly.shares(layout, free, need, whole_cores, request.nodes is not None)
    for id_, share in shares.items():
        cpus, more = pack(layout, free & layout.of_nodes((id_,)), share, request, off, levels)
        taken |= cpus
        steps += more
    return taken, _distinct(steps)


def _fitting(layout: Layout, free: int, preferred: int, request: CpuRequest) -> tuple[int, int]:
    """What suits a required bind policy: of the free CPUs, and of the preferred among them."""
    if not request.required:
        return free, preferred
    if request.bind is BindPolicy.FULL_PCPUS:
        return (
            layout.expand(layout.whole(free)),
            layout.expand(layout.whole(free & preferred)),
        )
    if request.bind is BindPolicy.SPREAD_BY_PCPUS:
        first = layout.firsts(free & preferred)
        beside = free & ~layout.expand(layout.touched(first))
        return first | layout.firsts(beside), first
    return free, preferred


def _checked(
    layout: Layout,
    cpus: int,
    steps: tuple[Step, ...],
    request: CpuRequest,
    off: Blocked,
    free: int,
    fitting: int,
) -> Taken | Shortage:
    if (
        request.required
        and request.bind is BindPolicy.FULL_PCPUS
        and layout.expand(layout.touched(cpus)) != cpus
    ):
        # Where cores differ in threads, the cores of other areas may add up.
        cpus, steps = whole_cores(layout, fitting, request.count, ()), (Step.CORES_OVER_SOCKETS,)
        if cpus.bit_count() < request.count:
            return _shortage(request, free, fitting)
    return Taken(cpus, steps, apart=not cpus & (off.cores | off.nodes))


def _shortage(
    request: CpuRequest, free: int, fitting: int, asked: int | None = None, node: int | None = None
) -> Shortage:
    asked = request.count if asked is None else asked
    reason = Reason.BIND_POLICY if asked <= free.bit_count() else Reason.NOT_ENOUGH_CPUS
    return Shortage(reason, asked, free.bit_count(), fitting.bit_count(), node)


def _distinct(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(dict.fromkeys(steps))
