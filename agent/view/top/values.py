"""The state of a node at one moment, as the screen shows it, and the sizes of its pools over time;
and the state of the screen itself (page, selection, sorting, filter), which keys change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.model import audit
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.qos import POOLS
from agent.usage.past import PastHour
from agent.view.format import printable_json
from agent.view.history import PoolSize, Recent, local
from agent.view.live import SCHEMA_VERSION, UNKNOWN, Attention, LiveNode, drift

PAGES: Final = ("overview", "cpus", "pods", "devices", "changes")
LISTS: Final = ("pods", "devices", "changes")
SORTS: Final = ("class", "used", "cpus", "memory", "name")
"""The orders of pods; used, cpus and memory show the largest first."""
SORTS_OF_USAGE: Final = (*SORTS, "waits")
"""The orders where load and pressure are sampled; waits show the largest first."""
WINDOWS_SECONDS: Final = (300.0, 3_600.0, 86_400.0)

Keys = Mapping[str, Sequence[str]]
"""By list, the keys of its entries, in their order on the screen."""


class ScreenState(msgspec.Struct, frozen=True):
    """What the user has chosen on the screen."""

    page: str = "overview"
    focus: str = "pods"
    """The list in which arrow keys select."""
    selected: Mapping[str, str] = {}
    """The key of the selected entry of each list."""
    opened: tuple[str, str] | None = None
    """The list and the key of the entry whose details are shown, None if there is none."""
    scroll: int = 0
    """The first shown line of the details."""
    sorts: tuple[str, ...] = SORTS
    sort: str = SORTS[0]
    reversed: bool = False
    filter: str = ""
    typing: bool = False
    """Keys go to the filter."""
    frozen: bool = False
    helps: bool = False
    """The help is shown."""
    window_seconds: float = WINDOWS_SECONDS[0]
    """The length of the charts of pools."""
    ended: bool = False

    def matches(self, *texts: str) -> bool:
        """Whether every word of the filter is in one of the texts."""
        return not self.filter or all(
            any(word in text.lower() for text in texts) for word in self.filter.lower().split()
        )


def pressed(key: str, state: ScreenState, keys: Keys, rows: int) -> ScreenState:
    """The state after a key.

    `keys`: the keys of the entries of each list.
    `rows`: how many entries PageUp and PageDown move."""
    if key == "interrupt":
        return _with(state, ended=True)
    if state.typing:
        return _typed(key, state)
    if state.helps:
        return _with(state, helps=False, ended=key == "q")
    if state.opened is not None:
        return _in_opened(key, state, rows)
    if key in _SIMPLE:
        return _SIMPLE_CHANGES[key](state)
    if key in ("tab", "backtab"):
        return _next_list(state, keys, -1 if key == "backtab" else 1)
    if key in _MOVES:
        return _moved(key, state, keys, rows)
    if key == "enter":
        entries = keys.get(state.focus, ())
        entry = selected(state, state.focus, entries)
        return _with(state, opened=(state.focus, entry), scroll=0) if entry else state
    return state


def selected(state: ScreenState, name: str, entries: Sequence[str]) -> str:
    """The key of the selected entry of a list, or of its first entry if none is selected or the
    selected one was removed; "" for an empty list."""
    entry = state.selected.get(name, "")
    return entry if entry in entries else entries[0] if entries else ""


def _with(state: ScreenState, **values: object) -> ScreenState:
    return msgspec.structs.replace(state, **values)


def _next(options: Sequence[str], value: str, step: int = 1) -> str:
    place = options.index(value) if value in options else -step
    return options[(place + step) % len(options)]


_Change = Callable[[ScreenState], ScreenState]


def _page(name: str) -> _Change:
    def change(state: ScreenState) -> ScreenState:
        focus = name if name in LISTS else state.focus
        return _with(state, page=name, focus=focus)

    return change


def _longer(state: ScreenState) -> ScreenState:
    place = WINDOWS_SECONDS.index(state.window_seconds)
    seconds = WINDOWS_SECONDS[(place + 1) % len(WINDOWS_SECONDS)]
    return _with(state, window_seconds=seconds)


_SIMPLE_CHANGES: Final[dict[str, _Change]] = {
    "q": lambda state: _with(state, ended=True),
    "?": lambda state: _with(state, helps=True),
    "h": lambda state: _with(state, helps=True),
    "/": lambda state: _with(state, typing=True),
    "s": lambda state: _with(state, sort=_next(state.sorts, state.sort)),
    "r": lambda state: _with(state, reversed=not state.reversed),
    "f": lambda state: _with(state, frozen=not state.frozen),
    " ": lambda state: _with(state, frozen=not state.frozen),
    "t": _longer,
    "escape": lambda state: (
        _with(state, filter="") if state.filter else _with(state, page=PAGES[0])
    ),
    **{str(number + 1): _page(name) for number, name in enumerate(PAGES)},
}
_SIMPLE: Final = frozenset(_SIMPLE_CHANGES)
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1} | dict.fromkeys(
    ("pageup", "pagedown", "home", "end", "g", "G"), 0
)


def _typed(key: str, state: ScreenState) -> ScreenState:
    if key == "enter":
        return _with(state, typing=False)
    if key == "escape":
        return _with(state, typing=False, filter="")
    if key == "backspace":
        return _with(state, filter=state.filter[:-1])
    if key == "clear":
        return _with(state, filter="")
    return _with(state, filter=state.filter + key) if len(key) == 1 else state


def _in_opened(key: str, state: ScreenState, rows: int) -> ScreenState:
    if key in ("escape", "enter", "left", "backspace", "q"):
        return _with(state, opened=None, scroll=0)
    if key in ("f", " "):
        return _with(state, frozen=not state.frozen)
    if key in ("?", "h"):
        return _with(state, helps=True)
    if key in _MOVES:
        step = _MOVES[key] or {"pageup": -rows, "pagedown": rows}.get(key, 0)
        scroll = state.scroll + step
        if key in ("home", "g"):
            scroll = 0
        if key in ("end", "G"):
            scroll = END
        return _with(state, scroll=min(max(scroll, 0), END))
    return state


END: Final = 1_000_000
"""A value of `scroll` that shows the last line."""


def _next_list(state: ScreenState, keys: Keys, step: int) -> ScreenState:
    if state.page in LISTS:
        name = _next(LISTS, state.page, step)
        return _with(state, page=name, focus=name)
    name = state.focus
    for _ in LISTS:
        name = _next(LISTS, name, step)
        if keys.get(name):
            break
    return _with(state, focus=name)


def _moved(key: str, state: ScreenState, keys: Keys, rows: int) -> ScreenState:
    entries = keys.get(state.focus, ())
    if not entries:
        return state
    place = entries.index(selected(state, state.focus, entries))
    step = _MOVES[key] or {"pageup": -rows, "pagedown": rows}.get(key, 0)
    if key in ("home", "g"):
        place, step = 0, 0
    if key in ("end", "G"):
        place, step = len(entries) - 1, 0
    entry = entries[min(max(place + step, 0), len(entries) - 1)]
    return _with(state, selected={**state.selected, state.focus: entry})


POOL_KINDS: Final = tuple(kind.title for kind in POOLS.values() if not kind.dedicated)
KINDS: Final = ("own", *POOL_KINDS)
"""The kinds of CPUs: first the CPUs that pods own, then those of each pool that is not
dedicated."""

_DRIFT_SECONDS: Final = 3_600.0


class Usage(msgspec.Struct, frozen=True):
    """The use of a pod's cgroup: CPUs, as the mean since the previous reading, and memory. None:
    unknown."""

    cpus: float | None = None
    memory_bytes: int | None = None


class Sample(msgspec.Struct, frozen=True):
    """The number of CPUs of each kind at a time (seconds since 1970), and their load from 0 to
    1."""

    time: float
    counts: Mapping[str, int]
    loads: Mapping[str, float | None]


class NodeObservation(msgspec.Struct, frozen=True):
    """What is known of the node at one moment."""

    time: float
    """Seconds since 1970."""
    node: LiveNode
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""
    decided_seconds: float | None = None
    """The age of the agent's decision, None if there is none."""
    loads: bytes = b""
    """One byte for each CPU of `node`: its load in percent, or UNKNOWN."""
    usage: Mapping[str, Usage] = {}
    """By the uid of a pod."""
    recent: Recent = Recent({}, (), ())
    """The changes of the last day."""
    samples: tuple[Sample, ...] = ()
    """By time, since the command began."""
    hour: PastHour | None = None
    """The load and pressure of the last hour; None if the agent does not sample them."""

    @property
    def attention(self) -> tuple[Attention, ...]:
        """The node's problems, and the drift of the last hour."""
        begin = audit.stamp(self.time - _DRIFT_SECONDS)
        return (*self.node.attention, *drift(self.recent, begin))

    @property
    def load_by_cpu(self) -> dict[int, float | None]:
        """By CPU, from 0 to 1; None: unknown."""
        return {
            cpu.id: None if percent == UNKNOWN else percent / 100
            for cpu, percent in zip(self.node.cpus, self.loads, strict=False)
        }


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    schema_version: int
    time: str
    problems: tuple[str, ...]
    node: LiveNode
    loads: Mapping[int, float | None]
    """By CPU, from 0 to 1; None: unknown."""
    usage: Mapping[str, Usage]
    """By the uid of a pod."""
    hour: PastHour | None = None


