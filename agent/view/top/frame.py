"""The whole screen: a line about the node, its problems, the panes of the page, and a line with the
keys. A frame always has the size of the screen."""

from __future__ import annotations

import datetime
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.view import past, terminal
from agent.view.devices import ShownDevice
from agent.view.format import count, size
from agent.view.history import local
from agent.view.live import LivePod
from agent.view.terminal import ALARM, BOLD, CHOSEN, FAINT, GOOD, PLAIN, Ability, Frame, Line, Piece
from agent.view.top import cells, lists
from agent.view.top.cells import LoadCells, Marks
from agent.view.top.lists import ListArea, change_key
from agent.view.top.values import (
    KINDS,
    POOL_KINDS,
    NodeObservation,
    Opened,
    Points,
    ScreenState,
    Usage,
    mean_load,
    over_time,
    pool_sizes,
    selected,
)

_NARROWEST = 20

KEYS = (
    ("1 2 3 4 5", "show the overview, CPUs, pods, devices or changes"),
    ("Tab", "go to the next list"),
    ("Up Down j k", "select an entry; PageUp, PageDown, Home and End go further"),
    ("Enter", "open the pod or device: decision, cgroups, annotations, what happened"),
    ("Esc", "go back, or end the filter"),
    ("/", "filter the lists: lines that contain every word"),
    ("s", "sort pods by class, use, CPUs, memory or name, with usage also by waits; r reverses"),
    ("f or space", "freeze the screen, or continue"),
    ("t", "show the pools over 5 minutes, an hour or a day"),
    ("q", "end"),
)


def help_lines(columns: int) -> Frame:
    """The keys, and how to read the cells."""
    lines: Frame = [(Piece("Keys", BOLD),)]
    for key, meaning in KEYS:
        lines += _fact(key, meaning, columns)
    lines += [(), (Piece("Cells", BOLD),)]
    text = (
        "Each CPU has a cell. The threads of a core are next to each other, L3 caches are "
        "separated, and each socket (S) and NUMA node (N) has its own lines. A pod that owns CPUs "
        "has a colour and a letter; = is the LS and BE pool, - the LS pool, ~ the BE pool, and . "
        "no pool. The height of the block is the load; without Unicode a digit shows its tenths. "
        "The CPUs of the selected pod are bright. If the CPUs do not fit, a cell is a core or a "
        "cache and shows its highest load; * means several owners."
    )
    lines += [(Piece(line),) for line in textwrap.wrap(text, max(columns - 1, _NARROWEST))]
    return lines


def lines_of(
    entry: tuple[str, str],
    observed: NodeObservation,
    opened: Opened | None,
    columns: int,
    ability: Ability,
) -> tuple[str, Frame]:
    """The title and the lines of an entry.

    `entry`: the list, and the key in it.
    `opened`: what was read of the opened pod, None until it is read."""
    name, key = entry
    if name == "devices":
        for device in observed.node.devices:
            if device.address == key:
                return f"{device.title} {device.address}", list(_device(device, columns))
        return key, [(Piece("The device is gone."),)]
    uid = key
    title = key
    if name == "changes":
        change = next(
            (change for change in observed.recent.changes if change_key(change) == key), None
        )
        if change is None:
            return "", [(Piece("The change is older than a day."),)]
        if not change.uid and not change.pod:
            return "Change", list(_fact(f"{local(change.time):%H:%M:%S}", change.text, columns))
        uid, title = change.uid, change.pod
    pod = next((pod for pod in observed.node.pods if pod.uid == uid), None)
    title = pod.title if pod else title
    return f"Pod {title}", list(_pod(uid, title, pod, observed, opened, columns, ability))


