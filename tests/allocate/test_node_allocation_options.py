from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from agent.model.cpu.cpuset import CpuSet
from tests.allocate.nodes import node_options


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, 1001.0])
def test_an_invalid_amplification_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="cpu_ratio"):
        node_options(cpu_ratio=ratio)
    with pytest.raises(ValueError, match="cpu_ratio"):
        replace(node_options(), cpu_ratio=ratio)


@pytest.mark.parametrize("ratio", [-2.0, 0.0, 0.5, 1.0])
def test_a_ratio_up_to_1_amplifies_nothing(ratio: float) -> None:
    assert node_options(cpu_ratio=ratio).totals() == node_options().totals()


def test_a_max_ref_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_ref: 0 pods"):
        node_options(max_ref=0)


def test_a_numa_node_has_no_cpu_when_more_is_reserved_than_it_has() -> None:
    node = node_options(reserved=CpuSet.parse("0-7"))
    assert node.totals()[0]["cpu"] == 0
    smaller = replace(node, numa_allocatable={0: {"cpu": 5000}, 1: {"cpu": 8000}})
    assert {each: held["cpu"] for each, held in smaller.totals().items()} == {0: 0, 1: 8000}


def test_cpu_is_amplified_without_a_cpu_topology_too() -> None:
    node = replace(node_options(cpu_ratio=1.5), layout=None)
    assert [held["cpu"] for held in node.totals().values()] == [12_000, 12_000]
