from __future__ import annotations

import pytest

from agent.allocate.devices.gpu_sets import table
from agent.allocate.devices.inventory import links_of, pair_value
from agent.model.cpu.policies import GpuObjective
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.interconnect import GpuLink, Interconnect
from tests.allocate.devices.links import VOLTA, VOLTA_PAIRS, matrix, symmetric


@pytest.mark.parametrize(
    ("pair", "bandwidth", "points"),
    [
        pytest.param(GpuPair("a", "b", Ancestor.SWITCH), 5_000, 50, id="PCIe only"),
        pytest.param(
            GpuPair("a", "b", Ancestor.SYSTEM, links=12, mb_per_second=300_000),
            300_000,
            1_210,
            id="an A100's links through its switches",
        ),
        pytest.param(
            GpuPair("a", "b", None, links=1, mb_per_second=20_000), 20_000, 100, id="a link only"
        ),
        pytest.param(GpuPair("a", "b"), 0, 0, id="nothing known"),
    ],
)
def test_score_of_a_pair(pair: GpuPair, bandwidth: int, points: int) -> None:
    assert pair_value(pair, GpuObjective.BANDWIDTH) == bandwidth
    assert pair_value(pair, GpuObjective.BESTEFFORT) == points


def test_any_link_scores_higher_than_no_link() -> None:
    nearest = pair_value(GpuPair("a", "b", Ancestor.BOARD), GpuObjective.BANDWIDTH)
    slowest = GpuPair("a", "b", Ancestor.SYSTEM, links=1, mb_per_second=20_000)
    assert nearest < pair_value(slowest, GpuObjective.BANDWIDTH)


def test_an_unreported_pair_scores_lowest() -> None:
    near = GpuLink(Ancestor.SWITCH)
    links = links_of({(2, 5): near, (5, 7): near})
    assert links is not None
    assert links.minors == (2, 5, 7)
    assert links.table.score(0b101, 0b111) == (0, 0, 0)
    assert links.table.best(0b111, 2) == 0b011


@pytest.mark.parametrize("decoded", [{}, {(0, card): GpuLink(links=1) for card in range(1, 17)}])
def test_without_links_and_with_too_many_cards_there_is_no_table(decoded: Interconnect) -> None:
    assert links_of(decoded) is None


def test_nodes_of_one_model_share_a_table() -> None:
    speeds = matrix(8, VOLTA_PAIRS, GpuObjective.BANDWIDTH)
    same_speeds = matrix(8, VOLTA_PAIRS, GpuObjective.BANDWIDTH)
    assert table(speeds) is table(same_speeds)
    assert table(speeds) is not table(speeds, GpuObjective.BESTEFFORT)
    assert speeds != VOLTA


@pytest.mark.parametrize("objective", GpuObjective)
def test_scores_order_two_sets(objective: GpuObjective) -> None:
    speeds_of_pairs = symmetric(4, lambda i, j: 9 if (i, j) in ((0, 1), (2, 3)) else 1)
    linked = table(speeds_of_pairs, objective)
    assert linked.best(0b1111, 2) == 0b0011
    assert linked.score(0b0011, 0b1111) == linked.score(0b1100, 0b1111)
    assert linked.score(0b0011, 0b1111) > linked.score(0b0110, 0b1111)
