"""Vector files (JSON lines, one case per line, plain or gzip; blank lines are ignored), and the
verdict on a case: the same answer, a declared difference, or a disagreement."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError

Case = dict[str, Any]

LONGEST_BYTES: Final = 1 << 26
"""The longest line, so that a file without line breaks does not exhaust the memory."""

_GZIP: Final = b"\x1f\x8b"
_CASE: Final = msgspec.json.Decoder(Case)


class FileError(Exception):
    """A file that can't be read completely; the message names the file, and the line if there is
    one."""

    def __init__(self, path: str, reason: str, line: int | None = None) -> None:
        place = path if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {reason}")


def read(path: str) -> Iterator[tuple[int, Case]]:
    """The cases with their line numbers, from 1, one at a time. Raises FileError."""
    number = 0
    try:
        with open(path, "rb") as raw, _plain(raw) as content:
            while line := content.readline(LONGEST_BYTES + 1):
                number += 1
                if line.strip():
                    yield number, _case(path, number, line)
    except (EOFError, OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(path, reason, number + 1 if number else None) from None


def _plain(raw: io.BufferedReader) -> io.BufferedIOBase:
    return gzip.GzipFile(fileobj=raw) if raw.peek(len(_GZIP)).startswith(_GZIP) else raw


def _case(path: str, number: int, line: bytes) -> Case:
    if len(line) > LONGEST_BYTES:
        raise FileError(path, f"longer than {LONGEST_BYTES} bytes", number)
    try:
        return bounds.decode(_CASE, line)
    except JsonError as error:
        raise FileError(path, str(error), number) from None


class Difference(msgspec.Struct, frozen=True):
    """A case in which Topolet's answer differs on purpose, because the other system's answer is
    wrong. `listed`: the tables in the vectors' README list the answer as wrong, and it is counted
    separately. All other differences together may be at most 2 % of a set.
    """

    name: str
    reason: str
    listed: bool = False


class CaseVerdict(msgspec.Struct, frozen=True):
    """`ours`: Topolet's answer in the form of the case's `expect`. `declared`: the name of a
    Difference, set only if `ours` differs and the case satisfies the predicate of the
    Difference."""

    agrees: bool
    ours: Any
    declared: str | None = None


class Judge(msgspec.Struct, frozen=True):
    """The comparison for one kind of case. `judge` raises an ArithmeticError, AttributeError,
    LookupError, TypeError or ValueError for a case that it can't read. `differences`: all that it
    may declare, in the order of the report."""

    judge: Callable[[Case], CaseVerdict]
    differences: tuple[Difference, ...] = ()
