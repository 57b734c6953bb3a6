"""The progress of a command, and a line chart."""

from __future__ import annotations

import io

from agent.view import format


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
