"""A picture of the machine: boxes for sockets, NUMA nodes, dies and caches, a cell for each core,
models of CPUs, sizes of caches, kinds of memory, and the NUMA distances; for a node with the owners
of its CPUs and its pods.

A picture that would be too tall is folded: its cells become CPU lists, then its boxes become
lines."""

from __future__ import annotations

import re
import string
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product

import msgspec

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import (
    CacheKind,
    Hardware,
    MemoryKind,
    MemoryTraits,
    NumaNode,
    Topology,
)
from agent.model.pod.qos import POOLS, QoS, pool_cpus
from agent.model.snapshot import PodWanted, Snapshot
from agent.view import nesting
from agent.view.format import Box, Lines, arranged, count, flow, in_rows, printable, size, table
from agent.view.nesting import Part

_COLUMNS = ("POD", "QOS", "CPUS", "")
_OTHER_LINES = 9
"""The lines that are neither of the machine nor of pods: summary, legend, headings, blank lines."""


def draw_node(
    topology: Topology,
    snapshot: Snapshot,
    width: int = 100,
    *,
    hardware: Hardware | None = None,
    colour: bool = False,
    height: int | None = None,
) -> str:
    """The machine's picture with each CPU's owner or pools, then a line for each pod.

    `height` is the number of available lines: the machine is folded to leave room for the pods.
    """
    tall = TALL_LINES
    if height is not None:
        tall = min(tall, max(height - len(snapshot.pods) - _OTHER_LINES, 1))
    held = node_holders(topology, snapshot)
    picture = draw(topology, width, held, hardware=hardware, colour=colour, tall_lines=tall)
    rows = [_COLUMNS, *map(_row, _sorted(snapshot))]
    lines = table(rows, width)
    if len(rows) == 1:
        lines = ["No pods."]
    return picture + "\n" + "\n".join(lines) + "\n"


def node_holders(topology: Topology, snapshot: Snapshot) -> dict[int, str]:
    """By CPU: the pod that owns it, or the pools that contain it. CPUs that have neither are left
    out."""
    titles: dict[int, list[str]] = {}
    for name, kind in POOLS.items():
        for cpu in pool_cpus(snapshot.pools.get(name, ())):
            titles.setdefault(cpu, []).append(kind.title)
    named = {cpu: f"{' and '.join(of_cpu)} pool" for cpu, of_cpu in titles.items()}
    for owner in snapshot.owners:
        source = "kubelet" if owner.kubelet else "claim" if owner.claims else owner.qos
        name = f"{source} {owner.title}"
        named |= {
            cpu: f"{name}, and the {named[cpu]}" if cpu in titles else name for cpu in owner.cpus
        }
    return {cpu: named[cpu] for cpu in topology.online if cpu in named}


def _sorted(snapshot: Snapshot) -> list[PodWanted]:
    order = list(QoS)
    pods = sorted(
        snapshot.pods.items(), key=lambda each: (order.index(each[1].qos), each[1].title, each[0])
    )
    return [pod for _, pod in pods]


def _row(pod: PodWanted) -> tuple[str, str, str, str]:
    of_kubelet = [each for each in pod.containers.values() if each.kubelet]
    if of_kubelet:
        cpus = union(each.own for each in of_kubelet)
        refused = f"; claim not honoured: {pod.refused}" if pod.refused else ""
        note = f"own, by the kubelet{refused}{_mixed(pod)}"
        return pod.title, pod.qos.value, str(cpus) or "-", note
    wanted = pod.each
    note = "own" if wanted.exclusive else "shared"
    if wanted.cpuset is None:
        note = wanted.blocked or "the kubelet's"
    elif wanted.blocked or pod.refused:
        note += f"; {wanted.blocked or 'claim refused: ' + pod.refused}"
    for name, other in sorted(pod.containers.items()):
        if other.shared is None:
            note += f"; {name} on {other.cpuset or other.blocked}"
    note += _mixed(pod)
    return pod.title, pod.qos.value, str(CpuSet.parse(wanted.cpuset or "")) or "-", note


