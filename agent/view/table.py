"""Rows of cells in columns, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The first row is the head; what is beyond the width is cut."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()[:width]
        for row in rows
    ]