def _pod(
    uid: str,
    title: str,
    pod: LivePod | None,
    observed: NodeObservation,
    opened: Opened | None,
    columns: int,
    ability: Ability,
) -> Iterator[Line]:
    read = opened if opened is not None and opened.uid == uid else None
    yield (Piece("Decision", BOLD),)
    if pod is None:
        yield from _fact("", "The pod is gone.", columns)
    else:
        yield from _decision(pod, observed, columns)
    if disturbed := observed.hour.disturbed.get(uid) if observed.hour else None:
        yield ()
        yield (Piece("Who disturbs it", BOLD),)
        for sentence in disturbed:
            yield from _fact("", sentence, columns, alarm=True)
    of_hour = list(past.rows(past.of_pod(observed.hour, uid), columns - _MARGINS, ability))
    if of_hour:
        yield ()
        yield (Piece("Load and pressure of the last hour", BOLD),)
        for quantity, numbers, chart in of_hour:
            yield Piece(f"  {quantity} ", FAINT), Piece(f"{numbers} "), Piece(chart, GOOD)
        yield ()
    if read is None:
        yield from _fact("", "Reading from the runtime...", columns)
    else:
        if read.problem:
            yield from _fact("", read.problem, columns, alarm=True)
        for name, state in read.containers:
            yield from _fact("container", f"{name} ({state})", columns)
        for group in read.groups:
            yield ()
            yield (Piece(f"Cgroup of {group.of or 'the pod'}", BOLD),)
            yield from _fact("", group.path, columns)
            yield from _facts(group.files, columns)
    yield ()
    yield (Piece("What happened, newest first", BOLD),)
    is_empty = True
    for change in observed.recent.changes:
        if change.uid == uid if change.uid else change.pod == title:
            is_empty = False
            stamp = f"{local(change.time):%H:%M:%S}"
            yield from _fact(stamp, change.text, columns, alarm=change.kind in ("refusal", "drift"))
    if is_empty:
        yield from _fact("", "There was no change in the last day.", columns)
    if read is not None:
        # Other annotations and labels may contain secrets.
        used = ("Annotations", read.annotations), ("Labels", read.labels)
        for name, values in used:
            heading = f"{name} that decisions use"
            yield ()
            yield (Piece(heading, BOLD),)
            yield from _facts(values, columns)


def _decision(pod: LivePod, observed: NodeObservation, columns: int) -> Iterator[Line]:
    usage = observed.usage.get(pod.uid, Usage())
    since = observed.recent.since.get(pod.uid)
    facts = {
        "class": pod.qos,
        "CPUs": pod.cpus or "none of its own",
        "state": f"{pod.state}: {pod.reason}",
        "owns": pod.own,
        "offline": pod.offline,
        "NUMA nodes": pod.nodes,
        "since": f"{local(since):%Y-%m-%d %H:%M:%S%z}" if since else "",
        "uses": f"{usage.cpus:.2f} CPUs" if usage.cpus is not None else "",
        "memory": size(usage.memory_bytes) if usage.memory_bytes is not None else "",
        "devices": ", ".join(_devices_of(pod.title, observed.node.devices)),
        "uid": pod.uid,
    }
    yield from _facts({name: text for name, text in facts.items() if text}, columns)
    for each in pod.containers:
        yield from _fact("container", f"{each.name}: CPUs {each.cpus}, {each.state}", columns)
    if pod.refused:
        yield from _fact("refused", pod.refused, columns, alarm=True)
    if pod.waits:
        yield from _fact("waits", pod.waits, columns, alarm=True)


def _devices_of(title: str, devices: Iterable[ShownDevice]) -> Iterator[str]:
    for each in devices:
        if title in each.holders:
            yield f"{each.title} {each.address}"
        for part in each.parts:
            if title in part.holders:
                yield f"mig {part.uuid} of {each.title}"


