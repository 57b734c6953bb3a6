"""Logs on standard error in logfmt or JSON, one line per record. The lines of each place in the
code are limited to a number that a reader can use: pods and peers may cause a record with
everything that they send."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent import VERSION
from agent.model.settings.options import LogFormat, Options

_ESCAPED = {
    **{number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))},
    **str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
}

_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")

FIELDS: Final = ("node", "namespace", "pod", "container", "reason")
"""The fields that say what a record is about (`agent.host.log_once.about`)."""


class Logfmt(logging.Formatter):
    """`time=... level=... msg="..."`, the FIELDS of the record, and `left_out=N` after records that
    RateLimit left out; quotes and control characters are escaped.

    `node`: the name of the node for every line, "" for a process that belongs to none."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        parts = (f"{name}={_value(name, value)}" for name, value in self.fields(record).items())
        return " ".join(parts)

    def fields(self, record: logging.LogRecord) -> dict[str, str | int]:
        """All fields of a line, in order."""
        moment = time.gmtime(record.created)
        text = record.getMessage()
        if record.exc_info:
            text += " " + self.formatException(record.exc_info)
        found: dict[str, str | int] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "msg": text,
        }
        for name in FIELDS:
            if value := getattr(record, name, "") or (self._node if name == "node" else ""):
                found[name] = str(value)
        if left_out := getattr(record, _LEFT_OUT, 0):
            found[_LEFT_OUT] = left_out
        return found


class Json(Logfmt):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        try:
            return msgspec.json.encode(fields).decode()
        except UnicodeEncodeError:  # a name of bytes that are not UTF-8
            texts = {
                name: value.encode(errors="backslashreplace").decode()
                for name, value in fields.items()
                if isinstance(value, str)
            }
            return msgspec.json.encode({**fields, **texts}).decode()


def _value(name: str, value: str | int) -> str:
    if isinstance(value, int) or name in ("time", "level"):
        return str(value)
    escaped = value.translate(_ESCAPED)
    plain = escaped == value and " " not in value and "=" not in value
    return value if plain and name != "msg" else f'"{escaped}"'


BURST: Final = 500
"""More than the pods of a node: there may be a line for each when an agent starts."""
PER_SECOND: Final = 5
_LEFT_OUT: Final = "left_out"


class RateLimit(logging.Filter):
    """Passes BURST records of one place in the code at once, and PER_SECOND from then on. The next
    record that passes has the number of those that were left out before it."""

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


def start(level: str, log_format: LogFormat = "logfmt", node: str = "") -> None:
    """Sends the log records of this process from that level on to standard error.

    `node`: the name of the node for every line, "" for none."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json(node) if log_format == "json" else Logfmt(node))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def announce(process: str, settings: Options) -> None:
    """The first line of a process: its version, and its options other than the defaults."""
    logging.getLogger(__name__).info(
        "topolet %s %s starts with %s", process, VERSION, _differing(settings) or "all defaults"
    )


def _differing(settings: Options) -> str:
    """The options that differ from their defaults; a URL without user and password."""
    return " ".join(
        f"--{encoded}={_CREDENTIALS.sub('//', str(value))}"
        for name, encoded, default in zip(
            settings.__struct_fields__,
            settings.__struct_encode_fields__,
            settings.__struct_defaults__,
            strict=True,
        )
        if (value := getattr(settings, name)) != default
    )
