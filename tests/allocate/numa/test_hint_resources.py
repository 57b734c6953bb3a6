from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa.hint import TopologyHint, resource_hints
from agent.model.cpu.policies import NumaPolicy

FOUR = {node: {"cpu": 4000, "memory": 16} for node in (0, 1)}


def always_fits(mask: int) -> bool:
    return True


def hints(
    request: dict[str, int],
    available: dict[int, dict[str, int]],
    policy: NumaPolicy = NumaPolicy.BEST_EFFORT,
) -> dict[str, tuple[TopologyHint, ...]]:
    return resource_hints(request, available, FOUR, policy, lambda mask: mask, always_fits)


def test_all_are_preferred_under_restricted() -> None:
    found = hints({"cpu": 2000}, FOUR, NumaPolicy.RESTRICTED)
    assert all(hint.preferred for hint in found["cpu"])


def test_resources_that_no_node_counts_have_no_hints() -> None:
    assert hints({"example.com/fpga": 1, "cpu": 0}, FOUR) == {}


def test_no_trial_is_made_when_the_sums_are_too_small() -> None:
    tried: list[int] = []

    def trial(mask: int) -> bool:
        tried.append(mask)
        return True

    resource_hints({"cpu": 6000}, FOUR, FOUR, NumaPolicy.BEST_EFFORT, lambda mask: 0, trial)
    assert tried == [0b11]


def test_many_nodes_of_which_two_have_cpus() -> None:
    available = {node: {"cpu": 36000 if node < 2 else 0, "memory": 480} for node in range(34)}
    tried: list[int] = []

    def trial(mask: int) -> bool:
        tried.append(mask)
        return True

    found = resource_hints(
        {"cpu": 40000, "memory": 100},
        available,
        available,
        NumaPolicy.BEST_EFFORT,
        lambda mask: 0,
        trial,
    )
    assert found["cpu"] == (TopologyHint(0b11, True),)
    assert found["memory"][0] == TopologyHint(0b11, True)
    assert len(tried) < 100


@settings(max_examples=200)
@given(st.data())
def test_the_hints_equal_an_enumeration_of_all_masks(data: st.DataObject) -> None:
    nodes = sorted(data.draw(st.sets(st.sampled_from([0, 1, 2, 5, 64]), min_size=1)))
    amount = st.integers(-1, 3)
    available = {node: {"cpu": data.draw(amount), "memory": data.draw(amount)} for node in nodes}
    request = {"cpu": data.draw(st.integers(1, 4)), "memory": data.draw(st.integers(1, 4))}

    def free(members: tuple[int, ...], resource: str) -> int:
        return sum(max(0, available[node][resource]) for node in members)

    def fits(members: tuple[int, ...]) -> bool:
        enough = all(free(members, resource) >= request[resource] for resource in request)
        return enough and sum(members) % 3 != 1

    expected: dict[str, list[tuple[int, ...]]] = {resource: [] for resource in request}
    for size in range(1, len(nodes) + 1):
        for members in itertools.combinations(nodes, size):
            for resource in request:
                if all(available[node][resource] > 0 for node in members) and fits(members):
                    expected[resource].append(members)

    def ids(mask: int) -> tuple[int, ...]:
        return tuple(node for node in nodes if mask >> node & 1)

    found = resource_hints(
        request,
        available,
        {node: {"cpu": 3, "memory": 3} for node in nodes},
        NumaPolicy.BEST_EFFORT,
        lambda mask: 0,
        lambda mask: fits(ids(mask)),
    )
    for resource, sets in expected.items():
        assert [ids(hint.mask or 0) for hint in found[resource]] == sets
        preferred = [len(members) == len(sets[0]) for members in sets]
        assert [hint.preferred for hint in found[resource]] == preferred
