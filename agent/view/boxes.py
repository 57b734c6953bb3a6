"""Boxes of text beside and below each other; every function returns lines of equal length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

Lines = list[str]

_COLUMNS = (1, 2, 3, 4, 6, 8)


class Box(msgspec.Struct, frozen=True):
    """A frame with a title around lines."""

    title: str
    body: tuple[str, ...]

    @property
    def width(self) -> int:
        inner = max((len(line) for line in self.body), default=0)
        return max(inner + 4, len(self.title) + 6)

    def lines(self, width: int, height: int) -> Lines:
        """The drawn box, stretched to a size that it fits in."""
        top = f"╭─ {self.title} ".ljust(width - 1, "─") + "╮"
        body = [f"│ {line.ljust(width - 4)} │" for line in self.body]
        body += [f"│{' ' * (width - 2)}│"] * (height - 2 - len(body))
        return [top, *body, f"╰{'─' * (width - 2)}╯"]


def beside(boxes: Sequence[Box], width: int) -> Lines:
    """The boxes in rows that fit `width`, all of one width, those of a row of one height."""
    if not boxes:
        return []
    widest = max(box.width for box in boxes)
    most = max(1, (width + 1) // (widest + 1))
    rows = -(-len(boxes) // most)
    columns = -(-len(boxes) // rows)
    lines: Lines = []
    for start in range(0, len(boxes), columns):
        row = boxes[start : start + columns]
        height = max(len(box.body) for box in row) + 2
        drawn = [box.lines(widest, height) for box in row]
        lines += [" ".join(parts) for parts in zip(*drawn, strict=True)]
    return lines


def arranged(makers: Sequence[Callable[[int], Box]], width: int) -> Lines:
    """The boxes in the number of columns that needs the fewest lines.

    A maker draws its box for at most the width it is given, if it can.
    """
    best: Lines = []
    for columns in _COLUMNS:
        if columns > len(makers):
            break
        share = (width - columns + 1) // columns
        lines = beside([make(share) for make in makers], width)
        if not best or len(lines) < len(best):
            best = lines
    return best


def flow(cells: Sequence[str], width: int) -> Lines:
    """Cells of one width in even rows."""
    if not cells:
        return []
    most = max(1, (width + 1) // (len(cells[0]) + 1))
    columns = min(most, len(cells))
    if len(cells) % columns:
        even = max(count for count in range(1, columns + 1) if len(cells) % count == 0)
        rows = -(-len(cells) // columns)
        columns = even if even * 2 > columns else -(-len(cells) // rows)
    return [" ".join(cells[start : start + columns]) for start in range(0, len(cells), columns)]