def _device(device: ShownDevice, columns: int) -> Iterator[Line]:
    memory = size(device.memory_bytes) if device.memory_bytes else ""
    used = f"{size(device.memory_used_bytes)} of " if device.memory_used_bytes else ""
    health = {None: "unknown", True: "healthy", False: "unhealthy"}[device.healthy]
    facts = {
        "name": device.name,
        "NUMA node": str(device.node) if device.node >= 0 else "unknown",
        "root bus": device.root,
        "switches": " > ".join(device.bridges[1::2]),
        "driver": device.driver,
        "id": device.id,
        "memory": used + memory if memory else "",
        "use": f"{device.utilization_percent} %" if device.utilization_percent is not None else "",
        "health": health,
        "state": device.state,
        "pods": ", ".join(device.holders) or "none",
    }
    yield from _facts({name: text for name, text in facts.items() if text}, columns)
    for link in device.links:
        yield from _fact("link", link, columns)
    for part in device.parts:
        text = f"{part.uuid} {', '.join(part.holders)}"
        yield from _fact("mig", text, columns)


def _facts(facts: Mapping[str, str], columns: int) -> Iterator[Line]:
    if not facts:
        yield from _fact("", "none", columns)
    for name, text in facts.items():
        yield from _fact(name, text, columns)


_NAME = 16
_MARGINS = 3
_LONG_NAME = 40


def _fact(name: str, text: str, columns: int, *, alarm: bool = False) -> Iterator[Line]:
    """A name and its text, which is on the same line, or below a long name."""
    name = terminal.clean(name)
    on_one_line = len(name) <= _NAME
    indent = 2 + _NAME + 1 if on_one_line and columns >= _LONG_NAME else 4
    if not on_one_line or columns < _LONG_NAME:
        yield (Piece(f"  {name}", FAINT),)
        name = ""
    wrapped: list[str] = []
    for paragraph in _readable(text).split("\n"):
        wrapped += textwrap.wrap(
            terminal.clean(paragraph),
            max(columns - indent - 1, _NARROWEST),
            drop_whitespace=False,
            break_on_hyphens=False,
        ) or [""]
    for number, line in enumerate(wrapped):
        head = f"  {name}" if number == 0 else ""
        yield (Piece(head.ljust(indent), FAINT), Piece(line, ALARM) if alarm else Piece(line))


