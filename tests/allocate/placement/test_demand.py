"""Demand: the kinds of earlier pods; and the free amounts of a node."""

from __future__ import annotations

import pytest

from agent.allocate.placement import demand as demand_module
from agent.allocate.placement.demand import (
    MAX_KINDS,
    Demand,
    FreeAmounts,
    most_frequent,
    node_capacity,
)
from agent.model.pod_request import GPU_MILLI, PodKind


def test_a_placement_is_rebuilt_when_the_pods_have_doubled() -> None:
    demand, built, rebuilt_at = Demand(), 0, []
    for _ in range(1000):
        demand.add(PodKind(1, 1))
        if demand.due(built):
            built = demand.pods
            rebuilt_at.append(built)
    assert rebuilt_at == [1, 50, 100, 200, 400, 800]


def test_the_rarest_kinds_are_dropped() -> None:
    demand = Demand()
    for cpu in range(2 * MAX_KINDS):
        demand.add(PodKind(cpu, 0))
    demand.add(PodKind(7, 0))
    demand.add(PodKind(1_000_000, 0))
    assert len(demand.counts) == MAX_KINDS
    assert demand.counts[PodKind(7, 0)] == 2
    assert demand.pods == 2 * MAX_KINDS + 2


def test_old_pods_count_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_module, "MAX_PODS", 100)
    demand = Demand({PodKind(1, 0): 100, PodKind(2, 0): 1})
    demand.add(PodKind(3, 0))
    assert demand.counts == {PodKind(1, 0): 50}


def test_pods_that_two_processes_counted_count_once() -> None:
    demand = Demand({PodKind(1, 0): 10, PodKind(2, 0): 1})
    demand.merge({PodKind(1, 0): 8, PodKind(3, 0): 5})
    assert demand.counts == {PodKind(1, 0): 10, PodKind(2, 0): 1, PodKind(3, 0): 5}
    assert demand.pods == 16


def test_equally_frequent_kinds_are_kept_in_order() -> None:
    counts = {PodKind(3, 0): 1, PodKind(2, 0): 1, PodKind(1, 0): 1}
    assert list(most_frequent(counts, 2)) == [PodKind(1, 0), PodKind(2, 0)]


def test_a_pod_fits_by_sums_cards_and_model() -> None:
    free = FreeAmounts(node_capacity("n", 8, 8, 2, "T4"), 8, 8, {0: 400, 1: GPU_MILLI})
    assert free.fits(PodKind(8, 8, 1, GPU_MILLI, ("G2", "T4")))
    assert free.fits(PodKind(8, 8, 2, 400))
    assert not free.fits(PodKind(8, 8, 2, 410))
    assert not free.fits(PodKind(9, 8))
    assert not free.fits(PodKind(8, 9))
    assert not free.fits(PodKind(1, 1, 1, GPU_MILLI, ("G2",)))
