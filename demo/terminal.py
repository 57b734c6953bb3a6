"""Keys of a terminal, one by one, and what ends a demonstration: signals, and that nobody reads its
output any more."""

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

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def has_keys(source: TextIO, output: TextIO) -> bool:
    """Whether somebody sees the output and can press keys."""
    return source.isatty() and output.isatty()


class Keyboard:
    """Without a terminal there are no keys, and waiting for one is a pause. The terminal has its
    settings again at the end."""

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
                return  # The terminal is gone.

    def key(self, seconds: float) -> str:
        """The key that is pressed within this time, "" for none."""
        if not self.has_keys:
            time.sleep(seconds)
            return ""
        if not select.select([self._source], [], [], seconds)[0]:
            return ""
        return os.read(self._source, 1).decode("ascii", "replace")

    def is_unread(self) -> bool:
        """Whether the reader of the output has closed it: a pipe, or a terminal that hung up."""
        poll = select.poll()
        poll.register(self._output, 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def ended_by(error: OSError) -> int:
    """The exit code. A reader that closes early (`head`) and a terminal that hangs up are no
    errors; then further output goes nowhere."""
    if error.errno in (errno.EPIPE, errno.EIO):
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
        return 0
    print(f"make run: {error}", file=sys.stderr)
    return 1
