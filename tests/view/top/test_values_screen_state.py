from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.view.top.values import LISTS, PAGES, ScreenState, pressed, selected

KEYS = {"pods": ["a", "b", "c"], "devices": [], "changes": ["x", "y"]}
KNOWN = (
    *("q", "?", "h", "/", "s", "r", "f", " ", "t", "escape", "1", "2", "3", "4", "5", "g", "G"),
    *("tab", "backtab", "enter", "up", "down", "j", "k", "pageup", "pagedown", "home", "end"),
    *("backspace", "clear", "delete", "left", "right", "x", "ü", "interrupt"),
)


def after(*keys: str, state: ScreenState | None = None, entries: object = None) -> ScreenState:
    found = state or ScreenState()
    for key in keys:
        found = pressed(key, found, KEYS, 2)
    return found


@given(st.lists(st.sampled_from(KNOWN), max_size=30))
def test_any_keys_lead_to_an_existing_page_and_list(keys: list[str]) -> None:
    state = after(*keys)
    assert state.page in PAGES
    assert state.focus in LISTS
    assert state.scroll >= 0


def test_end() -> None:
    assert after("q").ended
    assert after("/", "q").filter == "q"
    assert after("/", "interrupt").ended
    assert not after("enter", "q").ended


def test_the_selection_moves_and_stays_on_its_entry() -> None:
    assert selected(after("down"), "pods", KEYS["pods"]) == "b"
    assert selected(after("down", "down", "down", "down"), "pods", KEYS["pods"]) == "c"
    assert selected(after("G", "k"), "pods", KEYS["pods"]) == "b"
    assert selected(after("pagedown", "home"), "pods", KEYS["pods"]) == "a"
    moved = after("down")
    assert selected(moved, "pods", ["c", "b", "a"]) == "b"
    assert selected(moved, "pods", ["c", "a"]) == "c"
    assert selected(moved, "pods", []) == ""


def test_lists_without_entries_are_left_out() -> None:
    assert after("tab").focus == "changes"
    assert after("tab", "tab").focus == "pods"
    assert after("backtab").focus == "changes"


def test_filter() -> None:
    state = after("/", "w", "e", "x", "backspace", "enter")
    assert (state.filter, state.typing) == ("we", False)
    assert state.matches("Default/WEB", "LS")
    assert not state.matches("db")
    assert after("escape", state=state).filter == ""
    assert after("/", "a", "escape").filter == ""
    assert after("/", "a", "clear", "b").filter == "b"


def test_every_word_of_the_filter_must_match() -> None:
    state = ScreenState(filter="web LSE")
    assert state.matches("default/web", "LSE")
    assert not state.matches("default/web", "LS")


def test_open_and_back() -> None:
    state = after("down", "enter")
    assert state.opened == ("pods", "b")
    assert after("down", "pagedown", state=state).scroll == 3
    assert after("up", state=state).scroll == 0
    assert after("escape", state=state).opened is None
    assert after("4", "enter").opened is None


@pytest.mark.parametrize(("key", "page"), list(zip("12345", PAGES, strict=True)))
def test_pages(key: str, page: str) -> None:
    assert after(key).page == page
    assert after(key, "escape").page == "overview"


def test_a_page_of_a_list_has_its_focus() -> None:
    assert after("5").focus == "changes"
    assert after("5", "tab").page == "pods"


def test_sort_freeze_time_and_help() -> None:
    assert after("s").sort == "used"
    assert after("s", "s", "s", "s", "s").sort == "class"
    assert after("r").reversed
    assert after("f").frozen
    assert not after("f", " ").frozen
    assert after("t").window_seconds == 3_600
    assert after("t", "t", "t").window_seconds == 300
    assert after("?").helps
    assert not after("?", "x").helps