def _mixed(pod: PodWanted) -> str:
    return "".join(
        f"; {name} on {each.own} of its own and {each.shared or 'none'} of its pool"
        for name, each in sorted(pod.containers.items())
        if each.shared is not None
    )


TALL_LINES = 56
_FRAME = re.compile("[╭╮╰╯│─]+")
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_BRACKETS = ("[]", "()", "{}", "<>", "||")
_COLOURS = (32, 33, 35, 36, 34, 31)


def draw(
    topology: Topology,
    width: int = 100,
    owners: Mapping[int, str] | None = None,
    *,
    hardware: Hardware | None = None,
    colour: bool = False,
    tall_lines: int = TALL_LINES,
) -> str:
    """The picture in at most `width` columns (a wider box stays whole). Its boxes are folded until
    they need at most `tall_lines`, as far as possible.

    `owners` names the owner of each CPU, such as a pod: each name gets a letter, which follows the
    CPU's number, and a line in the legend. Lines have no trailing blanks; the text ends with a
    newline.
    """
    cells = Cells(topology, owners or {})
    outermost = nesting.parts(topology)
    picture: Lines = []
    for attempt in (_with_cells, _with_lists, _rows, _short_rows):
        picture = attempt(outermost, cells, width)
        if len(picture) <= tall_lines:
            break
    blocks = [
        [_summary(topology), *_models(hardware or Hardware(), width)],
        picture + _memory_only(topology.numa_nodes, width),
        _memory(hardware or Hardware(), width),
        list(_notes(topology, cells)),
        distances(topology.numa_nodes, width),
        ["Owners", *cells.legend()] if cells.marks else [],
    ]
    lines = "\n\n".join("\n".join(block) for block in blocks if block).split("\n")
    if colour:
        lines = [_FRAME.sub(_dimmed, cells.coloured(line)) for line in lines]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def about(hardware: Hardware, width: int = sys.maxsize) -> Lines:
    """The models of CPUs, the caches and kinds of memory as lines."""
    return [*_models(hardware, width), *_memory(hardware, width)]


class Cells:
    """Draws CPUs as cells or lists, with a mark for the owner of each.

    `owners`: the name of the owner by CPU."""

    def __init__(self, topology: Topology, owners: Mapping[int, str]) -> None:
        self._cpus = {cpu.id: cpu for cpu in topology.cpus}
        self._kinds = list(dict.fromkeys(cpu.kind or "" for cpu in topology.cpus))
        self._digits = len(str(topology.cpus[-1].id))
        self._held = {cpu: owners[cpu] for cpu in self._cpus if cpu in owners}
        names = dict.fromkeys(self._held.values())
        self.marks = dict(zip(names, _letters(len(names)), strict=True))
        """The letters of each owner, in the order of the CPUs."""
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
            yield f"  {mark}  {printable(name)}  {held}"

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


def _with_cells(parts: Sequence[Part], cells: Cells, width: int) -> Lines:
    def box(part: Part, width: int) -> Box:
        if part.parts:
            inner = arranged([partial(box, each) for each in part.parts], width - 4)
        else:
            inner = flow(cells.of(part.cpus), width - 4)
        return Box(part.title, (*part.notes, *inner))

    return arranged([partial(box, part) for part in parts], width)


def _with_lists(parts: Sequence[Part], cells: Cells, width: int) -> Lines:
    def box(part: Part, width: int) -> Box:
        if not part.parts:
            inner = _wrapped("", cells.listed(part.cpus), width - 4)
        elif any(each.parts for each in part.parts):
            inner = arranged([partial(box, each) for each in part.parts], width - 4)
        else:
            inner = [
                line
                for each in part.parts
                for line in _wrapped(f"{each.title}  ", cells.listed(each.cpus), width - 4)
            ]
        return Box(part.title, (*part.notes, *inner))

    return arranged([partial(box, part) for part in parts], width)


def _rows(parts: Sequence[Part], cells: Cells, width: int) -> Lines:
    titles = [
        f"{part.title} · {count(len(part.parts), part.parts[0].noun)}" if part.parts else part.title
        for part in parts
    ]
    return _titled_rows(titles, parts, cells, width)


def _short_rows(parts: Sequence[Part], cells: Cells, width: int) -> Lines:
    return _titled_rows([part.title for part in parts], parts, cells, width)


