"""The lists of pods, devices and changes: their entries after filter and sorting, and their
lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from agent.model.cpu.cpuset import CpuSet
from agent.view import past, terminal
from agent.view.devices import GPU, ShownDevice
from agent.view.format import count, size
from agent.view.history import RecentChange, local
from agent.view.live import LivePod
from agent.view.terminal import (
    ALARM,
    BOLD,
    CHOSEN,
    FAINT,
    GOOD,
    PLAIN,
    Ability,
    Frame,
    Line,
    Piece,
    Style,
)
from agent.view.top.cells import Marks
from agent.view.top.values import Keys, NodeObservation, ScreenState, Usage, selected

_Entry = TypeVar("_Entry")
_TRACK: Final = 236
"""The background colour of bars."""
_WIDE_BAR: Final = 16
_AMOUNTS_COLUMNS: Final = len("12.5 GiB of 12.5 GiB")
_UNKNOWN: Final = Usage()
_WAITS_COLUMNS: Final = len("memory 100%")
_SHOWN_WAIT: Final = 0.2
"""A pod that waits for this part of the time, or to which its quota refuses this part of a CPU, has
the colour of an alarm."""
_NAME_SHARE, _CPUS_SHARE = 0.4, 0.18
"""The largest parts of a line that the names and the CPUs of pods take."""


def pods(observed: NodeObservation, state: ScreenState) -> list[LivePod]:
    """The pods that match the filter, in the selected order."""
    matching = [
        pod
        for pod in observed.node.pods
        if state.matches(pod.title, pod.qos, pod.state, pod.reason, pod.refused, pod.waits)
    ]
    if key := _ORDERS.get(state.sort):
        matching.sort(key=lambda pod: key(pod, observed), reverse=True)
    elif state.sort == "name":
        matching.sort(key=lambda pod: pod.title)
    return matching[::-1] if state.reversed else matching


def _usage(pod: LivePod, observed: NodeObservation) -> Usage:
    return observed.usage.get(pod.uid, _UNKNOWN)


def _largest(amount: float | None) -> float:
    """The key that sorts unknown amounts behind all others."""
    return -1.0 if amount is None else amount


_ORDERS: Final[dict[str, Callable[[LivePod, NodeObservation], float]]] = {
    "used": lambda pod, observed: _largest(_usage(pod, observed).cpus),
    "cpus": lambda pod, _: len(CpuSet.parse(pod.own)) or len(CpuSet.parse(pod.cpus)) / 1e6,
    "memory": lambda pod, observed: _largest(_usage(pod, observed).memory_bytes),
    "waits": lambda pod, observed: _largest(
        wait.amount if (wait := past.most_waited(past.of_pod(observed.hour, pod.uid))) else None
    ),
}


def devices(observed: NodeObservation, state: ScreenState) -> list[ShownDevice]:
    """The devices that match the filter, GPUs first."""
    matching = [
        each
        for each in observed.node.devices
        if state.matches(each.title, each.name, each.address, each.state, *each.holders)
    ]
    return sorted(matching, key=lambda each: each.kind != GPU)


def changes(observed: NodeObservation, state: ScreenState) -> list[RecentChange]:
    """The changes that match the filter, the newest first."""
    return [
        each for each in observed.recent.changes if state.matches(each.pod, each.kind, each.text)
    ]


def change_key(change: RecentChange) -> str:
    return f"{change.time} {change.uid} {change.text}"


def keys(observed: NodeObservation, state: ScreenState) -> Keys:
    """By list, the keys of its entries in their order."""
    return {
        "pods": [each.uid for each in pods(observed, state)],
        "devices": [each.address for each in devices(observed, state)],
        "changes": list(dict.fromkeys(map(change_key, changes(observed, state)))),
    }


def pod_of(entry: tuple[str, str] | None, observed: NodeObservation) -> str:
    """The uid of the pod of an opened entry, "" if it has none."""
    name, key = entry or ("", "")
    if name == "pods":
        return key
    if name == "changes":
        return next((each.uid for each in observed.recent.changes if change_key(each) == key), "")
    return ""


class ListArea:
    """The area of a list on the screen."""

    def __init__(self, columns: int, rows: int, ability: Ability, state: ScreenState) -> None:
        self.columns = columns
        self.rows = rows
        self.ability = ability
        self.state = state

    def lines(
        self,
        name: str,
        head: Line,
        entries: Sequence[_Entry],
        key: Callable[[_Entry], str],
        draw: Callable[[_Entry], Line],
    ) -> Frame:
        """The heading, and the entries around the selected one that fit. `key` and `draw` give the
        key and the line of an entry."""
        if self.rows <= 0:
            return []
        keys_of = list(map(key, entries))
        chosen = selected(self.state, name, keys_of)
        place = keys_of.index(chosen) if chosen else 0
        room = self.rows - 1
        start = min(max(place - room // 2, 0), max(len(entries) - room, 0))
        frame: Frame = [terminal.cut(head, self.columns)]
        for number in range(start, min(start + room, len(entries))):
            in_focus = number == place and self.state.focus == name
            line: Line = (Piece(">" if in_focus else " "), *draw(entries[number]))
            line = terminal.trimmed(line, self.columns, self.ability)
            if in_focus:
                line = terminal.padded(terminal.restyled(line, CHOSEN), self.columns, CHOSEN)
            frame.append(line)
        return frame

    def short(self, text: str, columns: int) -> str:
        """The text shortened or padded to exactly this width."""
        return terminal.shortened(terminal.clean(text), columns, self.ability).ljust(columns)


def pod_lines(observed: NodeObservation, marked: Marks, area: ListArea) -> Frame:
    """A line for each pod: letter, name, class, CPUs, use and reason."""
    entries = pods(observed, area.state)
    longest = max((len(each.title) for each in entries), default=0)
    name = max(min(longest, int(area.columns * _NAME_SHARE)), 3)
    longest = max((len(each.cpus) for each in entries), default=0)
    cpus = max(min(longest, int(area.columns * _CPUS_SHARE)), 4)
    with_memory = area.columns >= 72
    with_waits = observed.hour is not None and area.columns >= 60
    chart = 0 if not with_waits or area.columns < 72 else 10 if area.columns < 110 else 20

    def of_hour(pod: LivePod) -> Line:
        load = past.of_pod(observed.hour, pod.uid)
        # The chart of an owner is full while all of its CPUs are busy.
        owned = float(len(CpuSet.parse(pod.own))) or None
        wait = past.most_waited(load)
        waits = "-" if wait is None else str(wait)
        style = PLAIN if wait is None or wait.amount < _SHOWN_WAIT else ALARM
        of_cpus = past.line_chart(load.cpus, chart, area.ability, owned)
        return (
            Piece(f"{of_cpus:>{chart}} " if chart else "", GOOD),
            Piece(f"{waits:<{_WAITS_COLUMNS}} ", style),
        )

    def draw(pod: LivePod) -> Line:
        usage = _usage(pod, observed)
        mark = marked.by_pod[pod.uid]
        memory = size(usage.memory_bytes) if usage.memory_bytes is not None else "-"
        wrong = pod.refused or pod.waits
        words = f"own: {pod.reason}" if pod.own else pod.state
        if wrong:
            words = f"claim refused: {pod.refused}" if pod.refused else f"waits: {pod.waits}"
        return (
            Piece(mark.letter, mark.style if area.ability.colours >= 256 else BOLD),
            Piece(f" {area.short(pod.title, name)} {pod.qos:<6} "),
            Piece(area.short(pod.cpus or "-", cpus)),
            Piece(f" {_cpus(usage.cpus):>6} {_filled(pod, usage, area.ability)} ", GOOD),
            Piece(f"{memory:>9} " if with_memory else ""),
            *(of_hour(pod) if with_waits else ()),
            Piece(terminal.clean(words), ALARM if wrong else FAINT),
        )

    head = f"   {'POD':{name}} {'QOS':6} {'CPUS':{cpus}} {'USED':>6}   "
    head += f"{'MEMORY':>9} " if with_memory else ""
    head += f"{'LAST HOUR':{chart}} " if chart else ""
    head += f"{'WAITS':{_WAITS_COLUMNS}} WHY" if with_waits else "WHY"
    return area.lines("pods", (Piece(head, BOLD),), entries, lambda pod: pod.uid, draw)


def _cpus(used: float | None) -> str:
    return "-" if used is None else f"{used:.2f}"


def _filled(pod: LivePod, usage: Usage, ability: Ability) -> str:
    """The load of the pod's CPUs by the pod itself, as one character."""
    number = len(CpuSet.parse(pod.cpus))
    if usage.cpus is None or not number:
        return " "
    return terminal.level(min(usage.cpus / number, 1.0), ability)


