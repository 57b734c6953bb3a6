"""Takes an exact number of CPUs for a pod from the available CPUs, or returns why there are too
few.

An available CPU is free while fewer pods hold it than may share a CPU. A required bind policy
restricts the free CPUs: FullPCPUs to whole cores, SpreadByPCPUs to one CPU of each core. Preferred
CPUs are taken first, in a separate search. `packing` chooses the CPUs. Under DistributeEvenly each
NUMA node gives its share (`shares`), and `packing` chooses in each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from agent.allocate.layout import Area, CpuRefCounts, Layout
from agent.allocate.packing import AllocationStep, CpuRequest, Found, Terms, pack, whole_cores
from agent.allocate.refusal import Reason
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import BindPolicy, Strategy


class Taken(msgspec.Struct, frozen=True):
    """`cpus`: a mask with exactly the requested number of CPUs. `steps`: the steps that gave
    CPUs."""

    cpus: int
    steps: tuple[AllocationStep, ...]


class Shortage(msgspec.Struct, frozen=True):
    """`requested` CPUs are needed, but only `free` may be taken, and only `fitting` of these suit
    the required bind policy. `node`: the NUMA node that lacks its share, None if the request is not
    divided into shares."""

    reason: Reason
    requested: int
    free: int
    fitting: int
    node: int | None = None


def take(
    layout: Layout,
    available: int,
    holdings: CpuRefCounts,
    request: CpuRequest,
    max_ref: int = 1,
    preferred: int = 0,
) -> Taken | Shortage:
    """The CPUs for the request. `max_ref`: how many pods may share a CPU. Raises ValueError if it
    is less than 1."""
    free = available & layout.cpus & ~holdings.full(max_ref)
    if request.nodes is not None:
        free &= layout.of_nodes(members(request.nodes))
    fitting, preferred = _fitting(layout, free, preferred, request)
    if request.count > fitting.bit_count():
        return _shortage(request.count, free, fitting)
    search = _evenly if request.strategy is Strategy.DISTRIBUTE_EVENLY else pack
    terms = Terms.of(layout, holdings, request, max_ref)
    found = _find(search, terms, fitting, preferred, request.count)
    if found is None:
        return _shortage(request.count, free, fitting)
    cpus, steps = found
    return Taken(cpus, steps)


def take_on_nodes(
    layout: Layout,
    available: int,
    holdings: CpuRefCounts,
    request: CpuRequest,
    shares: Mapping[int, int],
    max_ref: int = 1,
) -> Taken | Shortage:
    """Takes from each NUMA node its number of CPUs in `shares`. `request.nodes` is ignored. Raises
    ValueError if a share is negative or the shares do not add up to the request."""
    if sum(shares.values()) != request.count or min(shares.values(), default=0) < 0:
        raise ValueError(f"shares: {dict(shares)} do not add up to {request.count} CPUs")
    free = available & layout.cpus & ~holdings.full(max_ref)
    fitting, _ = _fitting(layout, free, 0, request)
    terms = Terms.of(layout, holdings, request, max_ref)
    taken = 0
    steps = [AllocationStep.GIVEN_NODES]
    for id_, share in sorted(shares.items()):
        node = layout.of_nodes((id_,))
        here = fitting & node
        found = None
        if share <= here.bit_count():
            found = _find(pack, terms, here, 0, share)
        if found is None:
            return _shortage(share, free & node, here, id_)
        taken |= found[0]
        steps += found[1]
    return Taken(taken, _distinct(steps))


def _find(
    search: Callable[[Terms, int, int], Found], terms: Terms, free: int, preferred: int, need: int
) -> Found | None:
    """Searches first among the preferred CPUs. `free` has at least `need` CPUs. None if a required
    FullPCPUs can't be satisfied."""
    first = free & preferred
    if first:
        count = min(need, first.bit_count())
        cpus, steps = search(terms, first, count)
        rest, more = search(terms, free & ~first, need - count)
        cpus, steps = cpus | rest, _distinct((AllocationStep.PREFERRED, *steps, *more))
    else:
        cpus, steps = search(terms, free, need)
    layout, request = terms.layout, terms.request
    if not request.required or request.bind is not BindPolicy.FULL_PCPUS:
        return cpus, steps
    if layout.expand(layout.touched(cpus)) != cpus:
        # If cores have different numbers of threads, other cores may add up to the need.
        cpus, steps = whole_cores(layout, free, need, ()), (AllocationStep.CORES_OVER_SOCKETS,)
    return (cpus, steps) if cpus.bit_count() == need else None


def _evenly(terms: Terms, free: int, need: int) -> Found:
    layout, request = terms.layout, terms.request
    full = request.bind is BindPolicy.FULL_PCPUS
    lower = 0 if full or terms.lower is None else terms.lower.cores_off
    for off in (terms.nodes_off if full else terms.nodes_off | terms.cores_off, lower):
        if (free & ~off).bit_count() >= need:
            free &= ~off
            break
    taken = 0
    steps = [AllocationStep.EVENLY]
    given = shares(layout, free, need, full, request.nodes is not None)
    for id_, share in given.items():
        cpus, more = pack(terms, free & layout.of_nodes((id_,)), share)
        taken |= cpus
        steps += more
    return taken, _distinct(steps)


