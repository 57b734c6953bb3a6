"""The details of an opened pod, device or change, and the help."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from agent.view import terminal
from agent.view.devices import ShownDevice
from agent.view.format import size
from agent.view.history import local
from agent.view.live import LivePod
from agent.view.terminal import ALARM, BOLD, FAINT, Frame, Line, Piece
from agent.view.top.lists import change_key
from agent.view.top.values import NodeObservation, Opened, Usage

_NARROWEST = 20

KEYS = (
    ("1 2 3 4 5", "show the overview, CPUs, pods, devices or changes"),
    ("Tab", "go to the next list"),
    ("Up Down j k", "select an entry; PageUp, PageDown, Home and End go further"),
    ("Enter", "open the pod or device: decision, cgroups, annotations, what happened"),
    ("Esc", "go back, or end the filter"),
    ("/", "filter the lists: lines that contain every word"),
    ("s", "sort pods by class, use, CPUs, memory or name; r reverses the order"),
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
    entry: tuple[str, str], observed: NodeObservation, opened: Opened | None, columns: int
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
    return f"Pod {title}", list(_pod(uid, title, pod, observed, opened, columns))


def _pod(
    uid: str,
    title: str,
    pod: LivePod | None,
    observed: NodeObservation,
    opened: Opened | None,
    columns: int,
) -> Iterator[Line]:
    read = opened if opened is not None and opened.uid == uid else None
    yield (Piece("Decision", BOLD),)
    if pod is None:
        yield from _fact("", "The pod is gone.", columns)
    else:
        yield from _decision(pod, observed, columns)
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
