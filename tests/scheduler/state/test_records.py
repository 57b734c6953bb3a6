from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.state import records
from agent.scheduler.state.records import MAX_LABELS, AgentSelector, InternPool, interned
from tests.fixtures.fleet import plain

TABLES = st.dictionaries(st.integers(0, 3), st.dictionaries(st.sampled_from("ab"), st.integers()))


@given(tables=st.lists(TABLES), max_values=st.integers(1, 5))
def test_interned_values_are_equal(
    tables: list[dict[int, dict[str, int]]], max_values: int
) -> None:
    shared = InternPool[dict[int, dict[str, int]]](max_values)
    assert [shared.of(each) for each in tables] == tables


def test_equal_values_become_one() -> None:
    shared = InternPool[dict[str, int]]()
    assert shared.of({"a": 1}) is shared.of({"a": 1})


def test_old_values_are_dropped() -> None:
    """Pods of jobs have unique labels: in a day or two they exceed the limit."""
    shared = InternPool[dict[str, int]](8)
    before = [shared.of({"old": old}) for old in range(100)]
    assert shared.of({"a": 1}) is shared.of({"a": 1})
    newest_first = reversed(list(enumerate(before)))
    assert sum(shared.of({"old": old}) is each for old, each in newest_first) <= 8


def test_a_derived_value_is_made_once() -> None:
    shared, made = InternPool[list[int]](), []

    def make() -> list[int]:
        made.append(1)
        return [len(made)]

    assert shared.by_source({"a": 1}, make) is shared.by_source({"a": 1}, make)
    assert made == [1]


def test_equal_strings_become_one() -> None:
    first, second = (interned({f"{name}-key": f"{name}-value"}) for name in ("a", "a"))
    assert first == second == {"a-key": "a-value"}
    assert first["a-key"] is second["a-key"]


def test_labels_of_a_pod_are_bounded() -> None:
    body = plain("1", "1Gi").pod("p", node="a")
    body["metadata"]["labels"] = {f"{number:04}": "x" for number in range(2_000)}
    record = records.pods(AgentSelector())(json.dumps(body).encode())
    assert list(record.labels) == [f"{number:04}" for number in range(MAX_LABELS)]
