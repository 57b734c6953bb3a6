"""The terminal of a command that draws on the whole screen and reads keys. The terminal gets its
former modes back however the command ends."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import termios
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from agent.view import terminal

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The alternate screen, without a cursor, with long rows cut."""
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ERASE: Final = "\x1b[0m\x1b[2J"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Around a frame: terminals that know these modes show it at once (synchronized output)."""
_ESCAPE_SECONDS: Final = 0.05
"""The longest time from an escape character to the rest of a key's sequence. Without a rest, the
key Escape was pressed."""
_LONGEST_KEY_BYTES: Final = 32
_READ_BYTES: Final = 4096
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_GONE: Final = frozenset({errno.EIO, errno.EPIPE, errno.EBADF, errno.ENXIO})

Handler = Callable[[int, FrameType | None], Any] | int | None


class TerminalGoneError(Exception):
    """The terminal was closed."""


class Screen:
    """A context in which the terminal shows the alternate screen and does not echo keys. Signals
    that end or stop the process are handled in `keys`, so only the main thread may call `keys`."""

    def __init__(self, input_: int, output: int, encoding: str) -> None:
        """The arguments `input_` and `output` are descriptors. An input that is not a terminal is
        not read."""
        self._input = input_
        self._output = output
        self._encoding = encoding
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Handler] = {}
        self._wake_reader = -1
        self._wake_writer = -1
        self._former_wakeup_fd = -1
        self._stop_requested = self._resumed = False
        self._shown: list[str] = []
        self._size = (0, 0)
        self._rest = b""
        self.ended = 0
        """The number of the signal that ended the context, SIGHUP for a terminal that hung up; 0 if
        there was none."""

    def __enter__(self) -> Screen:
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._former_wakeup_fd = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in (*_ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._handlers[number] = signal.signal(number, self._received)
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_wakeup_fd)
        reader, writer, self._wake_writer = self._wake_reader, self._wake_writer, -1
        os.close(reader)
        os.close(writer)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(self._output)
        except OSError:
            columns, rows = 0, 0
        return columns or 80, rows or 24

    def show(self, rows: list[str]) -> None:
        """Writes the rows that differ from the last ones. Raises TerminalGoneError."""
        size = self.size
        text = ""
        if size != self._size:
            self._size, self._shown, text = size, [], _ERASE
        text += terminal.changed(self._shown, rows)
        self._shown = rows
        if text:
            self.write(f"{_BEGIN}{text}{_END}".encode(self._encoding, "replace"))

    def wake(self) -> None:
        """From any thread: ends a wait for keys."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"\0")

    def keys(self, seconds: float) -> list[str]:
        """Waits for keys, at most this time. Returns early after the first key, a `wake`, a change
        of the size, or a signal that ends the process."""
        names, self._rest = terminal.keys(self._rest + self.read(seconds))
        if self._rest:
            names += self._rest_of_key()
        if "redraw" in names:
            self._size = (0, 0)
        return [name for name in names if name != "redraw"]

    def read(self, seconds: float) -> bytes:
        """The bytes of the keys, which `keys` waits for like this."""
        return self._read() if self._wait(seconds) and self._reads() else b""

    def _wait(self, seconds: float) -> bool:
        """Whether keys can be read."""
        deadline = time.monotonic() + seconds
        watched = [self._wake_reader, *([self._input] if self._modes else [])]
        while not self.ended:
            left = max(deadline - time.monotonic(), 0.0)
            ready, _, _ = select.select(watched, [], [], left)
            if self._wake_reader in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reader, _READ_BYTES)
                if self._stop_requested:
                    self._stop()
                elif self._resumed:
                    # SIGSTOP stopped the process: it can't be caught.
                    self._begin()
                return self._reads()
            return bool(ready)
        return False

    def _reads(self) -> bool:
        return bool(self._modes and select.select([self._input], [], [], 0)[0])

    def _read(self) -> bytes:
        try:
            received = os.read(self._input, _READ_BYTES)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            received = b""
        if not received:
            self.ended = self.ended or signal.SIGHUP
        return received

    def _rest_of_key(self) -> list[str]:
        found: list[str] = []
        while self._rest and not self.ended:
            if not select.select([self._input], [], [], _ESCAPE_SECONDS)[0]:
                found += ["escape"] if self._rest == b"\x1b" else []
                self._rest = b""
                break
            more, self._rest = terminal.keys(self._rest + self._read())
            found += more
            if len(self._rest) > _LONGEST_KEY_BYTES:
                self._rest = b""
        return found

    def _received(self, number: int, _: FrameType | None) -> None:
        if number in _ENDING:
            self.ended = number
        elif number == signal.SIGTSTP:
            self._stop_requested = True
        elif number == signal.SIGCONT:
            self._resumed = True

    def _stop(self) -> None:
        """Stops the process as SIGTSTP does, with the terminal's former modes meanwhile."""
        self._stop_requested = False
        self._leave()
        handlers = {
            each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTSTP, signal.SIGCONT)
        }
        os.kill(os.getpid(), signal.SIGTSTP)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        self._begin()

    def _begin(self) -> None:
        self._resumed = False
        if os.isatty(self._input):
            # A terminal that hangs up refuses; the next read or write reports that.
            with contextlib.suppress(termios.error):
                self._modes = self._modes or termios.tcgetattr(self._input)
                wanted = termios.tcgetattr(self._input)
                wanted[3] &= ~(termios.ICANON | termios.ECHO)
                wanted[6][termios.VMIN], wanted[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self._input, termios.TCSADRAIN, wanted)
        self._size = (0, 0)
        with contextlib.suppress(TerminalGoneError):
            self.write(_ENTER.encode())

    def _leave(self) -> None:
        with contextlib.suppress(TerminalGoneError):
            self.write(_LEAVE.encode())
        if self._modes is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._modes)
            self._modes = None

    def write(self, data: bytes) -> None:
        """Writes what another program has drawn. Raises TerminalGoneError."""
        while data:
            try:
                data = data[os.write(self._output, data) :]
            except BlockingIOError:
                select.select([], [self._output], [])
            except OSError as error:
                if error.errno in _GONE:
                    raise TerminalGoneError(str(error)) from None
                raise
