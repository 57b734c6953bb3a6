from __future__ import annotations

import pytest

from agent.allocate.devices.gpu_sets import table
from agent.allocate.devices.inventory import inventory, links_of, node_devices, pair_value
from agent.model.cpu.policies import GpuObjective
from agent.model.devices.device_allocation import sum_functions, virtual_functions
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.interconnect import GpuLink, Interconnect
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.allocate.devices.builders import BYTES, MEMORY, RATIO, gpu, nic, node, part
from tests.allocate.devices.links import VOLTA, VOLTA_PAIRS, matrix, symmetric


def test_free_amounts_are_those_that_no_pod_holds() -> None:
    stock = node([gpu(0), gpu(1), gpu(2)], {0: 30, 2: 100}).stocks["gpu"]
    assert stock.free == {0: part(70), 1: part(100), 2: part(0)}
    assert (stock.used, stock.idle) == (0b101, 0b010)
    assert (stock.sums[RATIO], stock.sums[MEMORY]) == (170, BYTES * 170 // 100)


def test_an_unhealthy_device_has_nothing_free_but_may_be_in_use() -> None:
    stock = node([gpu(0, healthy=False), gpu(1)], {0: 30}).stocks["gpu"]
    assert stock.free == {0: {}, 1: part(100)}
    assert (stock.used, stock.idle) == (0b01, 0b10)


def test_over_allocated_and_removed_devices() -> None:
    stock = node([gpu(0)], {0: 130, 5: 10}).stocks["gpu"]
    assert stock.free == {0: part(0)}
    assert stock.used == 0b100001
    assert "rdma" not in node([gpu(0)], nics={0: 10}).stocks


@pytest.mark.parametrize("minor", [-1, 1024, 10**18])
def test_an_invalid_minor_is_ignored(minor: int) -> None:
    """Any user may write it into the annotation of a pod."""
    stock = node_devices(inventory([gpu(0)]), {("gpu", minor): part(100)}).stocks["gpu"]
    assert (stock.free, stock.used, stock.idle) == ({0: part(100)}, 0, 1)


def test_the_later_of_two_devices_with_one_minor_counts() -> None:
    fleet = inventory([gpu(0, 0, "p0"), gpu(0, 1, "p1"), nic(-1), nic(5000)]).fleets
    assert fleet["gpu"].pcies == {"p1": 1}
    assert "rdma" not in fleet


def test_virtual_functions_that_pods_hold() -> None:
    held = '{"minor": 1, "extension": {"vfs": [{"busID": "a"}, {"busID": "b", "minor": 3}]}}'
    text = f'{{"rdma": [{held}, {{"minor": 2, "extension": null}}], "gpu": null}}'
    assert virtual_functions({DEVICE_ALLOCATED: text}) == {("rdma", 1): frozenset("ab")}
    assert virtual_functions({}) == {}
    more = {("rdma", 1): frozenset("c"), ("rdma", 2): frozenset("a")}
    assert sum_functions([virtual_functions({DEVICE_ALLOCATED: text}), more]) == {
        ("rdma", 1): frozenset("abc"),
        ("rdma", 2): frozenset("a"),
    }


def test_every_resource_of_an_unknown_type_has_a_weight() -> None:
    fleets = inventory([gpu(0), nic(0), Device("xpu", "x", 0, {"b/b": 2, "a/a": 1})]).fleets
    assert fleets["xpu"].weighed == ("a/a", "b/b")
    assert fleets["gpu"].weighed == (RATIO, MEMORY)
    assert fleets["xpu"].sums == {"a/a": 1, "b/b": 2}


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
