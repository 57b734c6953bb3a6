"""What a person looks at: the page, what is selected, sorted and filtered; keys change it."""

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
"""By list, what identifies its entries, in their order on the screen."""


class Looking(msgspec.Struct, frozen=True):
    """`focus`: the list that the arrows move in; `selected`: by list, the entry, which stays
    selected wherever it is sorted to. `opened`: list and entry, None if nothing is. `scroll`: the
    first line of what is opened. `typing`: keys go to the filter. `window_seconds`: of the pools
    over time."""

    page: str = "overview"
    focus: str = "pods"
    selected: Mapping[str, str] = {}
    opened: tuple[str, str] | None = None
    scroll: int = 0
    sort: str = SORTS[0]
    reversed: bool = False
    filter: str = ""
    typing: bool = False
    frozen: bool = False
    helps: bool = False
    window_seconds: float = WINDOWS_SECONDS[0]
    ended: bool = False

    def matches(self, *texts: str) -> bool:
        """Whether every word of the filter is in one of the texts."""
        return not self.filter or all(
            any(word in text.lower() for text in texts) for word in self.filter.lower().split()
        )


def pressed(key: str, looking: Looking, keys: Keys, rows: int) -> Looking:
    """After a key. `rows`: how far a page goes."""
    if key == "interrupt":
        return _with(looking, ended=True)
    if looking.typing:
        return _typed(key, looking)
    if looking.helps:
        return _with(looking, helps=False, ended=key == "q")
    if looking.opened is not None:
        return _in_opened(key, looking, rows)
    if key in _SIMPLE:
        return _SIMPLE_CHANGES[key](looking)
    if key in ("tab", "backtab"):
        return _next_list(looking, keys, -1 if key == "backtab" else 1)
    if key in _MOVES:
        return _moved(key, looking, keys, rows)
    if key == "enter":
        entries = keys.get(looking.focus, ())
        entry = selected(looking, looking.focus, entries)
        return _with(looking, opened=(looking.focus, entry), scroll=0) if entry else looking
    return looking


def selected(looking: Looking, name: str, entries: Sequence[str]) -> str:
    """The selected entry of a list: the first one if none is, or if it is gone; "" without one."""
    entry = looking.selected.get(name, "")
    return entry if entry in entries else entries[0] if entries else ""


def _with(looking: Looking, **values: object) -> Looking:
    return msgspec.structs.replace(looking, **values)


def _next(options: Sequence[str], value: str, step: int = 1) -> str:
    place = options.index(value) if value in options else -step
    return options[(place + step) % len(options)]


_Change = Callable[[Looking], Looking]


def _page(name: str) -> _Change:
    def change(looking: Looking) -> Looking:
        focus = name if name in LISTS else looking.focus
        return _with(looking, page=name, focus=focus)

    return change


def _longer(looking: Looking) -> Looking:
    place = WINDOWS_SECONDS.index(looking.window_seconds)
    seconds = WINDOWS_SECONDS[(place + 1) % len(WINDOWS_SECONDS)]
    return _with(looking, window_seconds=seconds)


_SIMPLE_CHANGES: Final[dict[str, _Change]] = {
    "q": lambda looking: _with(looking, ended=True),
    "?": lambda looking: _with(looking, helps=True),
    "h": lambda looking: _with(looking, helps=True),
    "/": lambda looking: _with(looking, typing=True),
    "s": lambda looking: _with(looking, sort=_next(SORTS, looking.sort)),
    "r": lambda looking: _with(looking, reversed=not looking.reversed),
    "f": lambda looking: _with(looking, frozen=not looking.frozen),
    " ": lambda looking: _with(looking, frozen=not looking.frozen),
    "t": _longer,
    "escape": lambda looking: (
        _with(looking, filter="") if looking.filter else _with(looking, page=PAGES[0])
    ),
    **{str(number + 1): _page(name) for number, name in enumerate(PAGES)},
}
_SIMPLE: Final = frozenset(_SIMPLE_CHANGES)
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1} | dict.fromkeys(
    ("pageup", "pagedown", "home", "end", "g", "G"), 0
)


def _typed(key: str, looking: Looking) -> Looking:
    if key == "enter":
        return _with(looking, typing=False)
    if key == "escape":
        return _with(looking, typing=False, filter="")
    if key == "backspace":
        return _with(looking, filter=looking.filter[:-1])
    if key == "clear":
        return _with(looking, filter="")
    return _with(looking, filter=looking.filter + key) if len(key) == 1 else looking


def _in_opened(key: str, looking: Looking, rows: int) -> Looking:
    if key in ("escape", "enter", "left", "backspace", "q"):
        return _with(looking, opened=None, scroll=0)
    if key in ("f", " "):
        return _with(looking, frozen=not looking.frozen)
    if key in ("?", "h"):
        return _with(looking, helps=True)
    if key in _MOVES:
        step = _MOVES[key] or {"pageup": -rows, "pagedown": rows}.get(key, 0)
        scroll = looking.scroll + step
        if key in ("home", "g"):
            scroll = 0
        if key in ("end", "G"):
            scroll = END
        return _with(looking, scroll=min(max(scroll, 0), END))
    return looking


END: Final = 1_000_000
"""A scroll to the last line."""


def _next_list(looking: Looking, keys: Keys, step: int) -> Looking:
    """To the next list that has entries."""
    if looking.page in LISTS:
        name = _next(LISTS, looking.page, step)
        return _with(looking, page=name, focus=name)
    name = looking.focus
    for _ in LISTS:
        name = _next(LISTS, name, step)
        if keys.get(name):
            break
    return _with(looking, focus=name)


def _moved(key: str, looking: Looking, keys: Keys, rows: int) -> Looking:
    entries = keys.get(looking.focus, ())
    if not entries:
        return looking
    place = entries.index(selected(looking, looking.focus, entries))
    step = _MOVES[key] or {"pageup": -rows, "pagedown": rows}.get(key, 0)
    if key in ("home", "g"):
        place, step = 0, 0
    if key in ("end", "G"):
        place, step = len(entries) - 1, 0
    entry = entries[min(max(place + step, 0), len(entries) - 1)]
    return _with(looking, selected={**looking.selected, looking.focus: entry})