class _Choice(NamedTuple):
    """Choices are compared field by field: the least is the best."""

    difference: int
    sockets: int
    missing_room: int
    ids: tuple[int, ...]
    shares: tuple[int, ...]


def shares(
    layout: Layout, free: int, need: int, whole_cores: bool, all_nodes: bool
) -> dict[int, int]:
    """The CPUs that each NUMA node gives, by node id, without zeros; `free` has at least `need`.

    `all_nodes`: every NUMA node that has free CPUs gives some, instead of the fewest nodes.

    Otherwise the fewest NUMA nodes that can hold the request give: the most even choice, then the
    one on the fewest sockets, then the one with the most room, then the one with the lowest ids.
    Shares are as equal as the room allows: each node gives the same number, and a node with less
    room gives all that it has. A remainder goes to the nodes with the most room, then to the lower
    id. For FullPCPUs the unit is a core while the nodes have enough whole cores; CPUs that do not
    make a whole core go to the smallest share.
    """
    if not need:
        return {}
    unit = 1
    if whole_cores:
        whole = layout.expand(layout.whole(free))
        units = sum((whole & node.cpus).bit_count() // layout.threads for node in layout.nodes)
        if units * layout.threads >= need:
            free, unit = whole, layout.threads
    rooms = []
    for node in layout.nodes:
        room = (free & node.cpus).bit_count() // unit * unit
        if room:
            rooms.append((node, room))
    rooms.sort(key=lambda room: (-room[1], room[0].id))
    if all_nodes:
        choices = [rooms]
    else:
        size = _fewest(rooms, need)
        choices = [rooms[:size]]
        for socket in {node.around for node, _ in rooms}:
            inside = [room for room in rooms if room[0].around == socket][:size]
            if sum(count for _, count in inside) >= need:
                choices.append(inside)
    best = min(_choice(rooms, need, unit) for rooms in choices)
    return {id_: share for id_, share in zip(best.ids, best.shares, strict=True) if share}


def even(rooms: Sequence[int], need: int) -> list[int]:
    """Shares `need` units as equally as the rooms allow; their sum is at least `need`. A remainder
    goes to the largest rooms, the first of equal ones."""
    given = [0] * len(rooms)
    while need:
        open_ = [index for index, room in enumerate(rooms) if given[index] < room]
        each = min(need // len(open_), min(rooms[index] - given[index] for index in open_))
        if not each:
            open_ = sorted(open_, key=lambda index: -rooms[index])[:need]
            each = 1
        for index in open_:
            given[index] += each
        need -= each * len(open_)
    return given


def _fewest(rooms: Iterable[tuple[Area, int]], need: int) -> int:
    for number, (_, count) in enumerate(rooms, start=1):
        need -= count
        if need <= 0:
            return number
    return 0


def _choice(rooms: Sequence[tuple[Area, int]], need: int, unit: int) -> _Choice:
    units, extra = divmod(need, unit)
    given = [share * unit for share in even([count // unit for _, count in rooms], units)]
    if extra:
        _, index = min(
            (given[index], index)
            for index, (_, count) in enumerate(rooms)
            if count - given[index] >= extra
        )
        given[index] += extra
    in_order = sorted((node.id, share) for (node, _), share in zip(rooms, given, strict=True))
    return _Choice(
        difference=max(given) - min(given),
        sockets=len({node.around for node, _ in rooms}),
        missing_room=-sum(count for _, count in rooms),
        ids=tuple(id_ for id_, _ in in_order),
        shares=tuple(share for _, share in in_order),
    )


def _fitting(layout: Layout, free: int, preferred: int, request: CpuRequest) -> tuple[int, int]:
    """The free CPUs, and the preferred ones among them, that suit a required bind policy."""
    if not request.required:
        return free, preferred
    if request.bind is BindPolicy.FULL_PCPUS:
        return (
            layout.expand(layout.whole(free)),
            layout.expand(layout.whole(free & preferred)),
        )
    if request.bind is BindPolicy.SPREAD_BY_PCPUS:
        first = layout.firsts(free & preferred)
        others = free & ~layout.expand(layout.touched(first))
        return first | layout.firsts(others), first
    return free, preferred


def _shortage(requested: int, free: int, fitting: int, node: int | None = None) -> Shortage:
    reason = Reason.BIND_POLICY_UNMET if requested <= free.bit_count() else Reason.NOT_ENOUGH_CPUS
    return Shortage(reason, requested, free.bit_count(), fitting.bit_count(), node)


def _distinct(steps: Iterable[AllocationStep]) -> tuple[AllocationStep, ...]:
    return tuple(dict.fromkeys(steps))