def as_json(observed: NodeObservation) -> str:
    """The node, its loads, the use of pods, and load and pressure of the last hour, as JSON."""
    document = _Document(
        SCHEMA_VERSION,
        audit.stamp(observed.time),
        observed.problems,
        msgspec.structs.replace(observed.node, attention=observed.attention),
        observed.load_by_cpu,
        observed.usage,
        observed.hour,
    )
    return printable_json(msgspec.json.format(msgspec.json.encode(document)).decode())


class Group(msgspec.Struct, frozen=True):
    """A cgroup of a pod."""

    of: str
    """The name of its container, "" for the pod's own cgroup."""
    path: str
    files: Mapping[str, str]
    """The content of its files by name."""


class Opened(msgspec.Struct, frozen=True):
    """What is read of a pod when its details are opened: only labels and annotations that decisions
    use."""

    uid: str
    problem: str = ""
    """What could not be read, "" if all was."""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    containers: tuple[tuple[str, str], ...] = ()
    """Name and state of each."""
    groups: tuple[Group, ...] = ()


def cpus_by_kind(node: LiveNode) -> dict[str, CpuSet]:
    by_kind = {"own": union(CpuSet.parse(pod.own) for pod in node.pods)}
    for kind in POOL_KINDS:
        by_kind[kind] = union(CpuSet.parse(each.cpus) for each in node.pools if each.kind == kind)
    return by_kind