def device_lines(observed: NodeObservation, area: ListArea) -> Frame:
    """A line for each device: name, NUMA node, pods and state, and of GPUs use and memory."""
    entries = devices(observed, area.state)
    bars = 8 if area.columns < 120 else _WIDE_BAR
    of_gpus = 2 * bars + 8 + (_AMOUNTS_COLUMNS if bars >= _WIDE_BAR else 0)
    with_bars = any(each.kind == GPU and each.memory_bytes for each in entries)

    def draw(device: ShownDevice) -> Line:
        wrong = device.healthy is False
        node = f"N{device.node}" if device.node >= 0 else "N?"
        pieces = [
            Piece(f"{device.title:<11} {node:<3} "),
            Piece(area.short(device.name, 20 if area.columns < 120 else 28) + " "),
        ]
        if device.kind == GPU and device.memory_bytes:
            pieces += _gpu_pieces(device, bars, area.ability)
        elif with_bars and area.columns >= 100:
            pieces.append(Piece(" " * of_gpus))
        pods_of = [*device.holders, *(pod for part in device.parts for pod in part.holders)]
        words = [terminal.clean(each) for each in (", ".join(pods_of), device.state) if each]
        health = ["unhealthy"] if wrong else []
        pieces.append(Piece("  ".join([*health, *words]), ALARM if wrong else PLAIN))
        return tuple(pieces)

    head = f" {'DEVICE':11} {'AT':3} {'NAME':{20 if area.columns < 120 else 28}} "
    if with_bars:
        head += f"{'USE':{bars + 5}} {'MEMORY':{of_gpus - bars - 7}}"
    line = (Piece(f"{head} PODS, STATE", BOLD),)
    return area.lines("devices", line, entries, lambda each: each.address, draw)


