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
    telling = st.fixed_dictionaries({"cpu": amounts}, optional={"memory": amounts})
    zones = {each: draw(telling) for each in ids}
    far = st.sampled_from([10, 12, 20, 32])
    costs = {each: {other: draw(far) for other in ids} for each in ids}
    return node(zones, costs=costs)


def by_definition(there: ZonedNode, requested: dict[str, int]) -> Spread | None:
    """All sets, in their order."""

    def span(places: tuple[int, ...]) -> int:
        return sum(there.distances[i][j] for i in places for j in places)

    for count in range(1, len(there.zones) + 1):
        sets = list(combinations(range(len(there.zones)), count))
        fitting = [
            places
            for places in sets
            if all(
                all(there.zones[i] in there.available[name] for i in places)
                and sum(there.available[name][there.zones[i]] for i in places) >= amount
                for name, amount in requested.items()
            )
        ]
        if fitting:
            best = min(fitting, key=span)
            closest = span(best) == min(map(span, sets))
            return Spread(tuple(there.zones[i] for i in best), closest)
    return None


@given(nodes(), st.integers(1, 9), st.integers(0, 9))
def test_the_search_equals_a_full_enumeration(there: ZonedNode, cpu: int, memory: int) -> None:
    requested = {"cpu": cpu}
    if "memory" in there.available:
        requested["memory"] = memory
    assert spread(there, there.available, requested) == by_definition(there, requested)


def test_many_equal_numa_nodes_are_searched_quickly() -> None:
    """All sets of half of them would be 2.3 billion."""
    zones = {each: {"cpu": 1} for each in range(34)}
    costs = {i: {j: 10 if i == j else 20 for j in range(34)} for i in range(34)}
    there = node(zones, costs=costs)
    found = spread(there, there.available, {"cpu": 17})
    assert found == Spread(tuple(range(17)), True)
    assert spread(there, there.available, {"cpu": 35}) is None
