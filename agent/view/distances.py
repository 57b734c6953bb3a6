"""The NUMA distance matrix as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agent.model.cpuset import CpuSet
from agent.model.topology import NumaNode

Matrix = dict[int, dict[int, int]]


def draw(nodes: Sequence[NumaNode], width: int) -> list[str]:
    """The matrix; nodes that are equally far from all others share a row where it is too wide.

    Empty where there is nothing to compare: one node, or no distances.
    """
    ids = [node.id for node in nodes]
    matrix: Matrix = {
        node.id: dict(zip(ids, node.distances, strict=True)) for node in nodes if node.distances
    }
    if len(ids) < 2 or len(matrix) < len(ids):
        return []
    for groups in ([[node] for node in ids], _alike(matrix)):
        lines = _table(matrix, groups)
        if len(lines[-1]) <= width:
            return lines
    counts = Counter(value for row in matrix.values() for value in row.values())
    return ["Distances between NUMA nodes, and how often each occurs"] + [
        f"  {value:>4}  {counts[value]}x" for value in sorted(counts)
    ]


def _alike(matrix: Matrix) -> list[list[int]]:
    groups: list[list[int]] = []
    for node in matrix:
        for group in groups:
            if _same(matrix, group[0], node) and _uniform(matrix, [*group, node]):
                group.append(node)
                break
        else:
            groups.append([node])
    return groups


def _same(matrix: Matrix, one: int, other: int) -> bool:
    return all(
        matrix[one][node] == matrix[other][node] and matrix[node][one] == matrix[node][other]
        for node in matrix
        if node not in (one, other)
    )


def _uniform(matrix: Matrix, group: Sequence[int]) -> bool:
    return len({matrix[one][other] for one in group for other in group if one != other}) == 1


def _table(matrix: Matrix, groups: Sequence[Sequence[int]]) -> list[str]:
    """One row and column a group; a column is headed by its first node.

    Between the nodes of one group there is one distance, which stands on the diagonal.
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
