"""Nodes with the same state number have the same feasibility for a pod."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.node_states import NodeStates, digest
from agent.allocate.node_allocator.properties import AllocatorRules, node_properties
from agent.model.pod_request import Reads
from agent.model.settings import plugin_args
from agent.model.settings.plugin_args import Rules
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import (
    Feasibility,
    Feasible,
    GroupRequirements,
    PodRequirements,
    RequirementsCheck,
)
from tests.fixtures.fleet import (
    CARDS,
    EIGHT,
    SMALL,
    Kind,
    gpu_pod,
    gpu_share_pod,
    guaranteed_pod,
    ls_pod,
    owner,
)
from tests.scheduler import clusters


def numbers(cluster: SchedulerCache, kind: Kind) -> dict[str, int | None]:
    """The state number of each node."""
    states, request = NodeStates(), clusters.pod_request(kind)
    found = {}
    for node in cluster.nodes():
        reads = request.reads(node.allocator.properties)
        of = states.of_properties(node.allocator.properties, reads)
        found[node.name] = None if of is None else states.of(of, node.allocator.state(reads), reads)
    return found


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (owner(2, 2), [{"a", "b"}, {"e"}, {"c", "d"}]),
        (ls_pod("2", 1), [{"a", "b"}, {"e"}, {"c", "d"}]),
        (guaranteed_pod("1", "1Gi"), [{"a", "b", "c", "d"}, {"e"}]),
    ],
)
def test_empty_nodes_of_one_model_have_one_state_number(kind: Kind, parts: list[set[str]]) -> None:
    """A pod without needs reads only the report of NUMA nodes, which matters only for a kubelet
    with the policy restricted."""
    cluster = clusters.cluster({"a": SMALL, "b": SMALL, "c": CARDS, "d": CARDS, "e": EIGHT})
    found = numbers(cluster, kind)
    assert len({found[min(each)] for each in parts}) == len(parts)
    for each in parts:
        assert len({found[name] for name in each}) == 1


@pytest.mark.parametrize(
    "kind", [owner(2, 2), ls_pod("2", 1, "BestEffort"), gpu_pod(1), gpu_share_pod(50)]
)
def test_a_pod_changes_the_state_number_until_it_is_released(kind: Kind) -> None:
    """The UUIDs of the cards differ between the nodes."""
    cluster = clusters.cluster({"a": CARDS, "b": CARDS})
    same = numbers(cluster, kind)
    assert same["a"] == same["b"] is not None
    assert clusters.reserve(cluster, kind, "a")
    changed = numbers(cluster, kind)
    assert changed["a"] != changed["b"]
    assert cluster.release("uid-p")
    after_release = numbers(cluster, kind)
    assert after_release["a"] == after_release["b"]


def test_large_properties_are_dropped_earlier() -> None:
    node = clusters.cluster({"a": SMALL}).node("a")
    assert node is not None
    states, number = NodeStates(max_bytes=100_000), None
    rules = AllocatorRules(scoring=plugin_args.defaults(Rules.PROPOSAL))
    for first in range(100):
        allocatable = {f"example.com/resource-{each}": 1 for each in range(first, first + 100)}
        properties = msgspec.structs.replace(
            node.allocator.properties, allocatable=allocatable, rules=rules
        )
        number = states.of_properties(properties, Reads.CPUS)
        assert states.of_properties(properties, Reads.CPUS) == number
    assert number == 100
    assert len(states._numbers) < 50


amounts = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.text("ab", max_size=2), st.integers())
)
parts = st.tuples(amounts, st.integers(0, 1 << 200), st.none() | st.text("ab", max_size=2))


@given(parts, parts)
def test_different_states_have_different_digests(state: object, other: object) -> None:
    assert state == other or digest(state) != digest(other)


def test_a_state_number_is_not_reused_for_another_state() -> None:
    cluster = clusters.cluster({"a": SMALL})
    node = cluster.node("a")
    assert node is not None
    states = NodeStates(max_states=3)
    of = states.of_properties(node.allocator.properties, Reads.CPUS)
    assert of is not None
    state_numbers = [states.of(of, node.allocator.state(Reads.CPUS), Reads.CPUS)]
    for number in range(8):
        assert clusters.reserve(cluster, owner(2, 2), "a", f"p{number}")
        state_numbers.append(states.of(of, node.allocator.state(Reads.CPUS), Reads.CPUS))
    assert len(set(state_numbers)) == len(state_numbers)


MODELS = {"a": SMALL, "b": SMALL, "c": CARDS, "d": CARDS, "e": EIGHT, "f": EIGHT}
KINDS = (
    owner(2, 2),
    owner(6, 4, "FullPCPUs"),
    owner(6, 4, "SpreadByPCPUs", "LSE"),
    owner(26, 4, "FullPCPUs"),
    ls_pod("3", 4),
    ls_pod("2", 8, "Restricted"),
    ls_pod("6", 16, "SingleNUMANode"),
    gpu_pod(2, 8, 1),
    gpu_pod(1),
    gpu_share_pod(30),
    guaranteed_pod("4", "8Gi"),
)
steps = st.tuples(
    st.integers(0, len(KINDS) - 1), st.sampled_from(sorted(MODELS)), st.integers(0, 9)
)


@settings(max_examples=40)
@example([(2, "a", 0), (1, "b", 1)])
@given(st.lists(steps, min_size=10, max_size=40))
def test_a_cached_feasibility_equals_that_of_each_node(history: list[tuple[int, str, int]]) -> None:
    """`history`: each step reserves for a pod, or releases the pod if its name exists.
    The example: equally many CPUs on equally many NUMA nodes, on whole cores or on half cores."""
    cluster = clusters.cluster(MODELS)
    rows: dict[Hashable, dict[int, Feasibility]] = {}
    for step, (kind, node, name) in enumerate(history):
        if not cluster.release(f"uid-p{name}"):
            clusters.reserve(cluster, KINDS[kind], node, f"p{name}")
        if step % 5 == 4 or step == len(history) - 1:
            for each in KINDS:
                request = clusters.pod_request(each)
                for requirements in (PodRequirements(request), GroupRequirements(request, 2)):
                    check = RequirementsCheck(cluster, requirements)
                    row = rows.setdefault(check.equivalence_class, {})
                    shared = [value(check.run(name, row)) for name in MODELS]
                    assert shared == [value(check.run(name, {})) for name in MODELS]


def value(found: Feasibility) -> object:
    return found.key if isinstance(found, Feasible) else (found.reason, found.unresolvable)


def test_a_pod_that_has_ended_leaves_no_resource_in_the_state() -> None:
    rules = AllocatorRules(scoring=plugin_args.defaults(Rules.PROPOSAL))
    allocator = NodeAllocator(node_properties("n", {}, rules=rules))
    empty = allocator.state(Reads.CPUS)
    requests = {"example.com/a": 1, "example.com/b": 0}
    allocator.record(AssignedPod("u", "ns/p", PodAllocation("u", "ns/p"), requests=requests))
    allocator.release("u")
    assert (allocator.state(Reads.CPUS), allocator.requested) == (empty, {})
