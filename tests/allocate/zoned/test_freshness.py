from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.zoned.freshness import (
    MOST_MISSING,
    Freshness,
    KnownPod,
    Method,
    State,
    freshness,
    known_pod,
    method_of,
)
from agent.model import fingerprint
from agent.model.apipods import Phase
from agent.model.nodetopology import FINGERPRINT_METHOD, NodeTopology
from tests.allocate.zoned.values import GPU, api_pod, container

NS = "default"
PLAIN = KnownPod(NS, "plain", False)
OWNER = KnownPod(NS, "owner", True)
LAST = KnownPod("other", "last", True)
ALL = [PLAIN, OWNER, LAST]


def told(*pods: KnownPod, method: str | None = None) -> NodeTopology:
    attributes = {} if method is None else {FINGERPRINT_METHOD: method}
    found = fingerprint.of((pod.namespace, pod.name) for pod in pods)
    return NodeTopology("node-a", fingerprint=found, attributes=attributes)


def test_zones_of_all_that_are_known_are_current() -> None:
    assert freshness(told(*ALL), ALL) == Freshness(State.CURRENT)
    assert freshness(told(), []) == Freshness(State.CURRENT)


def test_the_pods_that_began_last_may_be_missing() -> None:
    assert freshness(told(PLAIN, OWNER), ALL) == Freshness(State.BEHIND, (LAST,))
    assert freshness(told(), ALL) == Freshness(State.BEHIND, tuple(ALL))


@pytest.mark.parametrize(
    "there", [(PLAIN, LAST), (*ALL, KnownPod(NS, "foreign", True)), (KnownPod(NS, "gone", True),)]
)
def test_zones_of_other_pods_are_none_of_ours(there: tuple[KnownPod, ...]) -> None:
    assert freshness(told(*there), ALL) == Freshness(State.OTHER)


def test_a_node_may_tell_none() -> None:
    assert freshness(NodeTopology("node-a"), []) == Freshness(State.UNTOLD)


def test_only_owners_count_where_the_node_says_so() -> None:
    few = Method.EXCLUSIVE.value
    assert freshness(told(OWNER, LAST, method=few), ALL) == Freshness(State.CURRENT)
    assert freshness(told(*ALL, method=few), ALL) == Freshness(State.OTHER)
    assert freshness(told(OWNER, method=few), [*ALL, PLAIN]) == Freshness(State.BEHIND, (LAST,))


def test_a_method_may_be_set_instead() -> None:
    here = told(OWNER, LAST)
    assert freshness(here, ALL, Method.EXCLUSIVE) == Freshness(State.CURRENT)
    assert freshness(here, ALL) == Freshness(State.OTHER)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (None, Method.ALL),
        ("all", Method.ALL),
        ("with-exclusive-resources", Method.EXCLUSIVE),
        ("of-the-moon", Method.ALL),
    ],
)
def test_the_nodes_word_for_the_method(word: str | None, expected: Method) -> None:
    assert method_of(told(method=word)) is expected


def test_not_more_than_some_are_looked_for() -> None:
    many = [KnownPod(NS, f"pod-{each}", True) for each in range(MOST_MISSING + 1)]
    assert freshness(told(*many[:1]), many).missing == tuple(many[1:])
    assert freshness(told(), many) == Freshness(State.OTHER)


@given(st.permutations(ALL), st.integers(0, 3))
def test_what_is_missing_and_what_is_not_are_all(order: list[KnownPod], begun: int) -> None:
    found = freshness(told(*order[:begun]), order)
    assert [*order[:begun], *found.missing] == order


@pytest.mark.parametrize(
    ("phase", "asked", "expected"),
    [
        (Phase.PENDING, {"gpu": 1}, None),
        (Phase.RUNNING, {"gpu": 1}, KnownPod("default", "pod-a", True)),
        (Phase.SUCCEEDED, {"nic": 1}, KnownPod("default", "pod-a", False)),
    ],
)
def test_what_counts_of_a_pod(
    phase: Phase, asked: dict[str, int], expected: KnownPod | None
) -> None:
    pod: Any = msgspec.structs.replace(api_pod(container(**asked, limited=False)), phase=phase)
    assert known_pod(pod, {GPU}) == expected
