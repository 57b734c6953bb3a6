from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.nrt.node import ZonedNode
from agent.allocate.nrt.score import Spread, spread
from tests.allocate.nrt.values import node

amounts = st.integers(0, 4)


@st.composite
def nodes(draw: st.DrawFn) -> ZonedNode:
    """A few NUMA nodes with any ids and distances. Not every node reports every resource."""
    ids = draw(st.lists(st.integers(0, 80), min_size=1, max_size=5, unique=True))
    resources = st.fixed_dictionaries({"cpu": amounts}, optional={"memory": amounts})
    zones = {each: draw(resources) for each in ids}
    far = st.sampled_from([10, 12, 20, 32])
    costs = {each: {other: draw(far) for other in ids} for each in ids}
    return node(zones, costs=costs)


def by_enumeration(node_: ZonedNode, requested: dict[str, int]) -> Spread | None:
    """The best of all sets, in their order."""

    def span(indices: tuple[int, ...]) -> int:
        return sum(node_.distances[i][j] for i in indices for j in indices)

    for count in range(1, len(node_.zones) + 1):
        sets = list(combinations(range(len(node_.zones)), count))
        fitting = [
            indices
            for indices in sets
            if all(
                all(node_.zones[i] in node_.available[name] for i in indices)
                and sum(node_.available[name][node_.zones[i]] for i in indices) >= amount
                for name, amount in requested.items()
            )
        ]
        if fitting:
            best = min(fitting, key=span)
            closest = span(best) == min(map(span, sets))
            return Spread(tuple(node_.zones[i] for i in best), closest)
    return None


@given(nodes(), st.integers(1, 9), st.integers(0, 9))
def test_the_search_equals_a_full_enumeration(node_: ZonedNode, cpu: int, memory: int) -> None:
    requested = {"cpu": cpu}
    if "memory" in node_.available:
        requested["memory"] = memory
    assert spread(node_, node_.available, requested) == by_enumeration(node_, requested)


def test_many_equal_numa_nodes_are_searched_quickly() -> None:
    """There are 2.3 billion sets of half of them."""
    zones = {each: {"cpu": 1} for each in range(34)}
    costs = {i: {j: 10 if i == j else 20 for j in range(34)} for i in range(34)}
    node_ = node(zones, costs=costs)
    found = spread(node_, node_.available, {"cpu": 17})
    assert found == Spread(tuple(range(17)), True)
    assert spread(node_, node_.available, {"cpu": 35}) is None
