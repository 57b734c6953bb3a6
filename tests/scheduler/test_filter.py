from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.filter import alone, filtered, first_choice, refused
from agent.scheduler.shapes import UNKNOWN, Answer, Fit, Misfit

FULL = Misfit("no room")
BROKEN = Misfit("no agent", unresolvable=True)
NODES = ["c", "a", "b", "d"]


def test_all_that_fit_go_on_and_the_others_say_why() -> None:
    result = filtered(NODES, [Fit(3), FULL, BROKEN, Fit(9)], best_alone=False)
    assert result.node_names == ["c", "d"]
    assert result.failed_nodes == {"a": "no room"}
    assert result.failed_and_unresolvable_nodes == {"b": "no agent"}


def test_where_all_fit_the_names_go_back_as_they_came() -> None:
    result = filtered(NODES, [Fit(1)] * 4, best_alone=False)
    assert result.node_names is NODES
    assert not result.failed_nodes


def test_the_best_alone_goes_on_where_that_is_the_policy() -> None:
    result = filtered(NODES, [Fit(3), FULL, BROKEN, Fit(9)], best_alone=True)
    assert list(result.node_names) == ["d"]


def test_the_reasons_are_told_where_there_is_no_best() -> None:
    result = filtered(["a", "x"], [FULL, UNKNOWN], best_alone=True)
    assert not result.node_names
    assert result.failed_nodes == {"a": "no room"}
    assert result.failed_and_unresolvable_nodes == {"x": "the node is not known to the scheduler"}


def test_few_reasons_are_told_as_they_are_and_many_without_amounts() -> None:
    few = [Misfit(f"CPUs (asked 9, available {free})", words="CPUs") for free in range(5)]
    nodes = [f"n{place}" for place in range(7)]
    result = filtered(nodes[:5], few, best_alone=False)
    assert result.failed_nodes == {
        f"n{free}": f"CPUs (asked 9, available {free})" for free in range(5)
    }
    more = [*few, Misfit("CPUs (asked 9, available 5)", words="CPUs"), BROKEN]
    result = filtered(nodes, more, best_alone=False)
    assert result.failed_nodes == dict.fromkeys(nodes[:6], "CPUs")
    assert result.failed_and_unresolvable_nodes == {"n6": "no agent"}


def test_score_goes_before_order_and_order_before_the_name() -> None:
    assert first_choice(NODES, [Fit(5, (0,)), Fit(6, (9,)), FULL, Fit(6, (2,))]) == "d"
    assert first_choice(NODES, [Fit(6, (2,)), Fit(5), Fit(6, (2,)), FULL]) == "b"
    assert first_choice([], []) is None


def test_a_refusal_of_the_pod_is_told_for_every_node() -> None:
    assert refused(["a", "b"], "odd").failed_and_unresolvable_nodes == {"a": "odd", "b": "odd"}


def test_one_node_alone_stays_where_it_is_among_them() -> None:
    result = alone(["a", "b"], "b", "held there")
    assert result.node_names == ("b",)
    assert result.failed_and_unresolvable_nodes == {"a": "held there"}
    result = alone(["a"], "b", "held there")
    assert not result.node_names
    assert result.failed_and_unresolvable_nodes == {"a": "held there"}


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.builds(Fit, st.integers(0, 3), st.tuples(st.integers(0, 2))) | st.just(FULL),
        max_size=12,
    ),
    st.randoms(),
)
def test_the_choice_does_not_hang_on_the_order_of_the_names(
    answers: dict[str, Answer], random: st.DataObject
) -> None:
    names = list(answers)
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert first_choice(names, [answers[each] for each in names]) == first_choice(
        shuffled, [answers[each] for each in shuffled]
    )
