from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.view import terminal
from agent.view.terminal import BOLD, PLAIN, Ability, Piece, Style

ASCII = Ability(unicode=False, colours=0)
pieces = st.lists(
    st.builds(Piece, st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8))
)


@pytest.mark.parametrize(
    ("term", "no_colour", "colours"),
    [
        ("xterm-256color", "", 256),
        ("tmux-256color", "", 256),
        ("xterm", "", 16),
        ("linux", "", 16),
        ("xterm-256color", "1", 0),
        ("vt100", "", 0),
        ("dumb", "", 0),
    ],
)
def test_colours(term: str, no_colour: str, colours: int) -> None:
    assert terminal.ability(term, "utf-8", no_colour) == Ability(True, colours)


@pytest.mark.parametrize(
    ("encoding", "unicode"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("latin-1", False)]
)
def test_encodings(encoding: str, unicode: bool) -> None:
    assert terminal.ability("xterm", encoding, "").unicode is unicode


@given(st.text())
def test_each_clean_character_takes_one_column(text: str) -> None:
    """An emulator with wide and combining characters shows the column."""
    shown = terminal.clean(text)
    assert len(shown) == len(text)
    screen = pyte.Screen(max(len(shown), 1) + 1, 1)
    pyte.Stream(screen).feed(shown)
    assert screen.cursor.x == len(shown)


@given(pieces, st.integers(0, 20))
def test_cut_and_padded(line: list[Piece], columns: int) -> None:
    whole = "".join(each.text for each in line)
    kept = "".join(each.text for each in terminal.cut(line, columns))
    assert kept == whole[:columns]
    assert terminal.width(terminal.padded(line, columns)) == columns


def test_ellipsis() -> None:
    assert terminal.shortened("abcdef", 4, Ability()) == "abc…"
    assert terminal.shortened("abcdef", 4, ASCII) == "abc~"
    assert terminal.shortened("abcd", 4, ASCII) == "abcd"
    assert terminal.text(terminal.trimmed((Piece("abcdef"),), 4, Ability())) == "abc…"


def test_levels() -> None:
    loads = (None, 0.0, 0.029, 0.05, 0.5, 1.0)
    assert "".join(terminal.level(each, Ability()) for each in loads) == "?  ▁▄█"
    assert "".join(terminal.level(each, ASCII) for each in loads) == "?...59"


def test_bars_and_charts() -> None:
    assert terminal.bar(0.5, 4, Ability()) == "██  "
    assert terminal.bar(0.3, 4, Ability()) == "█▎  "
    assert terminal.bar(2.0, 4, ASCII) == "####"
    assert terminal.chart([None, 0.0, 0.25, 0.5, 1.0], 2, Ability()) == ["    █", " ▁▄██"]
    assert terminal.chart([None, 0.0, 0.5, 1.0], 2, ASCII) == ["   #", " _##"]
    assert terminal.chart([None, 0.0, 0.62, 1.0], 1, ASCII) == [" .69"]
    assert terminal.chart([None, 0.0, 0.62, 1.0], 1, Ability()) == [" ▁▅█"]


def test_a_line_ends_in_the_default_style() -> None:
    line = (Piece("a"), Piece("b", Style(114, 22, bold=True)), Piece("c"))
    assert terminal.encoded(line, 256) == "a\x1b[1;38;5;114;48;5;22mb\x1b[0mc"
    assert terminal.encoded(line, 16) == "a\x1b[1;32mb\x1b[0mc"
    assert terminal.encoded(line, 0) == "a\x1b[1mb\x1b[0mc"
    assert terminal.encoded((Piece("x", BOLD),), 0) == "\x1b[1mx\x1b[0m"


def test_only_rows_that_differ_are_written() -> None:
    before = [(Piece("a"),), (Piece("b"),), (Piece("full"),)]
    after = [(Piece("a"),), (Piece("c"),), (Piece("more"),)]
    old, new = (terminal.rows(frame, 4, 0) for frame in (before, after))
    assert terminal.changed(old, old) == ""
    assert terminal.changed(old, new) == "\x1b[2;1Hc\x1b[K\x1b[3;1Hmore"
    assert terminal.changed([], old).count("H") == 3


@given(st.lists(st.lists(pieces, min_size=4, max_size=4), min_size=1, max_size=4))
def test_an_emulator_shows_the_last_frame(frames: list[list[list[Piece]]]) -> None:
    """Also in the last column, and after any earlier frame."""
    screen = pyte.Screen(10, 4)
    stream = pyte.Stream(screen)
    shown: list[str] = []
    frame: list[terminal.Line] = []
    for lines in frames:
        frame = [terminal.cut(line, 10) for line in lines]
        rows = terminal.rows(frame, 10, 256)
        stream.feed(terminal.changed(shown, rows))
        shown = rows
    assert [line.rstrip() for line in screen.display] == [terminal.text(line) for line in frame]


@pytest.mark.parametrize(
    ("received", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pageup", "pagedown", "home", "end"]),
        (b"\r\t\x1b[Z\x7f", ["enter", "tab", "backtab", "backspace"]),
        ("ü/".encode(), ["ü", "/"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x1b[200~x\x1b[1;5C", ["x"]),
        (b"\x00\x01\x1fa", ["a"]),
        (b"\xff", ["�"]),
    ],
)
def test_keys(received: bytes, keys: list[str]) -> None:
    assert terminal.keys(received) == (keys, b"")


@pytest.mark.parametrize("rest", [b"\x1b", b"\x1b[", b"\x1b[1;", "ü".encode()[:1]])
def test_an_incomplete_key_is_kept(rest: bytes) -> None:
    assert terminal.keys(b"j" + rest) == (["j"], rest)


@given(st.binary(max_size=24), st.integers(0, 24))
def test_keys_that_arrive_in_parts_are_the_same(received: bytes, position: int) -> None:
    whole, whole_rest = terminal.keys(received)
    first, rest = terminal.keys(received[:position])
    second, second_rest = terminal.keys(rest + received[position:])
    if whole_rest == second_rest:
        assert first + second == whole


def test_a_plain_style_has_no_codes() -> None:
    assert terminal.encoded((Piece("a", PLAIN), Piece("b", PLAIN)), 256) == "ab"
