"""Output for people: numbers, tables, boxes and the progress of a command; and what to
do if standard output has another encoding than UTF-8, is closed by its reader, or is on a full
disk."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

import msgspec

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
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()[:width]
        for row in rows
    ]


Lines = list[str]

_COLUMNS = (1, 2, 3, 4, 6, 8)


class Box(msgspec.Struct, frozen=True):
    """A titled frame around lines."""

    title: str
    body: tuple[str, ...]

    @property
    def width(self) -> int:
        inner = max((len(line) for line in self.body), default=0)
        return max(inner + 4, len(self.title) + 6)

    def lines(self, width: int, height: int) -> Lines:
        """The drawn box, stretched to a size in which it fits."""
        top = f"╭─ {self.title} ".ljust(width - 1, "─") + "╮"
        body = [f"│ {line.ljust(width - 4)} │" for line in self.body]
        body += [f"│{' ' * (width - 2)}│"] * (height - 2 - len(body))
        return [top, *body, f"╰{'─' * (width - 2)}╯"]


def in_rows(boxes: Sequence[Box], width: int) -> Lines:
    """The boxes in rows that fit `width`. All have the same width, those of a row the same
    height."""
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
    """The boxes in the number of columns that needs the fewest lines. Each of `makers` returns its
    box for a width, wider than that only if the box can't be narrower."""
    best: Lines = []
    for columns in _COLUMNS:
        if columns > len(makers):
            break
        share = (width - columns + 1) // columns
        lines = in_rows([make(share) for make in makers], width)
        if not best or len(lines) < len(best):
            best = lines
    return best


def flow(cells: Sequence[str], width: int) -> Lines:
    """Cells, which all have the same width, in rows of equal length."""
    if not cells:
        return []
    most = max(1, (width + 1) // (len(cells[0]) + 1))
    columns = min(most, len(cells))
    if len(cells) % columns:
        even = max(count for count in range(1, columns + 1) if len(cells) % count == 0)
        rows = -(-len(cells) // columns)
        columns = even if even * 2 > columns else -(-len(cells) // rows)
    return [" ".join(cells[start : start + columns]) for start in range(0, len(cells), columns)]


def printable(text: str) -> str:
    """The text in one line, without characters that act on a terminal or on the order of others
    (control characters, separators of lines, bidirectional and other invisible marks): names that
    pods' authors choose must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "?" for each in text)


def printable_lines(text: str) -> str:
    """The text with each of its lines printable."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """The JSON, in which characters that act on a terminal are escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )


def columns(default: int) -> int:
    """The width for lines: the variable COLUMNS, else the terminal's, else the default."""
    import shutil  # only for text

    return shutil.get_terminal_size((default, 24)).columns


def unwritten(command: str, error: OSError) -> int:
    """The exit code of a command that could not write its standard output: 0 for a reader that
    closes early (`head`), 1 for any other error, which is reported."""
    with open(os.devnull, "wb") as nowhere:  # Python flushes the rest at its exit.
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"topolet {command}: standard output: {error.strerror}", file=sys.stderr)
    return 1


def encodable(text: str, *, coloured: bool = False) -> str:
    """The text, with ASCII frames and question marks if the encoding of standard output lacks some
    of its characters.

    `coloured`: the text has escape sequences of its own, and its names are printable already."""
    if not coloured:
        text = printable_lines(text)
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate(str.maketrans("╭╮╰╯│─·", "++++|--"))
        return plain.encode(encoding, "replace").decode(encoding)
    return text


_BAR_WIDTH = 30


class Progress:
    """Shows how far a command is: on a terminal as a bar, on another stream as a line for each step
    that is done."""

    def __init__(self, stream: TextIO, steps: int) -> None:
        self._stream, self._steps = stream, steps
        self._done, self._drawn = 0, ""

    def part(self, title: str, part: float) -> None:
        """The part of the current step, from 0 to 1, that is done."""
        if not self._stream.isatty():
            return
        whole = (self._done + part) / self._steps
        filled = "#" * round(whole * _BAR_WIDTH)
        text = f"[{filled.ljust(_BAR_WIDTH, '.')}] {whole:4.0%} {title}"
        if text != self._drawn:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
            self._drawn = text

    def done(self, title: str) -> None:
        self._done += 1
        if not self._stream.isatty():
            self._stream.write(f"{title} ({self._done} of {self._steps})\n")
        elif self._done == self._steps:
            self._stream.write("\r\x1b[K")
        self._stream.flush()
