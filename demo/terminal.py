"""Reads single keys from a terminal, and detects that the output is closed."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import termios
import time
import tty
from typing import Final, TextIO

END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def has_keys(source: TextIO, output: TextIO) -> bool:
    """Whether input and output are terminals."""
    return source.isatty() and output.isatty()


class Keyboard:
    """A context in which keys are read without Enter. Without a terminal there are no keys, and
    `key` only waits. At the end the terminal gets its former settings back."""

    def __init__(self, source: TextIO, output: TextIO) -> None:
        self._source = source.fileno()
        self._output = output.fileno()
        self.has_keys = has_keys(source, output)
        self._settings = termios.tcgetattr(self._source) if self.has_keys else None

    def __enter__(self) -> Keyboard:
        if self.has_keys:
            tty.setcbreak(self._source)
        return self

    def __exit__(self, *_: object) -> None:
        if self._settings is not None:
            try:
                termios.tcsetattr(self._source, termios.TCSADRAIN, self._settings)
            except termios.error:
                return  # The terminal is closed.

    def key(self, seconds: float) -> str:
        """The key that is pressed within this time, "" for none."""
        if not self.has_keys:
            time.sleep(seconds)
            return ""
        if not select.select([self._source], [], [], seconds)[0]:
            return ""
        return os.read(self._source, 1).decode("ascii", "replace")

    def output_is_closed(self) -> bool:
        """Whether the output is closed: a pipe without a reader, or a closed terminal."""
        poll = select.poll()
        poll.register(self._output, 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def exit_code_of(error: OSError) -> int:
    """The exit code after an error of the output. A closed pipe (`head`) or terminal is not an
    error; further output is dropped."""
    if error.errno in (errno.EPIPE, errno.EIO):
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
            os.dup2(null.fileno(), sys.stderr.fileno())
        return 0
    print(f"make run: {error}", file=sys.stderr)
    return 1
