from __future__ import annotations

import pytest

from agent.allocate.devices.objectives import Objective, table
from agent.allocate.devices.pairs import links_of, worth
from agent.model.gpus import Ancestor, GpuPair
from tests.allocate.devices.builders import CARDS, asked, gpu, minors, nic, node
from tests.allocate.devices.links import VOLTA, VOLTA_PAIRS, matrix, symmetric


@pytest.mark.parametrize(
    ("pair", "bandwidth", "points"),
    [
        pytest.param(GpuPair("a", "b", Ancestor.SWITCH), 5_000, 50, id="PCIe alone"),
        pytest.param(
            GpuPair("a", "b", Ancestor.SYSTEM, links=12, mb_per_second=300_000),
            300_000,
            1_210,
            id="an A100's links through its switches",
        ),
        pytest.param(
            GpuPair("a", "b", None, links=1, mb_per_second=20_000), 20_000, 100, id="a link alone"
        ),
        pytest.param(GpuPair("a", "b"), 0, 0, id="nothing known"),
    ],
)
def test_worth_of_a_pair(pair: GpuPair, bandwidth: int, points: int) -> None:
    assert worth(pair, Objective.BANDWIDTH) == bandwidth
    assert worth(pair, Objective.BESTEFFORT) == points


def test_any_link_is_worth_more_than_none() -> None:
    nearest = worth(GpuPair("a", "b", Ancestor.BOARD), Objective.BANDWIDTH)
    slowest = GpuPair("a", "b", Ancestor.SYSTEM, links=1, mb_per_second=20_000)
    assert nearest < worth(slowest, Objective.BANDWIDTH)


def test_a_node_whose_driver_told_of_its_links() -> None:
    cards = [gpu(each, each // 4, f"p{each // 2}") for each in range(8)]
    devices = [nic(0), *reversed(cards)]
    used = {1: 1, 3: 1, 6: 1, 7: 1}
    by_points = links_of(devices, VOLTA_PAIRS, Objective.BESTEFFORT)
    assert minors(asked(node(devices, used, links=by_points), {CARDS: 2})) == [4, 5]
    by_speed = links_of(devices, VOLTA_PAIRS)
    assert minors(asked(node(devices, used, links=by_speed), {CARDS: 2})) == [0, 4]


def test_pairs_of_cards_that_are_gone_and_cards_without_pairs() -> None:
    links = links_of([gpu(2), gpu(5)], VOLTA_PAIRS[:1])
    assert links is not None
    assert links.minors == (2, 5)
    assert links.table.best(0b11, 1) == 0b01


def test_nodes_of_one_model_share_a_table() -> None:
    speeds = matrix(8, VOLTA_PAIRS, Objective.BANDWIDTH)
    again = matrix(8, VOLTA_PAIRS, Objective.BANDWIDTH)
    assert table(speeds) is table(again)
    assert table(speeds) is not table(speeds, Objective.BESTEFFORT)
    assert speeds != VOLTA


@pytest.mark.parametrize("objective", Objective)
def test_worth_tells_the_better_of_two_sets(objective: Objective) -> None:
    close = symmetric(4, lambda i, j: 9 if (i, j) in ((0, 1), (2, 3)) else 1)
    linked = table(close, objective)
    assert linked.best(0b1111, 2) == 0b0011
    assert linked.worth(0b0011, 0b1111) == linked.worth(0b1100, 0b1111)
    assert linked.worth(0b0011, 0b1111) > linked.worth(0b0110, 0b1111)
