"""CPUs as text: a cell for each core, or a list; with a letter for the owner of a CPU."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from itertools import islice, product

from agent.model.cpuset import CpuSet
from agent.model.topology import Topology

_BRACKETS = ("[]", "()", "{}", "<>", "||")
_COLOURS = (32, 33, 35, 36, 34, 31)
_RESET = "\x1b[0m"


class Cells:
    """`owners` names who holds a CPU; each name has one letter (`marks`), in order of CPUs."""

    def __init__(self, topology: Topology, owners: Mapping[int, str]) -> None:
        self._cpus = {cpu.id: cpu for cpu in topology.cpus}
        self._kinds = list(dict.fromkeys(cpu.kind or "" for cpu in topology.cpus))
        self._digits = len(str(topology.cpus[-1].id))
        self._held = {cpu: owners[cpu] for cpu in self._cpus if cpu in owners}
        names = dict.fromkeys(self._held.values())
        self.marks = dict(zip(names, _letters(len(names)), strict=True))
        self._mark_width = max(map(len, self.marks.values()), default=0)

    def of(self, cpus: CpuSet) -> list[str]:
        """One cell a core, all of one width; the brackets tell the core's kind."""
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
        """A CPU list in which each range has one owner, or none."""
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
        """What the brackets mean, where there are several kinds of cores."""
        if len(self._kinds) > 1:
            for kind in self._kinds:
                members = CpuSet(cpu.id for cpu in self._cpus.values() if (cpu.kind or "") == kind)
                yield f"{self._brackets(kind)} core kind {kind or 'unknown'}: {members}"

    def legend(self) -> Iterator[str]:
        """A line for each owner: letter, name, CPUs."""
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
