"""Packed and distributed choices of CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.kubelet.cpu_assignment import NotEnoughCpusError, take
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout, of
from conformance.machines import cpus
from tests.allocate.machines import MACHINES, masks

PACKED = StaticOptions()
FULL = StaticOptions(full_pcpus_only=True)
NUMA = StaticOptions(distribute_cpus_across_numa=True)
FULL_NUMA = StaticOptions(full_pcpus_only=True, distribute_cpus_across_numa=True)
CORES = StaticOptions(distribute_cpus_across_cores=True)
CACHES = StaticOptions(prefer_align_cpus_by_uncorecache=True)


def machine(sockets: int, nodes: float, cores: int, threads: int, caches: int) -> Layout:
    return of(cpus([sockets, nodes, cores, threads], "interleaved", caches))


def taken(layout: Layout, free: str, count: int, options: StaticOptions) -> str:
    return str(CpuSet.from_int(take(layout, CpuSet.parse(free).mask, count, options)))


TWO_SOCKETS = machine(2, 1, 4, 2, 4)
"""Cores 0-3 in socket 0, 4-7 in socket 1; core n has CPUs n and n + 8; two L3 caches per
socket."""
TWO_NODES_EACH = machine(2, 2, 2, 2, 4)
SPANNING = machine(4, 0.5, 4, 2, 4)
"""Two NUMA nodes of two sockets each."""


@pytest.mark.parametrize(
    ("layout", "free", "count", "options", "expected"),
    [
        pytest.param(TWO_SOCKETS, "1-15", 8, PACKED, "4-7,12-15", id="a whole socket"),
        pytest.param(TWO_SOCKETS, "0-15", 4, PACKED, "0-1,8-9", id="whole cores, lowest first"),
        pytest.param(TWO_SOCKETS, "0-5,8-13", 2, PACKED, "4,12", id="the node with fewest free"),
        pytest.param(TWO_SOCKETS, "0-3,8-9", 1, PACKED, "2", id="a core in use before a free one"),
        pytest.param(
            TWO_SOCKETS, "0-3,8-9", 3, PACKED, "0,2,8", id="a core and a CPU of a used core"
        ),
        pytest.param(TWO_SOCKETS, "0-15", 4, CORES, "0-3", id="by CPU number in a socket"),
        pytest.param(TWO_SOCKETS, "0-15", 4, CACHES, "0-1,8-9", id="a whole L3"),
        pytest.param(TWO_SOCKETS, "0-6,8-14", 3, CACHES, "4-5,12", id="an odd number of one L3"),
        pytest.param(TWO_SOCKETS, "0-15", 10, NUMA, "0-2,4-6,8-9,12-13", id="evenly over nodes"),
        pytest.param(TWO_SOCKETS, "0-15", 8, NUMA, "0-3,8-11", id="no more nodes than needed"),
        pytest.param(TWO_SOCKETS, "0-15", 10, FULL_NUMA, "0-2,4-5,8-10,12-13", id="whole cores"),
        pytest.param(
            TWO_SOCKETS, "0-15", 9, FULL_NUMA, "0-4,8-11", id="not divisible into groups: packed"
        ),
        pytest.param(TWO_NODES_EACH, "1-15", 4, PACKED, "2-3,10-11", id="node of fullest socket"),
        pytest.param(TWO_NODES_EACH, "1-15", 8, PACKED, "4-7,12-15", id="socket before node"),
        pytest.param(SPANNING, "0-15", 4, PACKED, "0-1,8-9", id="a socket of a spanning node"),
        pytest.param(SPANNING, "1-15", 8, PACKED, "4-7,12-15", id="a whole spanning node"),
    ],
)
def test_choice(
    layout: Layout, free: str, count: int, options: StaticOptions, expected: str
) -> None:
    assert taken(layout, free, count, options) == expected


def test_an_input_for_which_the_kubelet_does_not_terminate() -> None:
    layout = of(cpus([4, 1, 8, 2], "interleaved", 4))
    free = layout.cpus & ~CpuSet.parse("0,8,16,24").mask
    chosen = take(layout, free, 54, FULL_NUMA)
    assert chosen.bit_count() == 54
    assert not chosen & ~free


def test_only_the_first_cores_of_an_l3_are_considered() -> None:
    layout = of(cpus([1, 1, 16, 2], "adjacent", 4))
    assert taken(layout, "1-31", 4, CACHES) == "8-11"


def test_the_best_combination_of_four_nodes_is_kept() -> None:
    layout = of(cpus([2, 4, 4, 2], "interleaved", 8))
    assert layout.node_ids(take(layout, layout.cpus, 32, NUMA)) == (0, 1, 2, 3)


def test_more_than_is_free() -> None:
    for options in (PACKED, NUMA, CACHES):
        with pytest.raises(NotEnoughCpusError) as error:
            take(TWO_SOCKETS, 0b111, 4, options)
        assert (error.value.requested, error.value.free) == (4, 3)


@given(st.data())
def test_the_requested_number_of_free_cpus_is_taken(data: st.DataObject) -> None:
    machine = data.draw(MACHINES)
    free = data.draw(masks(machine))
    count = data.draw(st.integers(0, free.bit_count()))
    options = data.draw(st.sampled_from([PACKED, FULL, NUMA, FULL_NUMA, CORES, CACHES]))
    chosen = take(of(machine), free, count, options)
    assert chosen.bit_count() == count
    assert not chosen & ~free
    assert take(of(reversed(machine)), free, count, options) == chosen


@given(st.data())
def test_packed_splits_as_few_cores_as_possible(data: st.DataObject) -> None:
    """With equal cores and enough wholly free ones, at most the last is taken in part."""
    layout = machine(2, 2, 4, 2, 4)
    free = data.draw(st.integers(0, layout.cpus))
    whole = layout.expand(layout.whole(free))
    cores = data.draw(st.integers(0, whole.bit_count() // 2))
    chosen = take(layout, free, cores * 2, PACKED)
    assert layout.expand(layout.whole(chosen)) == chosen


@given(st.integers(1, 64), st.sampled_from([1, 2]))
def test_distribution_over_equal_nodes_differs_by_at_most_one_group(
    groups: int, group: int
) -> None:
    layout = machine(2, 4, 4, 2, 8)
    options = FULL_NUMA if group == 2 else NUMA
    count = min(groups * group, layout.cpus.bit_count())
    chosen = take(layout, layout.cpus, count, options)
    cpus_of_nodes = [(node.cpus & chosen).bit_count() for node in layout.nodes]
    used = [each for each in cpus_of_nodes if each]
    assert len(used) == -(-count // 8)
    assert max(used) - min(used) <= group
