from __future__ import annotations

import io

import msgspec
import pytest

from agent.view import format
from agent.view.format import count, encodable, printable, printable_json, size, table


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2 << 20, "2 MiB"),
        (8_257_945_600, "7.7 GiB"),
        (134_894_530_560, "126 GiB"),
        (1 << 40, "1 TiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_size(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_count() -> None:
    assert [count(number, "core") for number in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]


MARKS = (
    *("\x1b[31m", "\r", "\n", "\x9b31m", "\x7f"),
    *("\u202e", "\u2066", "\u061c", "\u2028", "\u200b", "\U000e0001"),
)


@pytest.mark.parametrize("mark", MARKS)
def test_no_character_in_json_acts_on_the_terminal(mark: str) -> None:
    value = {f"é{mark}日": [mark]}
    text = printable_json(msgspec.json.format(msgspec.json.encode(value)).decode())
    assert all(line.isprintable() for line in text.split("\n"))
    assert msgspec.json.decode(text) == value


@pytest.mark.parametrize("mark", [*MARKS, "\ud800"])
def test_no_character_of_a_name_acts_on_the_terminal(mark: str) -> None:
    assert printable(f"é{mark}日").isprintable()
    assert table([("POD",), (f"a{mark}",)], 80)[1].isprintable()
    assert all(line.isprintable() for line in encodable(f"a{mark}\nb").split("\n"))


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_with_text() -> None:
    rows = [("POD", "CPUS", ""), ("a/long-name", "0-3", "own"), ("b", "-", "")]
    assert format.table(rows, 80) == [
        "POD          CPUS",
        "a/long-name  0-3   own",
        "b            -",
    ]


def test_text_beyond_the_width_is_cut() -> None:
    assert format.table([("HEAD", "MORE"), ("x", "y")], 7) == ["HEAD  M", "x     y"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_bar_that_is_removed_at_the_end() -> None:
    stream = Terminal()
    progress = format.Progress(stream, 2)
    progress.part("one", 0.5)
    progress.part("one", 0.5)
    progress.done("one")
    progress.part("two", 1.0)
    progress.done("two")
    written = stream.getvalue().split("\r\x1b[K")
    assert [each.split("] ")[-1] for each in written] == ["", " 25% one", "100% two", ""]
    assert written[2].count("#") == 30


def test_another_stream_gets_a_line_for_each_step() -> None:
    stream = io.StringIO()
    progress = format.Progress(stream, 2)
    progress.part("one", 0.5)
    progress.done("one")
    assert stream.getvalue() == "one (1 of 2)\n"
