"""Logs on standard error in logfmt, one line per record."""

from __future__ import annotations

import logging
import sys
import time

_ESCAPED = {
    **{number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))},
    **str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
}


class Logfmt(logging.Formatter):
    """`time=... level=... msg="..."`; quotes and control characters in messages are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.gmtime(record.created)
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z"
        text = record.getMessage()
        if record.exc_info:
            text += " " + self.formatException(record.exc_info)
        return f'time={stamp} level={record.levelname.lower()} msg="{text.translate(_ESCAPED)}"'


def start(level: str) -> None:
    """Sends the log records of this process from that level on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Logfmt())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
