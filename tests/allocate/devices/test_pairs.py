from __future__ import annotations

import pytest

from agent.allocate.devices.objectives import Objective, table
from agent.allocate.devices.pairs import Way, bandwidths, besteffort_scores
from tests.allocate.devices.links import VOLTA, VOLTA_LINKS, symmetric, volta_ways, ways

TWO = ways(2, lambda _i, _j: Way.HOST_BRIDGE)


@pytest.mark.parametrize(
    ("links", "version", "expected"),
    [
        pytest.param(0, 0, 3_000, id="PCIe alone"),
        pytest.param(1, 1, 20_000, id="one link"),
        pytest.param(12, 3, 300_000, id="an A100's through its switches"),
        pytest.param(18, 5, 900_000, id="a B200's"),
        pytest.param(2, 9, 100_000, id="a version of later"),
    ],
)
def test_bandwidth_of_a_pair(links: int, version: int, expected: int) -> None:
    assert bandwidths(TWO, ((0, links), (links, 0)), version)[0][1] == expected


def test_besteffort_adds_the_way_and_the_links() -> None:
    assert VOLTA[0][1] == 150
    assert VOLTA[0][2] == 130
    assert VOLTA[0][4] == 210
    assert VOLTA[0][7] == 10


def test_links_that_one_side_sees_otherwise_count_as_the_fewer() -> None:
    assert besteffort_scores(TWO, ((0, 4), (2, 0))) == ((0, 230), (230, 0))
    assert bandwidths(TWO, ((0, 4), (2, 0)), 1) == ((0, 40_000), (40_000, 0))


def test_nodes_of_one_model_share_a_table() -> None:
    matrix = bandwidths(ways(8, volta_ways), VOLTA_LINKS, 2)
    again = bandwidths(ways(8, volta_ways), VOLTA_LINKS, 2)
    assert table(matrix) is table(again)
    assert table(matrix) is not table(matrix, Objective.BESTEFFORT)


@pytest.mark.parametrize("objective", Objective)
def test_worth_tells_the_better_of_two_sets(objective: Objective) -> None:
    matrix = symmetric(4, lambda i, j: 9 if (i, j) in ((0, 1), (2, 3)) else 1)
    linked = table(matrix, objective)
    assert linked.best(0b1111, 2) == 0b0011
    assert linked.worth(0b0011, 0b1111) == linked.worth(0b1100, 0b1111)
    assert linked.worth(0b0011, 0b1111) > linked.worth(0b0110, 0b1111)
