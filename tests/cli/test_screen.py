from __future__ import annotations

import io
import os
import pty
import select
from collections.abc import Iterator
from typing import TextIO

import pytest

from agent.cli.screen import Screen


class Terminal:
    """A pseudo-terminal. `stream`: for the program; `output`: what the program wrote."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream: TextIO = open(slave, "w", encoding="utf-8")  # noqa: SIM115

    def output(self) -> str:
        data = b""
        while select.select([self._master], [], [], 0)[0]:
            data += os.read(self._master, 4096)
        return data.decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_terminal_replaces_each_text_by_the_next(terminal: Terminal) -> None:
    with Screen(terminal.stream) as screen:
        screen.show("a\nb\n", 24)
        assert terminal.output() == "\x1b[?1049h\x1b[?25l\x1b[Ha\x1b[K\r\r\nb\x1b[K\r\r\n\x1b[J"
        screen.show("a\nb\n", 24)
        assert terminal.output() == ""
        screen.show("c\n", 24)
        assert terminal.output() == "\x1b[Hc\x1b[K\r\r\n\x1b[J"
    assert terminal.output() == "\x1b[?25h\x1b[?1049l"


def test_text_higher_than_the_terminal_is_cut(terminal: Terminal) -> None:
    with Screen(terminal.stream) as screen:
        screen.show("1\n2\n3\n4\n", 3)
        shown = terminal.output()
    assert "2" in shown
    assert "\n3" not in shown


def test_terminal_is_restored_after_an_error(terminal: Terminal) -> None:
    with pytest.raises(RuntimeError), Screen(terminal.stream):
        raise RuntimeError
    assert terminal.output().endswith("\x1b[?25h\x1b[?1049l")


def test_pipe_gets_every_new_text_without_control_sequences() -> None:
    stream = io.StringIO()
    with Screen(stream) as screen:
        for text in ("a\nb\n", "a\nb\n", "c\n"):
            screen.show(text, 1)
    assert stream.getvalue() == "a\nb\n\nc\n\n"