def mean_load(cpus: Iterable[int], loads: Mapping[int, float | None]) -> float | None:
    """The mean load of the CPUs whose load is known."""
    measured = [load for cpu in cpus if (load := loads.get(cpu)) is not None]
    return sum(measured) / len(measured) if measured else None


def sample(observed: NodeObservation) -> Sample:
    loads = observed.load_by_cpu
    by_kind = cpus_by_kind(observed.node)
    return Sample(
        observed.time,
        {kind: len(cpus) for kind, cpus in by_kind.items()},
        {kind: mean_load(cpus, loads) for kind, cpus in by_kind.items()},
    )


Points = list[tuple[float, float | None]]
"""Values from a time on (seconds since 1970), by time."""


def pool_sizes(observed: NodeObservation, kind: str) -> Points:
    """The number of CPUs of a kind over time: from the audit trail, then from the samples."""
    points = _of_trail([each for each in observed.recent.pools if each.kind == kind])
    for each in observed.samples:
        if not points or points[-1][1] != each.counts[kind]:
            points.append((each.time, each.counts[kind]))
    return points


def _of_trail(changes: Sequence[PoolSize]) -> Points:
    counts: dict[int, int] = {}
    points: Points = []
    for each in changes:
        counts[each.node] = each.cpus
        points.append((local(each.time).timestamp(), sum(counts.values())))
    return points


def over_time(points: Points, end: float, seconds: float, columns: int) -> list[float | None]:
    """One value for each column of a chart of the last `seconds` before `end`: the last value that
    began before the column's end, None before the first value."""
    values: list[float | None] = []
    place = 0
    value: float | None = None
    for column in range(columns):
        until = end - seconds * (columns - 1 - column) / columns
        while place < len(points) and points[place][0] <= until:
            value = points[place][1]
            place += 1
        values.append(value)
    return values
