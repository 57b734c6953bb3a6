"""Output for people: numbers, tables, and standard output to any target.

The target may have any encoding, its reader may stop reading, and its disk may be full."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(size_bytes: int) -> str:
    """About three digits: `7.7 GiB`, `125 GiB`, `2 MiB`."""
    value = float(size_bytes)
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    digits = f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}"
    return f"{digits} {_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """`1 core`, `2 cores`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table whose first row is the head; lines are cut at the width."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()[:width]
        for row in rows
    ]


def unwritten(command: str, error: OSError) -> int:
    """The exit code: a reader that closes early (`head`) is not an error; a full disk is."""
    with open(os.devnull, "wb") as nowhere:  # for the rest that Python flushes at its exit
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"topolet {command}: standard output: {error.strerror}", file=sys.stderr)
    return 1


def encodable(text: str) -> str:
    """The text, with ASCII frames if the terminal can't show others."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate(str.maketrans("╭╮╰╯│─·", "++++|--"))
        return plain.encode(encoding, "replace").decode(encoding)
    return text
