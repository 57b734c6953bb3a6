"""GPUs by their links, on nodes with Device objects of the agent."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.properties import AllocatorRules, NodeProperties, node_properties
from agent.allocate.policies_in_force import NodePolicies
from agent.allocate.refusal import Refusal
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import GpuObjective, NumaPolicy
from agent.model.devices import device_object, interconnect
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.pod_request import PodRequest, request_of
from tests.allocate.devices.builders import CARDS, gpu, part
from tests.allocate.devices.links import VOLTA_PAIRS, best_by_enumeration, gpu_pairs, matrix
from tests.allocate.node_allocator.builders import minors, pod
from tests.allocate.nodes import node_options

EIGHT = [gpu(each, each // 4, f"p{each // 2}") for each in range(8)]
HGX_PAIRS = gpu_pairs(
    8,
    lambda i, j: (Ancestor.SYSTEM, Ancestor.NODE, Ancestor.SWITCHES)[
        (i // 4 == j // 4) + (i // 2 == j // 2)
    ],
    {(i, j): 12 for i in range(8) for j in range(i + 1, 8)},
)
SPEEDS = matrix(8, VOLTA_PAIRS, GpuObjective.BANDWIDTH)
DISTANCES = matrix(
    8,
    [msgspec.structs.replace(each, links=0) for each in VOLTA_PAIRS],
    GpuObjective.BESTEFFORT,
)


def node(
    pairs: Sequence[GpuPair],
    used: Collection[int] = (),
    *,
    table: bool = True,
    policy: NumaPolicy | None = None,
) -> NodeAllocator:
    """The node as a scheduler reads it. `used`: cards of other pods; `table`: with a partition
    table."""
    notes = interconnect.encode_links(EIGHT, pairs)
    if table:
        notes |= interconnect.encode_partitions(
            interconnect.gpu_partitions(interconnect.link_matrix(EIGHT, pairs))
        )
    body = device_object.encode("n", EIGHT, {}, notes)
    properties: NodeProperties = node_properties(
        "n",
        {},
        node_options((2, 1, 8, 2), policies=NodePolicies(numa_label=policy)),
        device_object.read(json.loads(json.dumps(body))),
        AllocatorRules(gpu_objective=GpuObjective.BANDWIDTH),
    )
    assert properties.faults == ()
    devices = {("gpu", minor): part(100) for minor in used}
    return NodeAllocator(
        properties, [AssignedPod("others", "others", PodAllocation("others", "others"), devices)]
    )


def pod_request(cards: int, uid: str = "a") -> PodRequest:
    return request_of(pod(uid, {CARDS: cards, "cpu": "2"}, "LSR"))


def cards(answer: NodeOffer | Refusal) -> tuple[int, ...]:
    assert isinstance(answer, NodeOffer), answer.text
    return tuple(sorted(minors(answer)))


def others(free: Collection[int]) -> set[int]:
    return set(range(8)) - set(free)


masks = st.integers(1, 255)


@given(masks, st.data())
def test_without_a_partition_table_the_cards_are_the_best_of_all_sets(
    free: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, free.bit_count()))
    allocator = node(VOLTA_PAIRS, others(tuple(members(free))), table=False)
    assert cards(allocator.offer(pod_request(count))) == best_by_enumeration(
        SPEEDS, free, count, DISTANCES
    )


@given(masks)
def test_with_a_partition_table_a_pair_is_as_fast_as_possible(free: int) -> None:
    if free.bit_count() >= 2:
        one, two = cards(node(VOLTA_PAIRS, others(tuple(members(free)))).offer(pod_request(2)))
        best, other = best_by_enumeration(SPEEDS, free, 2)
        assert SPEEDS[one][two] == SPEEDS[best][other]


@pytest.mark.parametrize(
    ("used", "count", "expected"),
    [
        pytest.param((), 3, (0, 1, 2), id="adjacent behind a switch"),
        pytest.param((1,), 2, (2, 3), id="a set of the table"),
        pytest.param((1, 3, 5, 7), 2, (0, 2), id="no set is free"),
        pytest.param((0,), 2, (2, 3), id="no set is split"),
        pytest.param((0, 1, 2), 3, (4, 5, 6), id="on one NUMA node"),
        pytest.param((0, 2, 4, 6), 3, (1, 3, 5), id="the closest, then the lowest"),
        pytest.param((5,), 3, (4, 6, 7), id="the quad that is split already"),
    ],
)
def test_cards_that_switches_link_equally(
    used: tuple[int, ...], count: int, expected: tuple[int, ...]
) -> None:
    assert cards(node(HGX_PAIRS, used).offer(pod_request(count))) == expected


@given(masks)
def test_the_cards_of_a_group_are_the_best_for_the_whole_group(free: int) -> None:
    allocator = node(VOLTA_PAIRS, others(tuple(members(free))), table=False)
    found = allocator.offer_all([pod_request(2, uid) for uid in "ab"])
    if free.bit_count() < 4:
        assert isinstance(found, Refusal)
        return
    assert not isinstance(found, Refusal), found.text
    one, two = map(cards, found)
    assert tuple(sorted({*one, *two})) == best_by_enumeration(SPEEDS, free, 4, DISTANCES)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(None, (0, 4)), (NumaPolicy.SINGLE_NUMA_NODE, (0, 2)), (NumaPolicy.BEST_EFFORT, (0, 2))],
)
def test_cards_and_cpus_of_one_numa_node(
    policy: NumaPolicy | None, expected: tuple[int, ...]
) -> None:
    """The fastest free pair spans two NUMA nodes."""
    allocator = node(VOLTA_PAIRS, (1, 3, 6, 7), policy=policy)
    found = allocator.offer(pod_request(2))
    assert cards(found) == expected
    if policy is not None:
        assert isinstance(found, NodeOffer)
        assert max(found.assigned_pod().allocation.cpus) < 16, "CPUs of NUMA node 0"
