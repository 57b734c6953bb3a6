"""Logs on standard error in logfmt, one line per record, and no more lines of one place of the code
than a reader can use: what pods and peers send may cause a record each time."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

_ESCAPED = {
    **{number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))},
    **str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
}


class Logfmt(logging.Formatter):
    """`time=... level=... msg="..."`, and `left_out=N` after records that RateLimit left out;
    quotes and control characters in messages are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.gmtime(record.created)
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z"
        text = record.getMessage()
        if record.exc_info:
            text += " " + self.formatException(record.exc_info)
        left_out = getattr(record, _LEFT_OUT, 0)
        line = f'time={stamp} level={record.levelname.lower()} msg="{text.translate(_ESCAPED)}"'
        return f"{line} left_out={left_out}" if left_out else line


BURST: Final = 500
"""More than the pods of a node: each may have a line when an agent starts."""
PER_SECOND: Final = 5
_LEFT_OUT: Final = "left_out"


class RateLimit(logging.Filter):
    """Passes BURST records of one place of the code at once, and PER_SECOND from then on. The next
    one that passes has the number of those that were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        place = self._places.setdefault((record.name, record.lineno), _Place(now))
        place.room = min(BURST, place.room + (now - place.at) * PER_SECOND)
        place.at = now
        if place.room < 1:
            place.left_out += 1
            return False
        place.room -= 1
        setattr(record, _LEFT_OUT, place.left_out)
        place.left_out = 0
        return True


class _Place:
    __slots__ = ("at", "left_out", "room")

    def __init__(self, now: float) -> None:
        self.at = now
        self.room: float = BURST
        self.left_out = 0


def start(level: str) -> None:
    """Sends the log records of this process from that level on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Logfmt())
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
