"""Chooses among the free CPUs for a container under the static policy's options (kubelet:
pkg/kubelet/cm/cpumanager/cpu_assignment.go).

Packed (takeByTopologyNUMAPacked): on as few sockets, NUMA nodes and cores as possible. Areas that
are wholly free and fit come first: sections, their parts, L3 caches if the options count them,
cores; the last CPUs come from the cores with the most taken CPUs. In each step the area with the
fewest free CPUs comes first, then the lowest id. The order nests: the parts of a section follow
each other in the section's place.

Distributed (takeByTopologyNUMADistributed): evenly over as few NUMA nodes as hold the request, and
packed within each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from agent.allocate.kubelet.static_policy import NotEnoughCpusError, StaticOptions
from agent.model.cpu.cpuset import lowest
from agent.model.cpu.layout import Area, Layout, Section


def take(layout: Layout, free: int, count: int, options: StaticOptions) -> int:
    """Exactly `count` of the free CPUs. Raises NotEnoughCpusError.

    The caller checks that the request is for whole cores; here `full_pcpus_only` only sets the
    size of the groups in which CPUs are distributed.
    """
    spread = options.distribute_cpus_across_cores
    if options.distribute_cpus_across_numa:
        group = layout.threads if options.full_pcpus_only else 1
        return _take_distributed(layout, free, count, group=group, spread=spread)
    by_cache = options.prefer_align_cpus_by_uncorecache
    return take_packed(layout, free, count, by_cache=by_cache, spread=spread)


def take_aligned(layout: Layout, free: int, count: int, options: StaticOptions) -> int:
    """Like `take`, but with full-pcpus-only only whole cores. Raises NotEnoughCpusError.

    Cores with only some free CPUs influence the order, as in the kubelet, but are not taken: if the
    first choice has one, the choice is repeated among whole cores, and then among the whole cores
    with the most threads, since cores of different widths may not add up to the request.
    """
    cpus = take(layout, free, count, options)
    if not options.full_pcpus_only or of_whole_cores(layout, cpus) == cpus:
        return cpus
    whole = layout.whole(free)
    for leads in (whole, whole & layout.sizes[0][1]):
        cpus = take(layout, layout.expand(leads), count, options)
        if of_whole_cores(layout, cpus) == cpus:
            return cpus
    raise NotEnoughCpusError(count, layout.expand(whole).bit_count())


def of_whole_cores(layout: Layout, cpus: int) -> int:
    """The CPUs whose siblings are all among these CPUs too."""
    return layout.expand(layout.whole(cpus))


def take_packed(
    layout: Layout, free: int, count: int, *, by_cache: bool = False, spread: bool = False
) -> int:
    """Exactly `count` of the free CPUs.

    `by_cache`: on as few L3 caches as possible.
    `spread`: the last CPUs are taken by their numbers in a socket, regardless of cores.

    Raises NotEnoughCpusError."""
    available = free.bit_count()
    if count >= available:
        if count > available:
            raise NotEnoughCpusError(count, available)
        return free
    rest, missing = _take_whole_areas(layout, free, count)
    if missing and by_cache:
        rest, missing = _take_caches(layout, rest, missing)
    if missing and not spread:
        rest, missing = _take_whole_cores(layout, rest, missing)
    if missing:
        rest &= ~(_lowest(layout, rest, missing) if spread else _last(layout, rest, missing))
    return free & ~rest


def _take_whole_areas(layout: Layout, rest: int, missing: int) -> tuple[int, int]:
    """The CPUs and the need that are left after taking whole sections and then whole parts."""
    fitting = sorted(
        (size, section.id, section.cpus)
        for section in layout.sections
        if not section.cpus & ~rest and (size := section.cpus.bit_count()) <= missing
    )
    for size, _, cpus in fitting:
        if size <= missing:
            rest ^= cpus
            missing -= size
    if missing and any(
        not part.cpus & ~rest and part.cpus.bit_count() <= missing
        for section in layout.sections
        for part in section.parts
    ):
        for cpus in _ordered_parts(layout, rest):
            if not cpus & ~rest and (size := cpus.bit_count()) <= missing:
                rest ^= cpus
                missing -= size
    return rest, missing


def _take_caches(layout: Layout, rest: int, missing: int) -> tuple[int, int]:
    """Whole caches, then the rest from one cache, if its first cores have exactly that many
    CPUs."""
    ordered = _ordered_caches(layout, rest)
    for cache in ordered:
        if not cache & ~rest and (size := cache.bit_count()) <= missing:
            rest ^= cache
            missing -= size
    if not missing:
        return rest, 0
    cores = -(-missing // layout.threads)
    touched = layout.touched(rest)
    for cache in ordered:
        if (rest & cache).bit_count() < missing:
            continue
        part = layout.expand(lowest(touched & cache, cores)) & rest
        held = part.bit_count()
        if held == missing + 1 and missing % 2:
            part ^= 1 << part.bit_length() - 1
            held = missing
        if held == missing:
            return rest ^ part, 0
    return rest, missing


def _take_whole_cores(layout: Layout, rest: int, missing: int) -> tuple[int, int]:
    sizes = layout.sizes[::-1]
    if missing < sizes[0][0] or not (whole := layout.whole(rest)):
        return rest, missing
    for part in _ordered_parts(layout, rest):
        for width, leads in sizes:
            fitting = missing // width
            if fitting and (here := whole & leads & part):
                if (held := here.bit_count()) > fitting:
                    here, held = lowest(here, fitting), fitting
                rest ^= layout.expand(here)
                missing -= held * width
        if not missing:
            break
    return rest, missing


def _last(layout: Layout, rest: int, missing: int) -> int:
    """CPUs of the cores with the fewest free CPUs, part by part."""
    taken = 0
    for part in _ordered_parts(layout, rest):
        inside = rest & part
        held = inside.bit_count()
        if held <= missing:
            taken |= inside
            missing -= held
        else:
            return taken | _of_used_cores(layout, inside, missing)
        if not missing:
            break
    return taken


def _of_used_cores(layout: Layout, inside: int, missing: int) -> int:
    """`missing` of these CPUs, which are more."""
    taken = 0
    levels = [*layout.at_least(inside), 0]
    for threads in range(1, len(levels)):
        leads = levels[threads - 1] & ~levels[threads]
        held = leads.bit_count() * threads
        if held <= missing:
            taken |= layout.expand(leads) & inside
            missing -= held
        else:
            cores, odd = divmod(missing, threads)
            firsts = lowest(leads, cores)
            taken |= layout.expand(firsts) & inside
            if odd:
                leads ^= firsts
                taken |= lowest(layout.expand(leads & -leads) & inside, odd)
            break
        if not missing:
            break
    return taken


def _lowest(layout: Layout, rest: int, missing: int) -> int:
    taken = 0
    for socket in _ordered_sockets(layout, rest):
        part = lowest(rest & socket, missing)
        taken |= part
        missing -= part.bit_count()
        if not missing:
            break
    return taken


_Place = TypeVar("_Place", Area, Section)


def _ordered_parts(layout: Layout, free: int) -> list[int]:
    """The CPUs of all parts of sections that have free CPUs; cores are listed per part."""
    ordered: list[int] = []
    for _, _, section in _by_free(layout.sections, free):
        if len(section.parts) == 1:
            ordered.append(section.parts[0].cpus)
        else:
            inside = free & section.cpus
            touched = [part for part in section.parts if part.cpus & inside]
            ordered.extend(part.cpus for _, _, part in _by_free(touched, free))
    return ordered


def _ordered_sockets(layout: Layout, free: int) -> list[int]:
    if layout.nodes_first:
        return _ordered_parts(layout, free)
    return [section.cpus for _, _, section in _by_free(layout.sections, free)]


def _ordered_nodes(layout: Layout, free: int) -> list[int]:
    if layout.nodes_first:
        return [section.cpus for _, _, section in _by_free(layout.sections, free)]
    return _ordered_parts(layout, free)


def _ordered_caches(layout: Layout, free: int) -> list[int]:
    """CPUs of the L3 caches that have free CPUs, those of a NUMA node together."""
    ordered: list[int] = []
    for node in _ordered_nodes(layout, free):
        touched = [cache for cache in layout.caches if cache.cpus & node & free]
        ordered.extend(cache.cpus for _, _, cache in _by_free(touched, free))
    return ordered


def _by_free(areas: Iterable[_Place], free: int) -> list[tuple[int, int, _Place]]:
    counted = [((area.cpus & free).bit_count(), area.id, area) for area in areas]
    return sorted(each for each in counted if each[0])


def _take_distributed(
    layout: Layout, free: int, count: int, *, group: int = 1, spread: bool = False
) -> int:
    """Exactly `count` of the free CPUs, in groups of `group`; packed if the count is not a multiple
    of it or no distribution is possible.

    `spread`: as in `take_packed`, inside each node.

    Raises NotEnoughCpusError."""
    available = free.bit_count()
    if count > available:
        raise NotEnoughCpusError(count, available)
    if not count or count % group:
        return take_packed(layout, free, count, spread=spread)
    nodes = _ordered_nodes(layout, free)
    held = [(node & free).bit_count() for node in nodes]
    groups = count // group
    per_node = _up(_up(layout.cpus.bit_count(), group), len(layout.nodes))
    for size in range(_up(groups, per_node), min(groups, len(nodes)) + 1):
        given = shares(held, count, group, size)
        if given is not None:
            return _taken(layout, free, nodes, given, (count // size // group, group), spread)
    return take_packed(layout, free, count, spread=spread)


def _taken(
    layout: Layout,
    free: int,
    nodes: list[int],
    given: list[int],
    portions: tuple[int, int],
    spread: bool,
) -> int:
    """Takes the CPUs of each node in one call for the base and then group by group, as the kubelet
    does; a single call would choose other CPUs.

    `portions`: the number of groups in the base, and the CPUs of a group."""
    base, group = portions
    taken = 0
    for node, cpus in zip(nodes, given, strict=True):
        rest = node & free
        missing = cpus
        portion = base * group
        while missing:
            if portion:
                part = take_packed(layout, rest, portion, spread=spread)
                rest ^= part
                taken |= part
                missing -= portion
            portion = group
    return taken


def _up(count: int, parts: int) -> int:
    return -(-count // parts)


def shares(free: Sequence[int], count: int, group: int, nodes: int) -> list[int] | None:
    """The CPUs that each node gives, so that `nodes` nodes give `count` in whole groups; None if
    this is not possible with this number of nodes.

    Among all ways to choose k nodes, the one that leaves the free CPUs of all nodes most equal
    wins; each chosen node gives the same base, and the rest is distributed in groups, one node
    after the other, over some of them. The kubelet tries every choice of nodes and of receivers.
    Here the best is found node by node instead: the squares of what stays free add up over the
    nodes, so a table over (nodes chosen, groups dealt) is enough, whose size is a power of the
    number of nodes and not exponential. Ties go to the choice that the kubelet tries first: the
    first nodes, then the most receivers, then the first receivers; they are part of the sum, below
    the squares.

    The sum of the free CPUs is the same for each choice, so the least sum of squares is the least
    standard deviation. The kubelet rounds that to three decimals; below 2,000 CPUs no two differ by
    less.

    `free`: per node, in the order of preference.
    `count`: a multiple of `group`."""
    base = count // nodes // group * group
    deal = (count - base * nodes) // group
    rooms = [(held - base) // group for held in free]
    able = [index for index, held in enumerate(free) if held >= base]
    if len(able) < nodes or sum(sorted(rooms[index] for index in able)[-nodes:]) < deal:
        return None
    return _Search(free, base, group, nodes, deal, rooms).best()


class _Search:
    """A cost is one int: the squares on top, then chosen nodes, number of receivers, and receivers,
    the earlier node in the higher bit; these three are subtracted, as more of them is better."""

    def __init__(
        self,
        free: Sequence[int],
        base: int,
        group: int,
        nodes: int,
        deal: int,
        rooms: Sequence[int],
    ) -> None:
        self._base = base
        self._group = group
        self._nodes = nodes
        self._deal = deal
        self._rooms = rooms
        self._size = len(free)
        self._chosen_at = self._size + self._size.bit_length()
        self._squares_at = self._chosen_at + self._size
        self._left = [held - base for held in free]
        self._plain = [
            (((held - base) ** 2 - held**2) << self._squares_at)
            - (self._bit(index) << self._chosen_at)
            for index, held in enumerate(free)
        ]

    def best(self) -> list[int]:
        if self._deal:
            rounds = range(min(self._deal, max(self._rooms)))
            costs = [self._dealt(full) for full in rounds]
            cost = min(cost for cost in costs if cost is not None)
        else:
            able = (cost for cost, room in zip(self._plain, self._rooms, strict=True) if room >= 0)
            cost = sum(sorted(able)[: self._nodes])
        return self._given(-cost)

    def _dealt(self, full: int) -> int | None:
        """The least cost if each receiver gives `full` groups, as far as it has room, and the first
        of them one more."""
        width = self._deal + 1
        goal = self._nodes * width + self._deal
        more: dict[int, int] = {0: 0}
        level: dict[int, int] = {}
        for index, room in enumerate(self._rooms):
            if room < 0:
                continue
            _merge(level, more.items(), 0, 0)
            must = (self._nodes - (self._size - index)) * width
            for states, groups in ((more, min(room, full + 1)), (level, min(room, full))):
                before = [
                    (at, cost) for at, cost in states.items() if must <= at < goal - self._deal
                ]
                _merge(states, before, width, self._plain[index])
                if room:
                    fitting = [each for each in before if each[0] % width + groups <= self._deal]
                    _merge(states, fitting, width + groups, self._received(index, groups))
        _merge(level, more.items(), 0, 0)
        return level.get(goal)

    def _received(self, index: int, groups: int) -> int:
        """The cost of a chosen node that gives this number of additional groups."""
        left = self._left[index]
        squares = (left - groups * self._group) ** 2 - left**2
        receiver = self._bit(index) + (1 << self._size)
        return self._plain[index] + (squares << self._squares_at) - receiver

    def _given(self, fields: int) -> list[int]:
        chosen = fields >> self._chosen_at
        given = [self._base if chosen & self._bit(index) else 0 for index in range(self._size)]
        receivers = [index for index in range(self._size) if fields & self._bit(index)]
        rooms = list(self._rooms)
        deal = self._deal
        while deal:
            for index in receivers:
                if deal and rooms[index]:
                    rooms[index] -= 1
                    given[index] += self._group
                    deal -= 1
        return given

    def _bit(self, index: int) -> int:
        return 1 << self._size - 1 - index


def _merge(
    states: dict[int, int], others: Iterable[tuple[int, int]], step: int, price: int
) -> None:
    for at, cost in others:
        known = states.get(at + step)
        if known is None or cost + price < known:
            states[at + step] = cost + price