def _titled_rows(titles: Sequence[str], parts: Sequence[Part], cells: Cells, width: int) -> Lines:
    rows = [
        f"{title}  {cells.listed(part.cpus)}" for title, part in zip(titles, parts, strict=True)
    ]
    longest = max(map(len, rows))
    if longest <= width:
        return flow([row.ljust(longest + 2) for row in rows], width + 2)
    return [line for row in rows for line in _wrapped("", row, width)]


def _wrapped(label: str, listed: str, width: int) -> Lines:
    room = max(width - len(label), 12)
    lines = [""]
    for item in re.findall(r"[^,]*,|[^,]+$", listed):
        if lines[-1] and len(lines[-1]) + len(item) > room:
            lines.append("")
        lines[-1] += item
    return [(" " * len(label) if index else label) + line for index, line in enumerate(lines)]


def _memory_only(nodes: Sequence[NumaNode], width: int) -> Lines:
    """The NUMA nodes without CPUs, each with the nearest nodes that have some."""
    shown = [
        ", ".join(
            text
            for text in (
                f"node {node.id}  {nesting.memory(node)}",
                nesting.pages(node),
                _nearest(node, nodes),
            )
            if text
        )
        for node in nodes
        if not node.cpus
    ]
    longest = max(map(len, shown), default=0)
    rows = flow([text.ljust(longest + 1) for text in shown], width - 4)
    return in_rows([Box("NUMA nodes without CPUs", tuple(rows))], width) if shown else []


def _nearest(node: NumaNode, nodes: Sequence[NumaNode]) -> str:
    """The nearest nodes with CPUs, unless all are equally near."""
    near = {
        other.id: distance
        for other, distance in zip(nodes, node.distances, strict=False)
        if other.cpus
    }
    nearest = CpuSet(other for other in near if near[other] == min(near.values()))
    return f"near {nearest}" if len(nearest) < len(near) else ""


def _summary(topology: Topology) -> str:
    memory_bytes = sum(node.memory_bytes for node in topology.numa_nodes)
    return " · ".join(
        (
            count(len(topology.cpus), "CPU"),
            count(len({cpu.core for cpu in topology.cpus}), "core"),
            count(len({cpu.socket for cpu in topology.cpus}), "socket"),
            count(len(topology.numa_nodes), "NUMA node"),
            size(memory_bytes) if memory_bytes else "memory unknown",
        )
    )


_KIND_LETTERS = {CacheKind.DATA: "d", CacheKind.INSTRUCTION: "i", CacheKind.UNIFIED: ""}


def _models(hardware: Hardware, width: int) -> Lines:
    """The models of the CPUs, and the number and size of the caches of each level and kind."""
    several = len(hardware.models) > 1
    lines: Lines = []
    for model in hardware.models:
        text = f"{model.name}: CPUs {model.cpus}" if several else model.name
        lines += textwrap.wrap(printable(text), width, subsequent_indent="  ")
    caches = ", ".join(
        f"{len(group.shared_by)} L{group.level}{_KIND_LETTERS[group.kind]}"
        + (f" of {size(group.size_bytes)}" if group.size_bytes else "")
        for group in hardware.caches
    )
    return [*lines, *textwrap.wrap(caches, width, subsequent_indent="  ")]


_KINDS = {
    MemoryKind.DRAM: "DRAM",
    MemoryKind.HBM: "HBM",
    MemoryKind.CXL: "CXL",
    MemoryKind.PERSISTENT: "persistent memory",
    MemoryKind.GPU: "memory of a GPU",
    MemoryKind.SPECIAL: "special-purpose memory",
    MemoryKind.SLOW: "slower memory",
    None: "unknown kind",
}


