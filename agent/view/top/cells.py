"""A cell for each CPU, with the colour and letter of its owner, and filled by its load.

There are five levels of cells: number, letter and load of a CPU; letter and load; load alone; one
cell for a core; one for a cache. The first level that fits the area is drawn. The CPUs of a NUMA
node are a block; blocks stand beside each other if that needs fewer lines."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.view import terminal
from agent.view.format import count
from agent.view.live import LiveCpu, LiveNode
from agent.view.terminal import FAINT, Ability, Frame, Piece, Style
from agent.view.top.values import POOL_KINDS, NodeObservation, cpus_by_kind, mean_load

_OWNERS: Final = (
    *((215, 94), (114, 22), (213, 90), (220, 58), (80, 23), (210, 88)),
    *((155, 64), (147, 60), (180, 101), (122, 29)),
)
"""The colours of text and background of owners, numbers of the palette of 256 colours."""
_NOBODY: Final = "."
_POOLS: Final = {
    ("LS", "BE"): ("=", Style(75, 24)),
    ("LS",): ("-", Style(111, 25)),
    ("BE",): ("~", Style(250, 240)),
    (): (_NOBODY, Style(244, 235)),
}
"""The letters and colours of CPUs that no pod owns, by the pools that have them."""
_OTHER_POOLS: Final = ("+", Style(117, 60))
_BRIGHT: Final = Style(231, 27, bold=True)
"""The style of the CPUs of the selected pod."""


class Mark(msgspec.Struct, frozen=True):
    """The letter and colour of an owner or a pool."""

    letter: str
    name: str
    style: Style


_SEVERAL: Final = Mark("*", "several owners", Style(250, 237))


class Marks(msgspec.Struct, frozen=True):
    """The marks that show who has which CPUs."""

    by_cpu: Mapping[int, Mark]
    """The mark of each online CPU."""
    by_pod: Mapping[str, Mark]
    """The mark of each pod, by uid: its own if it owns CPUs, otherwise that of its pool."""

    def legend(self) -> list[Mark]:
        """The marks of all CPUs, the pools first."""
        by_title = {each.letter + each.name: each for each in self.by_cpu.values()}
        return sorted(by_title.values(), key=lambda each: each.letter in string.ascii_letters)


def marks(node: LiveNode) -> Marks:
    """The marks of a node. Owners get letters in the order of their lowest CPUs, so that neighbours
    differ."""
    by_kind = cpus_by_kind(node)
    by_cpu: dict[int, Mark] = {}
    for cpu in node.cpus:
        by_cpu[cpu.id] = _of_pools(tuple(kind for kind in POOL_KINDS if cpu.id in by_kind[kind]))
    owners = [(own, each) for each in node.pods if (own := CpuSet.parse(each.own))]
    by_pod: dict[str, Mark] = {}
    for place, (own, pod) in enumerate(sorted(owners, key=lambda each: next(iter(each[0])))):
        letter = string.ascii_letters[place % len(string.ascii_letters)]
        mark = Mark(letter, pod.title, Style(*_OWNERS[place % len(_OWNERS)]))
        by_pod[pod.uid] = mark
        by_cpu |= {cpu: mark for cpu in own if cpu in by_cpu}
    by_cpus: dict[str, set[Mark]] = {}
    for pod in node.pods:
        if pod.uid not in by_pod:
            shared = by_cpus.get(pod.cpus)
            if shared is None:
                cpus = CpuSet.parse(pod.cpus)
                shared = by_cpus[pod.cpus] = {by_cpu[cpu] for cpu in cpus if cpu in by_cpu}
            only = next(iter(shared)) if len(shared) == 1 else None
            by_pod[pod.uid] = only or _of_pools(("BE",) if pod.qos == "BE" else POOL_KINDS)
    return Marks(by_cpu, by_pod)


@lru_cache
def _of_pools(kinds: tuple[str, ...]) -> Mark:
    """The mark of CPUs that belong to these pools; it is always the same object."""
    letter, style = _POOLS.get(kinds, _OTHER_POOLS)
    return Mark(letter, f"{' and '.join(kinds) or 'no'} pool", style)


class _Cell(msgspec.Struct, frozen=True):
    """A CPU, or several as one, whose load is the highest one."""

    cpu: int
    mark: Mark
    load: float | None
    chosen: bool


class _Block(msgspec.Struct, frozen=True):
    """A NUMA node, or its part in a socket. In all blocks `title` has the same width, and so has
    `short`."""

    title: str
    short: str
    caches: tuple[tuple[tuple[int, ...], ...], ...]
    """The CPUs by L3 cache and core."""

    @property
    def cpus(self) -> list[int]:
        return [cpu for cores in self.caches for core in cores for cpu in core]

    def label(self, load: float | None, level: int, roomy: bool) -> str:
        if level >= _PLAIN and not roomy:
            return f"{self.short} "
        percent = "  ?%" if load is None else f"{load:4.0%}"
        return f"{self.title} {percent} "


_NUMBERED, _MARKED, _PLAIN, _CORES, _CACHES = range(5)
"""The levels of cells, from the widest to the narrowest."""
_COLUMNS: Final = (1, 2, 3, 4, 6, 8)
_GAP: Final = 2
_ROOMY: Final = 100
"""From this number of columns on, lines of narrow cells also have the load in percent."""


class _Placing(NamedTuple):
    """How the blocks are arranged on the screen."""

    level: int
    """The level of detail of the cells."""
    across: int
    """How many blocks are beside each other."""
    height: int
    """The number of lines."""


class _Unit(NamedTuple):
    """Cells between which no line is broken: a core, or a whole cache where the level shows caches
    only."""

    columns: int
    """Its width."""
    before: int
    """The width of the separator before it."""
    cache: int
    """The width of a whole cache, at the first unit of each cache but the first; 0 for other
    units."""


class _Layout:
    """The positions of the cells of a machine. They depend on neither loads nor owners."""

    def __init__(self, cpus: Sequence[LiveCpu], ability: Ability) -> None:
        self.blocks = _blocks(cpus)
        self.digits = len(str(cpus[-1].id)) if cpus else 1
        self._line = "│" if ability.unicode else "|"
        self._colours = ability.colours
        self._units: dict[int, list[list[_Unit]]] = {}
        self._placings: dict[int, list[_Placing]] = {}

    def placing(self, columns: int, rows: int) -> _Placing:
        """The level with the widest cells that fit, or, if none fits, with the fewest lines."""
        tried = self._placings.get(columns)
        if tried is None:
            levels = range(_NUMBERED, _CACHES + 1)
            tried = self._placings[columns] = [self._tried(each, columns) for each in levels]
        fitting = next((each for each in tried if each.height <= rows), None)
        return fitting or min(tried, key=lambda each: each.height)

    def inside(self, level: int) -> str:
        """The separator between the CPUs of a core: a blank if no colour separates their
        numbers."""
        return " " if level == _NUMBERED and self._colours < 256 else ""

    def between(self, level: int, first: bool) -> str:
        """The separator before a core; `first` is set for the first core of each cache but the
        first."""
        if level >= _PLAIN:
            return " " if first else ""
        wide = " " * (1 + len(self.inside(level)))
        return f"{wide}{self._line}{wide}" if first else wide

    def begins(self, place: int, level: int, room: int) -> list[bool]:
        """For each unit of the block at `place`, whether it begins a line of `room` columns. A
        cache that fits into a line is not broken; a unit that is longer than a line is cut."""
        answers = []
        used = 0
        for unit in self._units_of(level)[place]:
            whole = unit.cache if unit.columns < unit.cache <= room else unit.columns
            begins = used == 0 or used + unit.before + whole > room
            used = unit.columns if begins else used + unit.before + unit.columns
            answers.append(begins)
        return answers

    def _tried(self, level: int, columns: int) -> _Placing:
        """The placing at this level with as many blocks across as need the fewest lines."""
        roomy = columns >= _ROOMY
        label = max((len(block.label(None, level, roomy)) for block in self.blocks), default=0)
        widest = max((unit.columns for units in self._units_of(level) for unit in units), default=0)
        options = []
        for across in _COLUMNS:
            room = _share(columns, across) - label
            if across > 1 and (across > len(self.blocks) or room < widest):
                continue
            heights = [sum(self.begins(place, level, room)) for place in range(len(self.blocks))]
            rows = range(0, len(heights), across)
            options.append((sum(max(heights[row : row + across]) for row in rows), across))
        height, across = min(options)
        return _Placing(level, across, height)

    def _units_of(self, level: int) -> list[list[_Unit]]:
        units = self._units.get(level)
        if units is None:
            units = self._units[level] = [
                list(self._units_in(block, level)) for block in self.blocks
            ]
        return units

    def _units_in(self, block: _Block, level: int) -> Iterator[_Unit]:
        if level == _CACHES:
            yield from (_Unit(1, 0, 0) for _ in block.caches)
            return
        cell = {_NUMBERED: self.digits + 2, _MARKED: 2}.get(level, 1)
        inside = len(self.inside(level))
        narrow, wide = (len(self.between(level, first)) for first in (False, True))
        for place, cores in enumerate(block.caches):
            counts = [1 if level == _CORES else len(core) for core in cores]
            columns = [number * cell + (number - 1) * inside for number in counts]
            whole = sum(columns) + narrow * (len(columns) - 1)
            for number, each in enumerate(columns):
                first = number == 0 and place > 0
                yield _Unit(each, wide if first else narrow, whole if first else 0)


@lru_cache(maxsize=2)
def _layout(cpus: tuple[LiveCpu, ...], ability: Ability) -> _Layout:
    """The layout is cached: the screen is drawn each second, and a machine seldom changes."""
    return _Layout(cpus, ability)


class LoadCells:
    """The cells of one moment, for any size."""

    def __init__(self, observed: NodeObservation, marked: Marks, ability: Ability) -> None:
        self._loads = observed.load_by_cpu
        self._marked = marked
        self._ability = ability
        self._layout = _layout(observed.node.cpus, ability)

    def height(self, columns: int, rows: int) -> int:
        """The number of lines for the widest cells that fit, at most `rows`."""
        return min(self._layout.placing(columns, rows).height, rows)

    def draw(self, chosen: CpuSet, columns: int, rows: int) -> Frame:
        """The cells in at most `rows` lines of at most `columns`, with the CPUs of the selected pod
        (`chosen`) marked."""
        level, across, height = self._layout.placing(columns, rows)
        share = _share(columns, across)
        roomy = columns >= _ROOMY
        drawn = [
            self._block(place, level, share, roomy, chosen)
            for place in range(len(self._layout.blocks))
        ]
        lines: Frame = []
        for start in range(0, len(drawn), across):
            lines += _side_by_side(drawn[start : start + across], share)
        if height <= rows:
            return lines
        note = f"{count(height - rows + 1, 'more line')}: make the window larger"
        kept = lines[: max(rows - 1, 0)]
        return [*kept, (Piece(note[:columns], FAINT),)] if rows > 0 else []

    def _block(self, place: int, level: int, share: int, roomy: bool, chosen: CpuSet) -> Frame:
        block = self._layout.blocks[place]
        label = block.label(mean_load(block.cpus, self._loads), level, roomy)
        begins = self._layout.begins(place, level, share - len(label))
        lines: list[list[Piece]] = []
        units = self._units(block, level, chosen)
        for begins_line, (unit, separator) in zip(begins, units, strict=True):
            if begins_line:
                lines.append([])
            elif separator:
                lines[-1].append(Piece(separator, FAINT))
            lines[-1] += unit
        heads = [label, *[" " * len(label)] * (len(lines) - 1)]
        return [
            terminal.cut((Piece(head, FAINT), *line), share)
            for head, line in zip(heads, lines, strict=True)
        ]

    def _units(
        self, block: _Block, level: int, chosen: CpuSet
    ) -> Iterator[tuple[list[Piece], str]]:
        """The cells of each unit, and the separator before it."""
        inside = self._layout.inside(level)
        for place, cores in enumerate(block.caches):
            if level == _CACHES:
                members = tuple(cpu for core in cores for cpu in core)
                yield [self._drawn(self._merged(members, chosen), level)], ""
                continue
            for number, core in enumerate(cores):
                groups = [core] if level == _CORES else [(cpu,) for cpu in core]
                pieces = [self._drawn(self._merged(each, chosen), level) for each in groups]
                if inside:
                    pieces = [piece for each in pieces for piece in (each, Piece(inside))][:-1]
                yield pieces, self._layout.between(level, number == 0 and place > 0)

    def _merged(self, cpus: Sequence[int], chosen: CpuSet) -> _Cell:
        first = self._marked.by_cpu[cpus[0]]
        if len(cpus) == 1:
            return _Cell(cpus[0], first, self._loads.get(cpus[0]), cpus[0] in chosen)
        same = all(self._marked.by_cpu[cpu] is first for cpu in cpus)
        loads = [load for cpu in cpus if (load := self._loads.get(cpu)) is not None]
        is_chosen = any(cpu in chosen for cpu in cpus)
        return _Cell(cpus[0], first if same else _SEVERAL, max(loads, default=None), is_chosen)

    def _drawn(self, cell: _Cell, level: int) -> Piece:
        load = terminal.level(cell.load, self._ability)
        style = _BRIGHT if cell.chosen else cell.mark.style
        if self._ability.colours < 256:
            # Without a background an idle cell must not vanish.
            load = load if load.strip() else "·"
            front = cell.mark.style.front if cell.mark.letter != _NOBODY else None
            style = Style(front, bold=cell.chosen, reverse=cell.chosen)
        if level == _NUMBERED:
            return Piece(f"{cell.cpu:>{self._layout.digits}}{cell.mark.letter}{load}", style)
        if level == _MARKED:
            return Piece(cell.mark.letter + load, style)
        # In one column, the colour shows the owner; without colours the letter does, without load.
        return Piece(load if self._ability.colours else cell.mark.letter, style)


def _share(columns: int, across: int) -> int:
    return max((columns - _GAP * (across - 1)) // across, 1)


def _blocks(cpus: Iterable[LiveCpu]) -> list[_Block]:
    places: dict[tuple[int, int], dict[int, dict[int, list[int]]]] = {}
    for cpu in cpus:
        caches = places.setdefault((cpu.socket, cpu.node), {})
        cores = caches.setdefault(-1 if cpu.l3 is None else cpu.l3, {})
        cores.setdefault(cpu.core, []).append(cpu.id)
    sockets = len({socket for socket, _ in places})
    private = all(len(cores) == 1 for caches in places.values() for cores in caches.values())
    blocks = []
    for (socket, numa_node), by_cache in sorted(places.items()):
        parts = [tuple(tuple(each) for each in cores.values()) for cores in by_cache.values()]
        if private:  # Caches that each belong to one core do not group cores.
            parts = [tuple(core for part in parts for core in part)]
        title = f"S{socket} N{numa_node}" if sockets > 1 else f"N{numa_node}"
        shared = sum(node == numa_node for _, node in places) > 1
        short = f"S{socket}" if shared else f"N{numa_node}"
        blocks.append(_Block(title, short, tuple(parts)))
    title_width = max((len(each.title) for each in blocks), default=0)
    short_width = max((len(each.short) for each in blocks), default=0)
    return [
        msgspec.structs.replace(
            each, title=each.title.ljust(title_width), short=each.short.ljust(short_width)
        )
        for each in blocks
    ]


def _side_by_side(blocks: Sequence[Frame], share: int) -> Frame:
    gap = Piece(" " * _GAP)
    lines: Frame = []
    for row in range(max(map(len, blocks))):
        pieces: list[Piece] = []
        for place, block in enumerate(blocks):
            line = block[row] if row < len(block) else ()
            last = place == len(blocks) - 1
            pieces += line if last else (*terminal.padded(line, share), gap)
        lines.append(tuple(pieces))
    return lines