def _readable(text: str) -> str:
    """The text; if it is JSON, with a line for each of its values."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(json.loads(text), indent=1)
    except (ValueError, RecursionError):
        return text


NARROWEST, LOWEST = 40, 10
"""A smaller screen shows only that it is too small."""
_SIDE_BY_SIDE: Final = 150
"""From this number of columns on, machine and lists are beside each other."""
_WINDOWS: Final = {300.0: "5 minutes", 3_600.0: "hour", 86_400.0: "day"}
_Draw = Callable[[int, int], Frame]


class _Pane(msgspec.Struct, frozen=True):
    """A titled part of the page. Its numbers of lines do not count the title."""

    title: str
    draw: _Draw
    least: int
    """The number of lines below which the pane is left out."""
    wanted: Callable[[int, int], int]
    """Returns how many lines it can fill at a width and a height."""
    weight: int = 0
    """Its share of the lines that are left over, among the panes with a weight; panes with weight 0
    together get at most 60 % of the screen."""
    legend: Line = ()
    last: bool = False
    """The pane gets more than `least` only after all other panes have what they want."""


def frame(
    observed: NodeObservation,
    opened: Opened | None,
    state: ScreenState,
    columns: int,
    rows: int,
    ability: Ability,
) -> Frame:
    """The screen: exactly `rows` lines, each at most `columns` wide.

    `opened`: what was read of the opened pod, None until it is read."""
    if columns < NARROWEST or rows < LOWEST:
        note = f"too small: {columns}x{rows}, needs {NARROWEST}x{LOWEST}"
        return _sized([(Piece(note),)], columns, rows)
    above = [
        _head(observed, state, columns, ability),
        *_attention(observed, columns, rows, ability),
    ]
    body = _Body(observed, opened, state, ability).lines(columns, rows - len(above) - 1)
    return [*_sized([*above, *body], columns, rows - 1), _foot(state, columns)]


def _sized(lines: Sequence[Line], columns: int, rows: int) -> Frame:
    sized = [terminal.cut(line, columns) for line in lines[:rows]]
    return sized + [()] * (rows - len(sized))


def _head(observed: NodeObservation, state: ScreenState, columns: int, ability: Ability) -> Line:
    node = observed.node
    now = datetime.datetime.fromtimestamp(observed.time).astimezone()
    used = mean_load([cpu.id for cpu in node.cpus], observed.load_by_cpu)
    age = observed.decided_seconds
    left: list[Piece] = [Piece("topolet top", BOLD), Piece(f"  {terminal.clean(node.node)}")]
    sockets = len({cpu.socket for cpu in node.cpus})
    nodes = len({cpu.node for cpu in node.cpus})
    counts = f"  {count(len(node.cpus), 'CPU')}"
    counts += f", {count(sockets, 'socket')}, {count(nodes, 'NUMA node')}" if columns >= 100 else ""
    left.append(Piece(counts, FAINT))
    if used is not None:
        left += [Piece(f"  {used:4.0%} "), Piece(terminal.bar(used, 10, ability), GOOD)]
    wait = past.most_waited(observed.hour.machine) if observed.hour else None
    if wait is not None and columns >= 100:
        left.append(Piece(f"  waits {wait}", FAINT))
    if age is not None and columns >= (130 if wait is not None else 110):
        left.append(Piece(f"  decided {_age(age)} ago", FAINT))
    right = [Piece(" FROZEN ", CHOSEN), Piece(" ")] if state.frozen else []
    right.append(Piece(f"{now:%H:%M:%S %z}"))
    room = columns - terminal.width(right) - 1
    return (*terminal.padded(left, room), Piece(" "), *right)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"


def _attention(observed: NodeObservation, columns: int, rows: int, ability: Ability) -> Frame:
    """The problems of the node, with the number of lines that do not fit."""
    texts = list(observed.problems)
    texts += [
        " ".join(
            filter(None, (f"{attention.kind}:", attention.pod or attention.device, attention.text))
        )
        for attention in observed.attention
    ]
    room = 1 if rows < 20 else 2 if rows < 40 else 4
    shown = texts[: room if len(texts) <= room else room - 1 or 1]
    more = len(texts) - len(shown)
    lines = [terminal.shortened(terminal.clean(f"! {text}"), columns, ability) for text in shown]
    if more and len(lines) < room:
        lines.append(f"! {more} more")
    elif more:
        lines[-1] = terminal.shortened(lines[-1], columns - 12, ability) + f" +{more} more"
    return [(Piece(line, ALARM),) for line in lines]


def _foot(state: ScreenState, columns: int) -> Line:
    if state.typing:
        return terminal.cut((Piece("/", BOLD), Piece(state.filter), Piece(" ", CHOSEN)), columns)
    keys = "q end  ? help  Tab list  Enter open  / filter  s sort  f freeze  t time  1-5 pages"
    if state.opened is not None or state.helps:
        keys = "Esc back  Up Down scroll  f freeze  ? help"
    pieces = [Piece(f"filter {state.filter}", BOLD), Piece("  ")] if state.filter else []
    return terminal.cut((*pieces, Piece(keys, FAINT)), columns)


class _Body:
    """The lines between the first and the last one."""

    def __init__(
        self, observed: NodeObservation, opened: Opened | None, state: ScreenState, ability: Ability
    ) -> None:
        self.observed = observed
        self.opened = opened
        self.state = state
        self.ability = ability
        self.marked = cells.marks(observed.node)
        self.keys = lists.keys(observed, state)
        self.cells = LoadCells(observed, self.marked, ability)

    def lines(self, columns: int, rows: int) -> Frame:
        if self.state.helps:
            return self._scrolled("Help", help_lines(columns), 0, columns, rows)
        if self.state.opened is not None:
            title, lines = lines_of(
                self.state.opened, self.observed, self.opened, columns, self.ability
            )
            return self._scrolled(title, lines, self.state.scroll, columns, rows)
        if self.state.page == "cpus":
            return self._stacked([self._pane("cpus", weight=1), self._pane("pools")], columns, rows)
        if self.state.page != "overview":
            return self._stacked([self._pane(self.state.page, weight=1)], columns, rows)
        machine = [self._pane("cpus"), self._pane("pools")]
        devices = [self._pane("devices")] if self.observed.node.devices else []
        pods, changes = self._pane("pods", weight=3), self._pane("changes", weight=2)
        if columns < _SIDE_BY_SIDE:
            return self._stacked([*machine, pods, *devices, changes], columns, rows)
        machine += devices
        listed = [pods, changes]
        left = columns // 2 - 1
        right = columns - left - 3
        gap = Piece(" │ " if self.ability.unicode else " | ", FAINT)
        rows_of_both = zip(
            self._stacked(machine, left, rows), self._stacked(listed, right, rows), strict=True
        )
        return [(*terminal.padded(one, left), gap, *other) for one, other in rows_of_both]

    def _pane(self, name: str, weight: int = 0) -> _Pane:
        observed, state, ability, marked = self.observed, self.state, self.ability, self.marked
        if name == "cpus":
            legend = _legend(marked, ability)
            return _Pane("CPUs", self._cells, 2, self.cells.height, weight, legend)
        if name == "pools":
            of_hour = ": load of the last hour, size" if observed.hour else ""
            title = f"Pools{of_hour} over the last {_WINDOWS[state.window_seconds]}"
            return _Pane(title, self._pools, len(KINDS), _wanted_of_pools, weight, last=True)

        def area(columns: int, rows: int) -> ListArea:
            return ListArea(columns, rows, ability, state)

        draw: dict[str, _Draw] = {
            "pods": lambda columns, rows: lists.pod_lines(observed, marked, area(columns, rows)),
            "devices": lambda columns, rows: lists.device_lines(observed, area(columns, rows)),
            "changes": lambda columns, rows: lists.change_lines(observed, area(columns, rows)),
        }
        entries = len(self.keys[name])
        title = lists.titles(observed, state)[name]
        return _Pane(
            title[:1].upper() + title[1:],
            draw[name],
            2 if name == "devices" else 3,
            lambda columns, rows: entries + 1,
            weight,
        )

    def _stacked(self, panes: Sequence[_Pane], columns: int, rows: int) -> Frame:
        lines: Frame = []
        for pane, height in zip(panes, self._heights(panes, columns, rows), strict=True):
            if height > 1:
                lines.append(_rule(pane.title, pane.legend, columns, self.ability))
                lines += pane.draw(columns, height - 1)[: height - 1]
        return _sized(lines, columns, rows)

    def _heights(self, panes: Sequence[_Pane], columns: int, rows: int) -> list[int]:
        """The height of each pane with its title; 0 if it is left out.

        Each pane first gets its least lines. Then panes without a weight get what they want, up to
        60 % of the screen, and panes with a weight share the rest. What is left over goes to
        the panes that still want more, and finally to the last one."""
        heights = [0] * len(panes)
        left = rows
        for place, pane in enumerate(panes):
            height = 1 + min(pane.least, pane.wanted(columns, pane.least))
            if left >= height:
                heights[place] = height
                left -= height
        shown = [place for place, height in enumerate(heights) if height]

        def grow(place: int, most: int) -> None:
            nonlocal left
            room = heights[place] - 1 + min(most, left)
            more = max(min(panes[place].wanted(columns, room), room) + 1 - heights[place], 0)
            heights[place] += more
            left -= more

        fixed = [place for place in shown if not panes[place].weight]
        listed = [place for place in shown if panes[place].weight]
        for place in (each for each in fixed if not panes[each].last):
            grow(place, rows * 6 // 10 - sum(heights[each] for each in fixed))
        free, weights = left, sum(panes[place].weight for place in listed)
        for place in listed:
            grow(place, free * panes[place].weight // weights)
        by_want = sorted(fixed, key=lambda place: panes[place].wanted(columns, rows))
        for place in (*listed, *by_want):
            grow(place, left)
        if shown:
            heights[shown[-1]] += left
        return heights

    def _cells(self, columns: int, rows: int) -> Frame:
        observed = self.observed
        chosen = CpuSet()
        if "pods" in self.state.selected:  # Nothing is bright before a pod is selected.
            uid = selected(self.state, "pods", self.keys["pods"])
            pod = next((each for each in observed.node.pods if each.uid == uid), None)
            chosen = CpuSet.parse(pod.cpus) if pod else chosen
        return self.cells.draw(chosen, columns, rows)

    def _pools(self, columns: int, rows: int) -> Frame:
        """For each kind of CPUs their number, their load, and a chart of their number over time."""
        observed, state = self.observed, self.state
        height = max(min(rows // len(KINDS), 3), 1)
        online = max(len(observed.node.cpus), 1)
        samples = observed.samples[-1:]
        lines: Frame = []
        for kind, name, style in _SHOWN_KINDS:
            size = samples[0].counts[kind] if samples else 0
            load = samples[0].loads[kind] if samples else None
            percent = "   -" if load is None else f"{load:4.0%}"
            head = f" {name:<8} {count(size, 'CPU'):>8} {percent} "
            of_hour = ""
            if observed.hour and columns >= _WITH_HOUR:
                values_of_hour = past.of_pools(observed.hour, kind)
                of_hour = past.line_chart(values_of_hour, _HOUR_COLUMNS, self.ability, 1.0)
                of_hour = f"{of_hour:>{_HOUR_COLUMNS}}  "
            points: Points = [
                (time, None if value is None else value / online)
                for time, value in pool_sizes(observed, kind)
            ]
            room = max(columns - len(head) - len(of_hour), 1)
            values = over_time(points, observed.time, state.window_seconds, room)
            for row, text in enumerate(terminal.chart(values, height, self.ability)):
                is_lowest = row == height - 1
                labels = Piece(head), Piece(of_hour, GOOD)
                blanks = Piece(" " * (len(head) + len(of_hour)))
                lines.append((*(labels if is_lowest else (blanks,)), Piece(text, style)))
        return lines

    def _scrolled(self, title: str, lines: Frame, scroll: int, columns: int, rows: int) -> Frame:
        room = rows - 1
        start = max(min(scroll, len(lines) - room), 0)
        more = len(lines) - start - room
        legend = (Piece(f"{count(more, 'more line')} "),) if more > 0 else ()
        shown = [_rule(terminal.clean(title), legend, columns, self.ability)]
        return _sized([*shown, *lines[start : start + room]], columns, rows)


_HOUR_COLUMNS: Final = 20
_WITH_HOUR: Final = 72
"""From this number of columns on, the load of pools in the last hour is shown."""
_POOL_COLOURS: Final = (75, 250, 117)
_SHOWN_KINDS: Final = (
    ("own", "owned", terminal.Style(215)),
    *(
        (kind, f"{kind} pool", terminal.Style(colour))
        for kind, colour in zip(POOL_KINDS, cycle(_POOL_COLOURS), strict=False)
    ),
)


def _wanted_of_pools(columns: int, rows: int) -> int:
    """The charts of all kinds have the same height."""
    return min(rows // len(KINDS), 3) * len(KINDS)


def _legend(marked: Marks, ability: Ability) -> Line:
    pieces: list[Piece] = []
    for mark in marked.legend():
        style = mark.style if ability.colours >= 256 else PLAIN
        pieces += [Piece(mark.letter, style), Piece(f" {terminal.clean(mark.name)}  ", FAINT)]
    return tuple(pieces)


def _rule(title: str, legend: Line, columns: int, ability: Ability) -> Line:
    dash = "─" if ability.unicode else "-"
    left = (Piece(f"{dash} ", FAINT), Piece(f"{title} ", BOLD), *([Piece(" ")] if legend else []))
    line = terminal.cut((*left, *legend), columns)
    rest = columns - terminal.width(line)
    return (*line, Piece(dash * rest, FAINT)) if rest > 0 else line
