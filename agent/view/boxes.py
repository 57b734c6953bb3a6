"""Text in boxes: CPUs as cells or lists, with a letter for the owner of each CPU, and boxes in rows
and columns. Every function that returns lines returns lines of equal length."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology

_BRACKETS = ("[]", "()", "{}", "<>", "||")
_COLOURS = (32, 33, 35, 36, 34, 31)
_RESET = "\x1b[0m"


class Cells:
    """`owners` has the name of each CPU's owner. Each name has one letter (`marks`), in order of
    CPUs."""

    def __init__(self, topology: Topology, owners: Mapping[int, str]) -> None:
        self._cpus = {cpu.id: cpu for cpu in topology.cpus}
        self._kinds = list(dict.fromkeys(cpu.kind or "" for cpu in topology.cpus))
        self._digits = len(str(topology.cpus[-1].id))
        self._held = {cpu: owners[cpu] for cpu in self._cpus if cpu in owners}
        names = dict.fromkeys(self._held.values())
        self.marks = dict(zip(names, _letters(len(names)), strict=True))
        self._mark_width = max(map(len, self.marks.values()), default=0)

    def of(self, cpus: CpuSet) -> list[str]:
        """One cell for each core, all of one width; the brackets show the core's kind."""
        cores: dict[int, list[int]] = {}
        for cpu in cpus:
            cores.setdefault(self._cpus[cpu].core, []).append(cpu)
        cells = []
        for threads in cores.values():
            pair = self._brackets(self._cpus[threads[0]].kind)
            numbers = (f"{cpu:>{self._digits}}{self._mark(cpu)}" for cpu in threads)
            cells.append(f"{pair[0]}{' '.join(numbers)}{pair[1]}")
        longest = max(map(len, cells), default=0)
        return [cell.ljust(longest) for cell in cells]

    def listed(self, cpus: CpuSet) -> str:
        """A CPU list; all CPUs of a range have the same owner, or none."""
        by_mark: dict[str, list[int]] = {}
        for cpu in cpus:
            by_mark.setdefault(self._mark(cpu).strip(), []).append(cpu)
        ranges = sorted(
            (first, last, mark)
            for mark, members in by_mark.items()
            for first, last in CpuSet(members).ranges()
        )
        return ",".join(
            (str(first) if first == last else f"{first}-{last}") + mark
            for first, last, mark in ranges
        )

    def kinds(self) -> Iterator[str]:
        """The legend of the brackets, if there are several kinds of cores."""
        if len(self._kinds) > 1:
            for kind in self._kinds:
                members = CpuSet(cpu.id for cpu in self._cpus.values() if (cpu.kind or "") == kind)
                yield f"{self._brackets(kind)} core kind {kind or 'unknown'}: {members}"

    def legend(self) -> Iterator[str]:
        """One line for each owner: letter, name, CPUs."""
        for name, mark in self.marks.items():
            held = CpuSet(cpu for cpu, owner in self._held.items() if owner == name)
            yield f"  {mark}  {name}  {held}"

    def coloured(self, line: str) -> str:
        """A drawn line with the numbers of owned CPUs in their owner's colour."""
        if not self.marks:
            return line
        letters = "|".join(self.marks.values())
        held = re.compile(rf"\b([0-9]+(?:-[0-9]+)?)({letters})\b|^  ({letters})(?=  )")

        def paint(match: re.Match[str]) -> str:
            index = list(self.marks.values()).index(match[2] or match[3])
            return f"\x1b[{_COLOURS[index % len(_COLOURS)]}m{match[0]}{_RESET}"

        return held.sub(paint, line)

    def _brackets(self, kind: str | None) -> str:
        return _BRACKETS[self._kinds.index(kind or "") % len(_BRACKETS)]

    def _mark(self, cpu: int) -> str:
        owner = self._held.get(cpu)
        return ("" if owner is None else self.marks[owner]).ljust(self._mark_width)


def _letters(number: int) -> list[str]:
    letters = string.ascii_lowercase + string.ascii_uppercase
    if number <= len(letters):
        return list(letters[:number])
    return ["".join(pair) for pair in islice(product(letters, repeat=2), number)]


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
    """The boxes in the number of columns that needs the fewest lines.

    A maker draws its box in at most the given width, if it can.
    """
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
    """Cells of one width in rows of equal length."""
    if not cells:
        return []
    most = max(1, (width + 1) // (len(cells[0]) + 1))
    columns = min(most, len(cells))
    if len(cells) % columns:
        even = max(count for count in range(1, columns + 1) if len(cells) % count == 0)
        rows = -(-len(cells) // columns)
        columns = even if even * 2 > columns else -(-len(cells) // rows)
    return [" ".join(cells[start : start + columns]) for start in range(0, len(cells), columns)]
