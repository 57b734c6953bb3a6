"""The state of the screen (page, selection, sorting, filter), and how keys change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

PAGES: Final = ("overview", "cpus", "pods", "devices", "changes")
LISTS: Final = ("pods", "devices", "changes")
SORTS: Final = ("class", "used", "cpus", "memory", "name")
"""The orders of pods; all but the first and the last show the largest first."""
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
    "s": lambda state: _with(state, sort=_next(SORTS, state.sort)),
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
