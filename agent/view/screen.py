"""A terminal that shows one text after the other in the same place."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """On a terminal the second screen, left as it was at the end; else texts follow one another,
    each only when it differs from the last."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown = ""

    def __enter__(self) -> Screen:
        if self._terminal:
            self._stream.write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal:
            self._stream.write(_LEAVE)
        self._stream.flush()

    def show(self, text: str, lines: int) -> None:
        """Shows the text, on a terminal at most `lines` of it."""
        if text == self._shown:
            return
        self._shown = text
        if self._terminal:
            rows = text.rstrip("\n").split("\n")[: max(lines - 1, 1)]
            body = "".join(f"{row}{_CLEAR_LINE}\r\n" for row in rows)
            self._stream.write(f"{_HOME}{body}{_CLEAR_BELOW}")
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
