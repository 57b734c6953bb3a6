from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.refusal import Reason, Refusal
from agent.scheduler.extender.handlers import (
    best_node,
    filter_result,
    no_nodes,
    only_node,
    priorities,
)
from agent.scheduler.state.pod_info import UNKNOWN_NODE, Feasibility, Feasible

FULL = Refusal(Reason.GROUP, detail="no room")
BROKEN = Refusal(Reason.NO_AGENT)
NODES = ["c", "a", "b", "d"]


def test_feasible_nodes_are_returned_and_the_others_have_reasons() -> None:
    result = filter_result(NODES, [Feasible(3), FULL, BROKEN, Feasible(9)])
    assert result.node_names == ["c", "d"]
    assert result.failed_nodes == {"a": "no room"}
    assert result.failed_and_unresolvable_nodes == {"b": "it has no agent"}


def test_if_all_nodes_fit_their_names_are_returned_unchanged() -> None:
    result = filter_result(NODES, [Feasible(1)] * 4)
    assert result.node_names is NODES
    assert not result.failed_nodes


def test_the_reasons_are_returned_if_no_node_is_feasible() -> None:
    result = filter_result(["a", "x"], [FULL, UNKNOWN_NODE])
    assert not result.node_names
    assert result.failed_nodes == {"a": "no room"}
    assert result.failed_and_unresolvable_nodes == {"x": "the node is not known to the scheduler"}


def test_few_reasons_have_amounts_and_many_do_not() -> None:
    few = [Refusal(Reason.NOT_ENOUGH_CPUS, "cpu", 9000, 1000 * free) for free in range(5)]
    nodes = [f"n{place}" for place in range(7)]
    result = filter_result(nodes[:5], few)
    assert result.failed_nodes == {
        f"n{free}": f"cpu: not enough free CPUs (requested 9, available {free})"
        for free in range(5)
    }
    more = [*few, Refusal(Reason.NOT_ENOUGH_CPUS, "cpu", 9000, 5000), BROKEN]
    result = filter_result(nodes, more)
    assert result.failed_nodes == dict.fromkeys(nodes[:6], "cpu: not enough free CPUs")
    assert result.failed_and_unresolvable_nodes == {"n6": "it has no agent"}


def test_score_precedes_order_and_order_precedes_the_name() -> None:
    assert best_node(NODES, [Feasible(5, (0,)), Feasible(6, (9,)), FULL, Feasible(6, (2,))]) == "d"
    assert best_node(NODES, [Feasible(6, (2,)), Feasible(5), Feasible(6, (2,)), FULL]) == "b"
    assert best_node([], []) is None


def test_a_rejection_of_the_pod_is_the_reason_for_every_node() -> None:
    assert no_nodes(["a", "b"], "odd").failed_and_unresolvable_nodes == {"a": "odd", "b": "odd"}


def test_only_one_node_is_returned_if_it_was_requested() -> None:
    result = only_node(["a", "b"], "b", "bound there")
    assert result.node_names == ("b",)
    assert result.failed_and_unresolvable_nodes == {"a": "bound there"}
    result = only_node(["a"], "b", "bound there")
    assert not result.node_names
    assert result.failed_and_unresolvable_nodes == {"a": "bound there"}


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.builds(Feasible, st.integers(0, 3), st.tuples(st.integers(0, 2))) | st.just(FULL),
        max_size=12,
    ),
    st.randoms(),
)
def test_the_choice_does_not_depend_on_the_order_of_the_names(
    results: dict[str, Feasibility], random: st.DataObject
) -> None:
    names = list(results)
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert best_node(names, [results[each] for each in names]) == best_node(
        shuffled, [results[each] for each in shuffled]
    )


def scores(raw: msgspec.Raw) -> dict[str, int]:
    entries = json.loads(bytes(raw))
    assert len({each["Host"] for each in entries}) == len(entries)
    return {each["Host"]: each["Score"] for each in entries}


def test_only_the_best_node_has_ten_and_the_worst_has_zero() -> None:
    nodes = ["a", "b", "c", "d", "e"]
    raw = priorities(nodes, [Feasible(90), Feasible(50), FULL, Feasible(90), Feasible(10)])
    assert scores(raw) == {"a": 10, "b": 4, "d": 9, "e": 0}


def test_equal_nodes_have_different_scores() -> None:
    assert scores(priorities(["b", "a"], [Feasible(0), Feasible(0)])) == {"a": 10, "b": 9}


def test_equal_nodes_have_equal_scores_if_plugins_decide() -> None:
    results = [
        Feasible(90),
        Feasible(50, (1,)),
        FULL,
        Feasible(90),
        Feasible(50, (2,)),
        Feasible(10),
    ]
    assert scores(priorities(["a", "b", "c", "d", "e", "f"], results, decides=False)) == {
        "a": 10,
        "b": 5,
        "d": 10,
        "e": 5,
        "f": 0,
    }
    assert scores(priorities(["b", "a"], [Feasible(3), Feasible(3)], decides=False)) == {
        "a": 10,
        "b": 10,
    }


def test_infeasible_nodes_have_no_entry() -> None:
    assert bytes(priorities(["a"], [FULL])) == b"[]"


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.builds(Feasible, st.integers(0, 100), st.tuples(st.integers(0, 2))) | st.just(FULL),
    )
)
def test_no_node_has_a_higher_priority_than_a_better_one(results: dict[str, Feasibility]) -> None:
    nodes = list(results)
    found = scores(priorities(nodes, list(results.values())))
    fits = {node: each for node, each in results.items() if isinstance(each, Feasible)}
    assert found.keys() == fits.keys()
    assert all(
        found[one] >= found[other]
        for one in fits
        for other in fits
        if fits[one].score > fits[other].score
    )
    if fits:
        best = best_node(nodes, list(results.values()))
        assert [node for node, score in found.items() if score == 10] == [best]
