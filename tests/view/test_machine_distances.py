from __future__ import annotations

import pytest

from agent.model.cpu.cpuset import EMPTY
from agent.model.cpu.topology import NumaNode
from agent.view import machine


def nodes(*rows: tuple[int, ...]) -> list[NumaNode]:
    return [NumaNode(index, EMPTY, 0, row) for index, row in enumerate(rows)]


@pytest.mark.parametrize("rows", [[(10,)], [(), ()], [(10, 20), ()]])
def test_distances_without_differences(rows: list[tuple[int, ...]]) -> None:
    assert machine.distances(nodes(*rows), 80) == []


def pairs(count: int) -> list[NumaNode]:
    """Nodes in pairs: the distance is 12 within a pair, 20 between pairs."""
    return nodes(
        *(
            tuple(
                10 if row == column else 12 if row // 2 == column // 2 else 20
                for column in range(count)
            )
            for row in range(count)
        )
    )


def test_equal_nodes_share_a_row_if_the_table_is_too_wide() -> None:
    assert machine.distances(pairs(6), 20) == [
        "Distances between NUMA nodes",
        "  nodes that are alike share a row; 10 within a node",
        "       0  2  4",
        "  0-1 12 20 20",
        "  2-3 20 12 20",
        "  4-5 20 20 12",
    ]


def test_the_table_has_counts_if_shared_rows_are_too_wide() -> None:
    assert machine.distances(pairs(6), 10) == [
        "Distances between NUMA nodes, and how often each occurs",
        "    10  6x",
        "    12  6x",
        "    20  24x",
    ]
