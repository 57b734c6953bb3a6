from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.state import records
from agent.scheduler.state.records import MAX_LABELS, AgentSelector, InternPool, interned
from tests.fixtures.fleet import guaranteed_pod

TABLES = st.dictionaries(st.integers(0, 3), st.dictionaries(st.sampled_from("ab"), st.integers()))


@given(tables=st.lists(TABLES), max_values=st.integers(1, 5))
def test_interned_values_are_equal(
    tables: list[dict[int, dict[str, int]]], max_values: int
) -> None:
    pool = InternPool[dict[int, dict[str, int]]](max_values)
    assert [pool.of(each) for each in tables] == tables


def test_old_values_are_dropped() -> None:
    """Pods of Jobs have unique labels, which exceed the limit in a day or two."""
    pool = InternPool[dict[str, int]](8)
    before = [pool.of({"old": old}) for old in range(100)]
    assert pool.of({"a": 1}) is pool.of({"a": 1})
    newest_first = reversed(list(enumerate(before)))
    assert sum(pool.of({"old": old}) is each for old, each in newest_first) <= 8


def test_large_values_are_dropped_earlier() -> None:
    pool = InternPool[str](max_bytes=1000)
    before = [pool.of(f"{number}".zfill(400)) for number in range(100)]
    newest_first = reversed(list(enumerate(before)))
    assert sum(pool.of(f"{number}".zfill(400)) is each for number, each in newest_first) <= 3


def test_a_derived_value_is_made_once() -> None:
    pool, made = InternPool[list[int]](), []

    def make() -> list[int]:
        made.append(1)
        return [len(made)]

    assert pool.by_source({"a": 1}, make) is pool.by_source({"a": 1}, make)
    assert made == [1]


def test_equal_strings_are_one_object() -> None:
    first, second = (interned({f"{name}-key": f"{name}-value"}) for name in ("a", "a"))
    assert first == second == {"a-key": "a-value"}
    assert first["a-key"] is second["a-key"]


def test_labels_of_a_pod_are_bounded() -> None:
    body = guaranteed_pod("1", "1Gi").pod("p", node="a")
    body["metadata"]["labels"] = {f"{number:04}": "x" for number in range(2_000)}
    record = records.pods(AgentSelector())(json.dumps(body).encode())
    assert list(record.labels) == [f"{number:04}" for number in range(MAX_LABELS)]