def _gpu_pieces(device: ShownDevice, columns: int, ability: Ability) -> list[Piece]:
    busy = device.utilization_percent
    used = (device.memory_used_bytes or 0) / (device.memory_bytes or 1)
    amounts = f"{size(device.memory_used_bytes or 0)} of {size(device.memory_bytes or 0)}"
    use = terminal.bar((busy or 0) / 100, columns, ability)
    return [
        Piece(use, Style(GOOD.front, _TRACK)),
        Piece(f"{'   - ' if busy is None else f'{busy:3d}% '} "),
        Piece(terminal.bar(used, columns, ability), Style(FAINT.front, _TRACK)),
        Piece(f" {amounts:<{_AMOUNTS_COLUMNS}} " if columns >= _WIDE_BAR else "  "),
    ]


def change_lines(observed: NodeObservation, area: ListArea) -> Frame:
    """A line for each change: time, pod and what happened."""
    entries = changes(observed, area.state)
    longest = max((len(each.pod) for each in entries), default=0)
    name = max(min(longest, int(area.columns * 0.3)), 3)
    room = area.columns - len(f" HH:MM:SS {'':{name}} ")

    def draw(change: RecentChange) -> Line:
        style = {"refusal": ALARM, "drift": ALARM, "move": PLAIN}.get(change.kind, FAINT)
        return (
            Piece(f"{local(change.time):%H:%M:%S} ", FAINT),
            Piece(area.short(change.pod, name) + " "),
            Piece(_with_reason(terminal.clean(change.text), room, area.ability), style),
        )

    head = (Piece(f" {'TIME':8} {'POD':{name}} WHAT HAPPENED, AND WHY", BOLD),)
    return area.lines("changes", head, entries, change_key, draw)


_LEAST_OF_CHANGE: Final = 16
_BEFORE: Final = re.compile(r" \(before: [^)]*\)")


def _with_reason(text: str, columns: int, ability: Ability) -> str:
    """The sentence, shortened so that the reason stays: first its former value goes, then its first
    part is cut."""
    if len(text) <= columns:
        return text
    text = _BEFORE.sub("", text)
    change, colon, reason = text.partition(": ")
    room = columns - len(colon) - len(reason)
    if not colon or room < _LEAST_OF_CHANGE:
        return text
    return terminal.shortened(change, room, ability) + colon + reason


def titles(observed: NodeObservation, state: ScreenState) -> dict[str, str]:
    """The heading of each list."""
    shown = len(pods(observed, state))
    of = f"{shown} of " if state.filter else ""
    order = f"{'reverse ' if state.reversed else ''}by {state.sort}"
    return {
        "pods": f"{of}{count(len(observed.node.pods), 'pod')}, {order}",
        "devices": count(len(devices(observed, state)), "device"),
        "changes": f"{count(len(changes(observed, state)), 'change')}, newest first",
    }
