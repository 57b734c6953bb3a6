from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.filter import first_choice
from agent.scheduler.prioritize import prioritized
from agent.scheduler.shapes import Answer, Fit, Misfit

FULL = Misfit("no room")


def scores(raw: msgspec.Raw) -> dict[str, int]:
    entries = json.loads(bytes(raw))
    assert len({each["Host"] for each in entries}) == len(entries)
    return {each["Host"]: each["Score"] for each in entries}


def test_the_best_alone_has_ten_and_the_worst_has_none() -> None:
    nodes = ["a", "b", "c", "d", "e"]
    raw = prioritized(nodes, [Fit(90), Fit(50), FULL, Fit(90), Fit(10)])
    assert scores(raw) == {"a": 10, "b": 4, "d": 9, "e": 0}


def test_nodes_alike_leave_no_draw() -> None:
    assert scores(prioritized(["b", "a"], [Fit(0), Fit(0)])) == {"a": 10, "b": 9}


def test_where_others_decide_equal_scores_are_equal() -> None:
    answers = [Fit(90), Fit(50, (1,)), FULL, Fit(90), Fit(50, (2,)), Fit(10)]
    assert scores(prioritized(["a", "b", "c", "d", "e", "f"], answers, decides=False)) == {
        "a": 10,
        "b": 5,
        "d": 10,
        "e": 5,
        "f": 0,
    }
    assert scores(prioritized(["b", "a"], [Fit(3), Fit(3)], decides=False)) == {"a": 10, "b": 10}


def test_where_nothing_fits_there_is_no_entry() -> None:
    assert bytes(prioritized(["a"], [FULL])) == b"[]"


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.builds(Fit, st.integers(0, 100), st.tuples(st.integers(0, 2))) | st.just(FULL),
    )
)
def test_no_node_lies_above_a_better_one(answers: dict[str, Answer]) -> None:
    nodes = list(answers)
    found = scores(prioritized(nodes, list(answers.values())))
    fits = {node: each for node, each in answers.items() if isinstance(each, Fit)}
    assert found.keys() == fits.keys()
    assert all(
        found[one] >= found[other]
        for one in fits
        for other in fits
        if fits[one].score > fits[other].score
    )
    if fits:
        best = first_choice(nodes, list(answers.values()))
        assert [node for node, score in found.items() if score == 10] == [best]