def _memory(hardware: Hardware, width: int) -> Lines:
    """The NUMA nodes by kind and speed of their memory, if any is not DRAM."""
    alike: dict[MemoryTraits, list[int]] = {}
    for traits in hardware.memory:
        if traits != MemoryTraits(traits.node, tier=traits.tier):
            alike.setdefault(msgspec.structs.replace(traits, node=0), []).append(traits.node)
    if len(alike) < 2 and all(
        traits == MemoryTraits(0, MemoryKind.DRAM, traits.tier) for traits in alike
    ):
        return []
    lines = ["Memory"]
    for traits, nodes in alike.items():
        facts = [_KINDS[traits.kind]]
        if traits.tier is not None:
            facts.append(f"tier {traits.tier}")
        if traits.read_mib_per_second:
            facts.append(f"{size(traits.read_mib_per_second << 20)}/s")
        if traits.read_latency_ns:
            facts.append(f"{traits.read_latency_ns} ns")
        if traits.side_cache_bytes:
            facts.append(f"side cache of {size(traits.side_cache_bytes)}")
        noun = "node" if len(nodes) == 1 else "nodes"
        text = f"  {noun} {CpuSet(nodes)}: {', '.join(facts)}"
        lines += textwrap.wrap(text, width, subsequent_indent="    ")
    return lines


def _notes(topology: Topology, cells: Cells) -> Iterator[str]:
    yield from cells.kinds()
    if nesting.has_private_l3(topology):
        yield "Every core has its own L3"
    if topology.smt_control in ("off", "forceoff"):
        yield f"SMT is {topology.smt_control}"
    if topology.isolated:
        yield f"Isolated CPUs: {topology.isolated}"
    if topology.offline:
        yield f"Offline CPUs: {topology.offline}"


def _dimmed(frame: re.Match[str]) -> str:
    return f"{_DIM}{frame[0]}{_RESET}"


_Matrix = dict[int, dict[int, int]]


def distances(nodes: Sequence[NumaNode], width: int) -> list[str]:
    """The matrix of distances. If it is too wide, nodes with equal distances to all others share a
    row. Empty for a single node, or without distances.
    """
    ids = [node.id for node in nodes]
    matrix: _Matrix = {
        node.id: dict(zip(ids, node.distances, strict=True)) for node in nodes if node.distances
    }
    if len(ids) < 2 or len(matrix) < len(ids):
        return []
    for groups in ([[node] for node in ids], _alike(matrix)):
        lines = _distance_table(matrix, groups)
        if len(lines[-1]) <= width:
            return lines
    counts = Counter(value for row in matrix.values() for value in row.values())
    return ["Distances between NUMA nodes, and how often each occurs"] + [
        f"  {value:>4}  {counts[value]}x" for value in sorted(counts)
    ]


def _alike(matrix: _Matrix) -> list[list[int]]:
    groups: list[list[int]] = []
    for node in matrix:
        for group in groups:
            if _same(matrix, group[0], node) and _uniform(matrix, [*group, node]):
                group.append(node)
                break
        else:
            groups.append([node])
    return groups


def _same(matrix: _Matrix, one: int, other: int) -> bool:
    return all(
        matrix[one][node] == matrix[other][node] and matrix[node][one] == matrix[node][other]
        for node in matrix
        if node not in (one, other)
    )


def _uniform(matrix: _Matrix, group: Sequence[int]) -> bool:
    return len({matrix[one][other] for one in group for other in group if one != other}) == 1


def _distance_table(matrix: _Matrix, groups: Sequence[Sequence[int]]) -> list[str]:
    """One row and one column for each group; the head of a column is the group's first node. The
    diagonal has the distance between the nodes of one group.
    """
    folded = any(len(group) > 1 for group in groups)
    names = [str(CpuSet(group)) for group in groups]
    heads = [str(group[0]) for group in groups]
    rows = [
        [str(matrix[group[0]][other[0] if other is not group else group[-1]]) for other in groups]
        for group in groups
    ]
    label = max(len(name) for name in names)
    cell = max(len(text) for line in (heads, *rows) for text in line) + 1
    own = CpuSet(row[node] for node, row in matrix.items())
    note = [f"  nodes that are alike share a row; {own} within a node"] if folded else []
    head = " " * (label + 2) + "".join(name.rjust(cell) for name in heads)
    body = [
        f"  {name.rjust(label)}" + "".join(text.rjust(cell) for text in row)
        for name, row in zip(names, rows, strict=True)
    ]
    return ["Distances between NUMA nodes", *note, head, *body]
