"""Takes an exact number of CPUs for a pod from the available CPUs, or returns why there are too
few: Koordinator's takeCPUs (pkg/scheduler/plugins/nodenumaresource/cpu_accumulator.go), on masks.

An available CPU is free while fewer pods hold it than may share a CPU. A required bind policy
restricts the free CPUs: FullPCPUs to whole cores, SpreadByPCPUs to one CPU of each core. Preferred
CPUs are taken first, in a separate search. Under DistributeEvenly each NUMA node gives its share
(`shares`), and the CPUs are packed in each node. `pack` ends with the first of these steps that
finds all that is needed:

1. For FullPCPUs, and if cores have one thread: the whole cores of one NUMA node, else of one
   socket. Else over sockets: those whose whole cores are all needed, most first, then core by core
   from the others, fewest first, while a whole core is still needed.
2. For the other policies: one thread of each core in one NUMA node, else more threads of its cores;
   else the same in one socket. Every core gives one thread before any gives a second.
3. For the rest, single CPUs (`_take_singles`).

The strategy chooses among the NUMA nodes or sockets that have enough: the one with the fewest free
CPUs (MostAllocated), else the one with the most. In it, CPUs that fewer pods hold come first, then
lower ids (see `_tiers`).

A pod with an exclusive policy first avoids the CPUs on cores, or in NUMA nodes, that pods with the
same policy hold. If that fails, it may use them: in one NUMA node (in step 1 only if NUMA nodes are
exclusive), in one socket in step 2 (only if cores are exclusive), and in step 3. With `downgrade`,
if no NUMA node satisfies NUMANodeLevel, steps 2 and 3 follow PCPULevel instead (fine-grained CPU
orchestration proposal, CPU exclusive policy); the whole cores of step 1 do so anyway.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from agent.allocate.refusal import Reason
from agent.model.cpu.cpuset import lowest, members
from agent.model.cpu.layout import Area, CpuRefCounts, Layout
from agent.model.cpu.policies import BindPolicy, ExclusivePolicy, Strategy


class CpuRequest(msgspec.Struct, frozen=True):
    """A number of CPUs, and how to choose them. A negative number raises ValueError."""

    count: int
    bind: BindPolicy = BindPolicy.DEFAULT
    """FULL_PCPUS prefers whole cores, every other policy one thread of each core."""
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    """It is always a preference."""
    strategy: Strategy = Strategy.LEAST_ALLOCATED
    required: bool = False
    """The bind policy is a condition, not a preference."""
    prefer_l3: bool = False
    """Among equal CPUs, those that share the fewest L3 caches are taken."""
    nodes: int | None = None
    """The NUMA nodes that may give CPUs, as a mask of their ids; None if all may."""
    downgrade: bool = False
    """NUMANodeLevel becomes PCPULevel where no NUMA node satisfies it."""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count: {self.count} CPUs cannot be taken")


class AllocationStep(enum.Enum):
    """The steps that give CPUs, in the order in which they are tried."""

    PREFERRED = "preferred"
    GIVEN_NODES = "given-numa-nodes"
    EVENLY = "evenly-over-numa-nodes"
    CORES_IN_NODE = "whole-cores-in-numa-node"
    CORES_IN_SOCKET = "whole-cores-in-socket"
    CORES_OVER_SOCKETS = "whole-cores-over-sockets"
    THREADS_IN_NODE = "thread-per-core-in-numa-node"
    CPUS_IN_NODE = "cpus-in-numa-node"
    THREADS_IN_SOCKET = "thread-per-core-in-socket"
    CPUS_IN_SOCKET = "cpus-in-socket"
    SINGLE_CPUS = "single-cpus"


Chosen: TypeAlias = tuple[int, tuple[AllocationStep, ...]]
"""A mask of CPUs, and the steps that gave them."""


class CpuExclusivity(enum.IntEnum):
    """How far the CPUs of a pod with an exclusive policy are from those of other pods with it."""

    SAME_CORES = 0
    OTHER_CORES = 1
    """NUMANodeLevel is downgraded to PCPULevel."""
    SATISFIED = 2
    """On other cores for PCPULevel, on other NUMA nodes for NUMANodeLevel."""


class Terms(msgspec.Struct, frozen=True):
    """What one search reads besides the free CPUs and their needed number."""

    layout: Layout
    request: CpuRequest
    """Only its policies are read."""
    cores_off: int
    """A mask of the CPUs on cores that pods with the same exclusive policy hold."""
    nodes_off: int
    """A mask of the CPUs in NUMA nodes that pods with the same exclusive policy hold."""
    levels: tuple[int, ...]
    """Masks of the CPUs that at least one pod holds, at least two, and so on, one fewer than pods
    may share a CPU; empty if CPUs are not shared."""
    lower: Terms | None = None
    """The terms after a downgrade, under which no core that a pod of either exclusive policy holds
    is taken; None if the request may not be downgraded."""

    @classmethod
    def of(
        cls, layout: Layout, cpu_counts: CpuRefCounts, request: CpuRequest, max_ref: int
    ) -> Terms:
        """The terms of a request, given what other pods hold; `max_ref` pods may share a CPU."""
        cores = nodes = 0
        lower = None
        levels = cpu_counts.held[: max_ref - 1]
        if request.exclusive is ExclusivePolicy.PCPU_LEVEL and cpu_counts.core_exclusive:
            cores = layout.expand(layout.touched(cpu_counts.core_exclusive[0]))
        elif request.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL and cpu_counts.node_exclusive:
            held = cpu_counts.node_exclusive[0]
            nodes = _nodes_of(layout, held)
            if request.downgrade:
                held |= sum(cpu_counts.core_exclusive[:1])
                by_core = msgspec.structs.replace(request, exclusive=ExclusivePolicy.PCPU_LEVEL)
                lower = cls(layout, by_core, layout.expand(layout.touched(held)), 0, levels)
        return cls(layout, request, cores, nodes, levels, lower)

    def exclusivity(self, cpus: int) -> CpuExclusivity:
        """How far these CPUs satisfy the exclusive policy."""
        if not cpus & (self.nodes_off | self.cores_off):
            return CpuExclusivity.SATISFIED
        shared = self.lower is None or cpus & self.lower.cores_off
        return CpuExclusivity.SAME_CORES if shared else CpuExclusivity.OTHER_CORES


class Taken(msgspec.Struct, frozen=True):
    """The CPUs for a request."""

    cpus: int
    """A mask with exactly the requested number of CPUs."""
    steps: tuple[AllocationStep, ...]
    """The steps that gave CPUs."""


class Shortage(msgspec.Struct, frozen=True):
    """There are fewer CPUs than a request needs."""

    reason: Reason
    requested: int
    free: int
    """The number of CPUs that the pod may have."""
    fitting: int
    """The number of free CPUs that suit the required bind policy."""
    node: int | None = None
    """The NUMA node that lacks its share, None if the request is not divided into shares."""


def take(
    layout: Layout,
    available: int,
    cpu_counts: CpuRefCounts,
    request: CpuRequest,
    max_ref: int = 1,
    preferred: int = 0,
) -> Taken | Shortage:
    """The CPUs for the request. `max_ref`: how many pods may share a CPU. Raises ValueError if it
    is less than 1."""
    free = available & layout.cpus & ~cpu_counts.full(max_ref)
    if request.nodes is not None:
        free &= layout.of_nodes(members(request.nodes))
    fitting, preferred = _fitting(layout, free, preferred, request)
    if request.count > fitting.bit_count():
        return _shortage(request.count, free, fitting)
    search = _evenly if request.strategy is Strategy.DISTRIBUTE_EVENLY else pack
    terms = Terms.of(layout, cpu_counts, request, max_ref)
    chosen = _search(search, terms, fitting, preferred, request.count)
    return _shortage(request.count, free, fitting) if chosen is None else Taken(*chosen)


def take_on_nodes(
    layout: Layout,
    available: int,
    cpu_counts: CpuRefCounts,
    request: CpuRequest,
    shares: Mapping[int, int],
    max_ref: int = 1,
) -> Taken | Shortage:
    """Takes from each NUMA node its number of CPUs in `shares`. `request.nodes` is ignored. Raises
    ValueError if a share is negative or the shares do not add up to the request."""
    if sum(shares.values()) != request.count or min(shares.values(), default=0) < 0:
        raise ValueError(f"shares: {dict(shares)} do not add up to {request.count} CPUs")
    free = available & layout.cpus & ~cpu_counts.full(max_ref)
    fitting, _ = _fitting(layout, free, 0, request)
    terms = Terms.of(layout, cpu_counts, request, max_ref)
    taken = 0
    steps = [AllocationStep.GIVEN_NODES]
    for id_, share in sorted(shares.items()):
        node = layout.of_nodes((id_,))
        here = fitting & node
        chosen = None
        if share <= here.bit_count():
            chosen = _search(pack, terms, here, 0, share)
        if chosen is None:
            return _shortage(share, free & node, here, id_)
        taken |= chosen[0]
        steps += chosen[1]
    return Taken(taken, _distinct(steps))


def _search(
    search: Callable[[Terms, int, int], Chosen], terms: Terms, free: int, preferred: int, need: int
) -> Chosen | None:
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


def _evenly(terms: Terms, free: int, need: int) -> Chosen:
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
        more = min(need // len(open_), min(rooms[index] - given[index] for index in open_))
        if not more:
            open_ = sorted(open_, key=lambda index: -rooms[index])[:need]
            more = 1
        for index in open_:
            given[index] += more
        need -= more * len(open_)
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


def pack(terms: Terms, free: int, need: int) -> Chosen:
    """`need` of the free CPUs, and the steps that gave them. There are at least as many."""
    if not need:
        return 0, ()
    if terms.request.bind is BindPolicy.FULL_PCPUS or terms.layout.threads == 1:
        return _cores(terms, free, need)
    return _threads(terms, free, need)


def _cores(terms: Terms, free: int, need: int) -> Chosen:
    layout, request = terms.layout, terms.request
    most = request.strategy is Strategy.MOST_ALLOCATED
    whole = layout.expand(layout.whole(free))
    open_ = whole & ~terms.nodes_off
    step = AllocationStep.CORES_IN_NODE
    area = _best_fit(layout.nodes, open_, open_, free & ~terms.nodes_off, need, most)
    if not area and open_ != whole:
        area = _best_fit(layout.nodes, whole, whole, free, need, most)
    if not area:
        step = AllocationStep.CORES_IN_SOCKET
        area = _best_fit(layout.sockets, whole, whole, 0, need, most)
    if area:
        return _picked(terms, whole & area, need, _first_cores), (step,)
    cpus = _over_sockets(terms, whole, need)
    steps = (AllocationStep.CORES_OVER_SOCKETS,) if cpus else ()
    if cpus.bit_count() == need:
        return cpus, steps
    off = terms.cores_off | terms.nodes_off
    if request.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        off |= _nodes_of(layout, cpus)
    return _singles(terms, free, need, cpus, off), (*steps, AllocationStep.SINGLE_CPUS)


def _threads(terms: Terms, free: int, need: int) -> Chosen:
    layout, levels = terms.layout, terms.levels
    most = terms.request.strategy is Strategy.MOST_ALLOCATED
    off = terms.cores_off | terms.nodes_off
    open_ = free & ~off
    firsts = _firsts(layout, open_, levels)
    step = AllocationStep.THREADS_IN_NODE
    area = _best_fit(layout.nodes, firsts, open_, open_, need, most)
    if not area and terms.lower is not None:
        area = _best_fit(layout.nodes, open_, open_, open_, need, most)
        if not area:
            return _threads(terms.lower, free, need)
        return _by_rounds(layout, open_ & area, need, levels), (AllocationStep.CPUS_IN_NODE,)
    if not area:
        area = _best_fit(layout.nodes, free, free, free, need, most)
        if area:
            return _by_rounds(layout, free & area, need, levels), (AllocationStep.CPUS_IN_NODE,)
        step = AllocationStep.THREADS_IN_SOCKET
        if terms.nodes_off:
            open_ = free
            firsts = _firsts(layout, open_, levels)
        area = _best_fit(layout.sockets, firsts, firsts, 0, need, most)
    if area:
        return _picked(terms, firsts & area, need, _first_threads), (step,)
    area = _best_fit(layout.sockets, free, free, 0, need, most)
    if area:
        return _by_rounds(layout, free & area, need, levels), (AllocationStep.CPUS_IN_SOCKET,)
    return _singles(terms, free, need, 0, off), (AllocationStep.SINGLE_CPUS,)


def _over_sockets(terms: Terms, whole: int, need: int) -> int:
    """Whole cores of several sockets; fewer CPUs than needed if there are too few whole cores, or
    if the last core is needed only in part."""
    sockets = [whole & area.cpus for area in terms.layout.sockets]
    taken = 0
    left = []
    for cpus in sorted(sockets, key=int.bit_count, reverse=True):
        if cpus.bit_count() <= need:
            taken |= cpus
            need -= cpus.bit_count()
        else:
            left.append(cpus)
    for cpus in sorted(left, key=int.bit_count):
        part = _picked(terms, cpus, need, whole_cores)
        taken |= part
        need -= part.bit_count()
    return taken


def _singles(terms: Terms, free: int, need: int, taken: int, off: int) -> int:
    """The taken CPUs and, up to the need, single CPUs; those in `off` come last, after a downgrade
    those on the cores of exclusive pods."""
    most = terms.request.strategy is Strategy.MOST_ALLOCATED
    lower = terms.lower.cores_off if terms.lower else 0
    for open_ in (free & ~off, free & ~lower, free):
        missing = need - taken.bit_count()
        if missing:
            taken |= _take_singles(terms.layout, open_ & ~taken, missing, taken, terms.levels, most)
    return taken


def whole_cores(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    """Takes these whole cores while all threads of one are needed, cores with the most threads
    first. Returns their CPUs."""
    taken = 0
    for threads, alike in layout.sizes:
        for leads in _core_tiers(layout, cpus & alike, cpus, levels):
            chosen = lowest(leads, need // threads)
            taken |= layout.expand(chosen)
            need -= threads * chosen.bit_count()
    return taken


def _first_cores(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    """Whole cores, and a part of one if the need is not a number of whole cores."""
    taken = whole_cores(layout, cpus, need, levels)
    missing = need - taken.bit_count()
    if not missing:
        return taken
    for _, alike in reversed(layout.sizes):
        for leads in _core_tiers(layout, cpus & alike & ~taken, cpus, levels):
            return taken | lowest(layout.expand(leads & -leads), missing)
    return taken


def _firsts(layout: Layout, cpus: int, levels: tuple[int, ...]) -> int:
    """One of these CPUs on each core."""
    return sum(next(_rounds(layout, _tiers(cpus, levels)), ())) if levels else layout.firsts(cpus)


def _first_threads(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    if not levels:
        return lowest(layout.firsts(cpus), need)
    return _first_of(next(_rounds(layout, _tiers(cpus, levels)), ()), need)


def _by_rounds(layout: Layout, cpus: int, need: int, levels: tuple[int, ...]) -> int:
    order = _tiers(cpus, levels)
    if cpus.bit_count() <= layout.threads:
        return _first_of(order, need)
    taken = 0
    for this in _rounds(layout, order):
        part = _first_of(this, need)
        taken |= part
        need -= part.bit_count()
        if not need:
            break
    return taken


def _nodes_of(layout: Layout, cpus: int) -> int:
    return sum(node.cpus for node in layout.nodes if node.cpus & cpus)


def _take_singles(
    layout: Layout, free: int, need: int, taken: int, levels: tuple[int, ...], most: bool
) -> int:
    """`need` of the free CPUs, all if there are fewer; `taken`: the CPUs that the pod already has.

    Cores are ordered by the taken CPUs of their socket (most first), the free CPUs of their socket
    and NUMA node (fewest first for MostAllocated, else most), their free threads (fewest first),
    the socket, the pods that hold their CPUs (fewest first), and the core's id. In this order every
    core gives one CPU (the one that the fewest pods hold, then the lower), then every core with
    another free CPU gives a second one.
    """
    count = free.bit_count()
    if count <= need:
        return free
    if count <= layout.threads:
        return _core_by_core(layout, free, need, taken, levels, most)
    singles = 0
    for number, order in enumerate(_rounds(layout, _tiers(free, levels))):
        these = sum(order)
        if these.bit_count() <= need:
            singles |= these
            need -= these.bit_count()
            continue
        for leads in _runs(layout, free, taken, levels, most, number):
            chosen = lowest(leads, need)
            singles |= layout.expand(chosen) & these
            need -= chosen.bit_count()
            if not need:
                break
        break
    return singles


def _runs(
    layout: Layout, free: int, taken: int, levels: tuple[int, ...], most: bool, more_than: int
) -> Iterator[int]:
    """The cores with more than `more_than` free threads, in order: masks of leads, each in the
    order of its ids."""
    sign = 1 if most else -1
    sockets = [
        (-(area.cpus & taken).bit_count(), sign * (area.cpus & free).bit_count())
        for area in layout.sockets
    ]
    nodes = [sign * (area.cpus & free).bit_count() for area in layout.nodes]
    cells: dict[tuple[tuple[int, int], int], dict[int, int]] = {}
    for cell in layout.cells:
        alike = cells.setdefault((sockets[cell.socket], nodes[cell.node]), {})
        alike[cell.socket] = alike.get(cell.socket, 0) | cell.cpus
    at_least = layout.at_least(free)[more_than:]
    exactly = [here & ~more for here, more in zip(at_least, [*at_least[1:], 0], strict=True)]
    for _, alike in sorted(cells.items()):
        for leads in exactly:
            for cpus in alike.values():
                yield from _core_tiers(layout, leads & cpus, free, levels)


def _core_by_core(
    layout: Layout, free: int, need: int, taken: int, levels: tuple[int, ...], most: bool
) -> int:
    """Does not spread CPUs over cores if one core could give them all."""
    singles = 0
    for leads in _runs(layout, free, taken, levels, most, 0):
        for lead in members(leads):
            part = _first_of(_tiers(layout.expand(1 << lead) & free, levels), need)
            singles |= part
            need -= part.bit_count()
    return singles


def _best_fit(
    areas: Iterable[Area], listed: int, counted: int, around: int, need: int, most: bool
) -> int:
    """The CPUs of the area to take from, 0 where none has `need` of the listed ones.

    The area with the fewest of the counted CPUs if `most` (as in MostAllocated), else with the
    most; then the one whose sockets have the fewest (most) of the CPUs `around`; then the lowest
    id.
    """
    best: Area | None = None
    best_count = 0
    for area in areas:
        mine = listed & area.cpus
        count = mine.bit_count()
        if count < need:
            continue
        if counted != listed:
            count = (counted & area.cpus).bit_count()
        if not most:
            count = -count
        if best is None or count < best_count:
            best, best_count = area, count
        elif count == best_count and best.around != area.around:
            more = (around & area.around).bit_count() - (around & best.around).bit_count()
            if more < 0 if most else more > 0:
                best = area
    return best.cpus if best is not None else 0


_Pick: TypeAlias = Callable[[Layout, int, int, tuple[int, ...]], int]
"""Takes a number of CPUs of a mask in its own order; the last argument is Terms.levels."""


def _picked(terms: Terms, cpus: int, need: int, pick: _Pick) -> int:
    taken = pick(terms.layout, cpus, need, terms.levels)
    if terms.request.prefer_l3 and taken:
        return _in_fewest(terms.layout, cpus, taken, terms.levels, pick)
    return taken


def _in_fewest(
    layout: Layout, listed: int, plain: int, levels: tuple[int, ...], pick: _Pick
) -> int:
    """Replaces `plain` by as many of the listed CPUs in its NUMA nodes, in fewer L3 caches and with
    no fewer whole cores. Returns `plain` if that is not possible. The smallest cache
    that has all missing CPUs gives them; while no cache has all, the largest one gives all that it
    has. No other choice has fewer caches.
    """
    need = plain.bit_count()
    near = sum(node.cpus for node in layout.nodes if node.cpus & plain) & listed
    rest = {cache.id: near & cache.cpus for cache in layout.caches if near & cache.cpus}
    taken = 0
    while need and rest:
        cache = min(rest, key=lambda id_: _fit(rest[id_].bit_count(), need, id_))
        part = pick(layout, rest.pop(cache), need, levels)
        taken |= part
        need -= part.bit_count()
    # If cores have different numbers of threads, those of the largest caches may not add up.
    if need or layout.whole(taken).bit_count() < layout.whole(plain).bit_count():
        return plain
    return taken if _caches(layout, taken) < _caches(layout, plain) else plain


def _fit(held: int, need: int, id_: int) -> tuple[bool, int, int]:
    return (False, held, id_) if held >= need else (True, -held, id_)


def _caches(layout: Layout, cpus: int) -> int:
    return sum(1 for cache in layout.caches if cache.cpus & cpus)


def _tiers(cpus: int, levels: tuple[int, ...]) -> list[int]:
    """Groups the CPUs by the number of pods that hold them, fewest first; no group is empty."""
    tiers = []
    for level in levels:
        if cpus & ~level:
            tiers.append(cpus & ~level)
        cpus &= level
    if cpus:
        tiers.append(cpus)
    return tiers


def _rounds(layout: Layout, order: Sequence[int]) -> Iterator[list[int]]:
    """Yields one CPU of each core, then a second one of each, and so on. `order`: the CPUs in
    tiers; each round is divided into the same tiers."""
    left = list(order)
    while any(left):
        seen = 0
        this = []
        for index, tier in enumerate(left):
            firsts = layout.firsts(tier)
            if seen:
                firsts &= ~layout.expand(seen)
            this.append(firsts)
            left[index] = tier & ~firsts
            if len(left) > 1:
                seen |= layout.touched(firsts)
        yield this


def _core_tiers(layout: Layout, leads: int, cpus: int, levels: tuple[int, ...]) -> list[int]:
    """Groups the cores `leads` by the sum, over their CPUs in `cpus`, of the pods that hold each
    CPU, fewest first."""
    digits: list[int] = []
    for level in levels:
        held = level & cpus
        for stride in layout.strides:
            for offset in stride.offsets:
                _add(digits, held >> offset & stride.leads & leads)
    tiers = [leads] if leads else []
    for digit in reversed(digits):
        tiers = [part for tier in tiers for part in (tier & ~digit, tier & digit) if part]
    return tiers


def _add(digits: list[int], ones: int) -> None:
    """Adds 1 to the count of every lead in `ones`; bit k of the binary counts is in `digits[k]`."""
    for index, digit in enumerate(digits):
        if not ones:
            return
        digits[index] = digit ^ ones
        ones &= digit
    if ones:
        digits.append(ones)


def _first_of(order: Iterable[int], count: int) -> int:
    """The first `count` CPUs, tier by tier, low ids first."""
    taken = 0
    for tier in order:
        if count <= 0:
            break
        part = lowest(tier, count)
        taken |= part
        count -= part.bit_count()
    return taken
