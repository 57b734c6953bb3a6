"""What the kubelet's answers in tests/conformance/test_vectors.py do not show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.kubelet.cpu_assignment import shares, take
from agent.allocate.kubelet.static_policy import NotEnoughCpusError, StaticOptions
from agent.model.cpu.layout import of
from agent.model.cpu.topology import Cpu
from conformance.machines import cpus
from tests.allocate.machines import MACHINES, masks

PACKED = StaticOptions()
FULL = StaticOptions(full_pcpus_only=True)
NUMA = StaticOptions(distribute_cpus_across_numa=True)
FULL_NUMA = StaticOptions(full_pcpus_only=True, distribute_cpus_across_numa=True)
CORES = StaticOptions(distribute_cpus_across_cores=True)
CACHES = StaticOptions(prefer_align_cpus_by_uncorecache=True)


def test_more_than_is_free() -> None:
    layout = of(cpus([2, 1, 4, 2], "interleaved", 4))
    for options in (PACKED, NUMA, CACHES):
        with pytest.raises(NotEnoughCpusError) as error:
            take(layout, 0b111, 4, options)
        assert (error.value.requested, error.value.free) == (4, 3)


def test_whole_cores_with_fewer_threads_are_taken_first() -> None:
    """On a machine with cores of one and of two threads."""
    numbered = [(0, 0), (1, 0), (2, 2), (3, 3)]
    machine = [Cpu(number, core, 0, 0, 0, 0) for number, core in numbered]
    assert take(of(machine), 0b1111, 2, PACKED) == 0b1100
    assert take(of(machine), 0b1111, 3, PACKED) == 0b1101


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


@pytest.mark.parametrize(
    ("free", "count", "group", "nodes", "expected"),
    [
        pytest.param([8, 8, 8], 8, 1, 2, [4, 4, 0], id="the first of equal nodes"),
        pytest.param([4, 8, 8], 8, 1, 2, [0, 4, 4], id="the emptiest nodes leave the most even"),
        pytest.param([8, 8], 7, 1, 2, [4, 3], id="the first node takes the remainder"),
        pytest.param([8, 8], 6, 2, 2, [4, 2], id="in whole groups"),
        pytest.param([3, 20, 3], 11, 1, 3, [3, 5, 3], id="twice to one node if that is more even"),
        pytest.param([5, 5, 5], 14, 2, 3, None, id="odd CPUs make no groups"),
        pytest.param([1, 9], 8, 1, 2, None, id="a node with too few CPUs"),
    ],
)
def test_shares(
    free: list[int], count: int, group: int, nodes: int, expected: list[int] | None
) -> None:
    assert shares(free, count, group, nodes) == expected


def test_many_nodes_are_not_enumerated() -> None:
    expected = shares([64] * 34, 17 * 40 + 9, 1, 17)
    assert expected == [41] * 9 + [40] * 8 + [0] * 17
