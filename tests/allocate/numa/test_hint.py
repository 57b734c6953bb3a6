from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa import koordinator_merge
from agent.allocate.numa.hint import WHOLE, NodeStatus, TopologyHint, resource_hints, subsets
from agent.model.cpu.policies import NumaExclusive, NumaPolicy

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


amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 4))
machines = st.lists(amounts, min_size=1, max_size=5).map(
    lambda amounts_of_nodes: dict(enumerate(amounts_of_nodes))
)


@given(
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 9)),
    machines,
    st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.NONE]),
    st.sampled_from([None, *NumaExclusive]),
    st.lists(st.sampled_from(NodeStatus), min_size=5, max_size=5),
    st.frozensets(st.integers(1, 31)),
    st.integers(0, 3),
)
def test_wider_masks_do_not_change_the_result(
    request, available, policy, exclusive, status, failing, spread
) -> None:
    """With an exclusive policy this holds for preferred hints; otherwise all masks are tried."""
    statuses = dict(enumerate(status))

    def merged(narrowest: bool) -> koordinator_merge.Merged:
        hints = resource_hints(
            request,
            available,
            available,
            policy,
            lambda mask: mask * 7 % (spread + 1),
            lambda mask: mask not in failing,
            narrowest=narrowest,
        )
        return koordinator_merge.merge([hints], available, policy, exclusive, statuses)

    all_masks, narrowest = merged(False), merged(True)
    if exclusive is NumaExclusive.REQUIRED and not narrowest.preferred:
        return
    assert (narrowest.mask, narrowest.preferred, narrowest.admit, narrowest.score) == (
        all_masks.mask,
        all_masks.preferred,
        all_masks.admit,
        all_masks.score,
    )
    assert bool(narrowest.lacking) == bool(all_masks.lacking)


@given(
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 9)),
    machines,
    st.sampled_from([each for each in NumaPolicy if each is not NumaPolicy.NONE]),
    st.sampled_from([None, *NumaExclusive]),
    st.lists(st.sampled_from(NodeStatus), min_size=5, max_size=5),
    st.frozensets(st.integers(1, 31)),
    st.lists(st.integers(1, 31), max_size=8, unique=True),
    st.integers(0, 3),
)
def test_masks_that_the_other_provider_does_not_prefer_do_not_change_the_result(
    request, available, policy, exclusive, status, failing, offered, spread
) -> None:
    """Hints with more nodes are omitted first; if no hint is preferred then, all are tried."""
    machine = (1 << len(available)) - 1
    gpu_masks = sorted({each & machine for each in offered} - {0}, key=int.bit_count)
    fewest = gpu_masks[0].bit_count() if gpu_masks else 0
    hints = tuple(
        TopologyHint(each, each.bit_count() == fewest, 500 * (each % 2)) for each in gpu_masks
    )

    def merged(others: tuple[TopologyHint, ...], widest: int | None) -> koordinator_merge.Merged:
        cpu_hints = resource_hints(
            request,
            available,
            available,
            policy,
            lambda mask: mask * 7 % (spread + 1),
            lambda mask: mask not in failing,
            widest=widest,
        )
        return koordinator_merge.merge(
            [cpu_hints, {"gpu": others}], available, policy, exclusive, dict(enumerate(status))
        )

    narrow = merged(tuple(hint for hint in hints if hint.preferred), fewest or None)
    if narrow.preferred:
        assert narrow == merged(hints, None)


def test_by_size_then_lexicographically() -> None:
    assert list(subsets([2, 0, 65])) == [
        1 << 0,
        1 << 2,
        1 << 65,
        1 << 0 | 1 << 2,
        1 << 0 | 1 << 65,
        1 << 2 | 1 << 65,
        1 << 0 | 1 << 2 | 1 << 65,
    ]


@given(st.sets(st.integers(0, 70), max_size=10))
def test_all_of_up_to_ten_nodes(nodes: set[int]) -> None:
    assert len(set(subsets(nodes))) == 2 ** len(nodes) - 1


@given(st.sets(st.integers(0, 200), min_size=11, max_size=64))
def test_more_nodes_do_not_explode(nodes: set[int]) -> None:
    ids = sorted(nodes)
    masks = list(subsets(nodes))
    assert len(masks) == len(set(masks)) <= WHOLE + len(ids) * (len(ids) + 1) // 2
    assert [mask.bit_count() for mask in masks] == sorted(mask.bit_count() for mask in masks)
    assert masks[-1] == sum(1 << node for node in ids)
    assert {1 << node for node in ids} <= set(masks)
    for one, two in itertools.pairwise(ids):
        assert 1 << one | 1 << two in masks


def test_thirty_four_nodes_are_tried_in_pairs_and_runs() -> None:
    masks = set(subsets(range(34)))
    assert 1 << 3 | 1 << 30 in masks
    assert 0b111 << 9 in masks
    assert 0b1011 not in masks


def test_no_nodes_give_no_subsets() -> None:
    assert list(subsets([])) == []
