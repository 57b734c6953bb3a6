"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(size_bytes: int) -> str:
    """Three digits or so: `7.7 GiB`, `125 GiB`, `2 MiB`."""
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
    """The first row is the head; what is beyond the width is cut."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()[:width]
        for row in rows
    ]
