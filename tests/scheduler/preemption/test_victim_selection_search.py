"""The search for the best set of victims, compared with an exhaustive search of all sets."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.preemption.victim_selection import (
    PotentialVictim,
    Victims,
    best_set,
    importance,
    violations,
)

Sets = tuple[frozenset[str], ...]

pods = st.lists(
    st.builds(
        PotentialVictim,
        uid=st.sampled_from([f"u{n}" for n in range(7)]),
        priority=st.integers(-1, 3),
        started_at=st.integers(0, 2),
        budgets=st.sampled_from([(), ("a",), ("b",), ("a", "b")]),
    ),
    max_size=7,
    unique_by=lambda each: each.uid,
)
# A set of victims makes room if it contains one of these sets.
needed = st.lists(
    st.frozensets(st.sampled_from([f"u{n}" for n in range(7)]), min_size=1, max_size=4), max_size=4
).map(tuple)
allowances = st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.integers(-1, 2)})


def makes_room(needed: Sets, chosen: frozenset[str]) -> bool:
    return any(each <= chosen for each in needed)


def exhaustive_search(
    candidates: Sequence[PotentialVictim], allowed: Mapping[str, int], needed: Sets
) -> set[str]:
    """The uids of the best of all sets that make room."""
    ordered = sorted(candidates, key=importance)
    best: tuple[object, ...] | None = None
    answer: set[str] = set()
    for size in range(1, len(ordered) + 1):
        for chosen in itertools.combinations(enumerate(ordered), size):
            pods = [each for _, each in chosen]
            if not makes_room(needed, frozenset(each.uid for each in pods)):
                continue
            key = (
                violations(pods, allowed),
                [each.priority for each in pods],
                [-place for place, _ in chosen],
            )
            if best is None or key < best:
                best, answer = key, {each.uid for each in pods}
    return answer


@given(pods, allowances, needed)
def test_the_result_is_the_best_of_all_sets(
    candidates: list[PotentialVictim], allowed: dict[str, int], needed: Sets
) -> None:
    best = best_set(candidates, allowed, lambda chosen: makes_room(needed, chosen))
    assert set(best.uids if best else ()) == exhaustive_search(candidates, allowed, needed)


@given(pods, allowances, needed, st.integers(0, 10))
def test_a_short_search_makes_room_and_has_no_superfluous_victims(
    candidates: list[PotentialVictim], allowed: dict[str, int], needed: Sets, trials: int
) -> None:
    best = best_set(candidates, allowed, lambda chosen: makes_room(needed, chosen), trials=trials)
    all_uids = frozenset(each.uid for each in candidates)
    assert (best is not None) == makes_room(needed, all_uids)
    if best is not None:
        chosen = frozenset(best.uids)
        assert makes_room(needed, chosen)
        assert not any(makes_room(needed, chosen - {each}) for each in chosen)


def pod(uid: str, priority: int = 0, started_at: int = 0, *budgets: str) -> PotentialVictim:
    return PotentialVictim(uid, priority, started_at, budgets)


def test_a_short_search_prefers_pods_without_a_budget() -> None:
    candidates = [pod("unprotected", 5), pod("protected", 0, 0, "b")]
    assert best_set(candidates, {"b": 0}, bool, trials=0) == Victims(("unprotected",), 0)


def test_one_large_pod_is_found_among_many() -> None:
    """Any three of 60 equal pods make room, and so do u10 and u11, or u00 alone."""
    pods = [pod(f"u{number:02}", 0, number) for number in range(60)]
    calls = 0

    def makes_room(chosen: frozenset[str]) -> bool:
        nonlocal calls
        calls += 1
        return len(chosen) >= 3 or bool({"u00"} & chosen) or {"u10", "u11"} <= chosen

    assert best_set(pods, {}, makes_room) == Victims(("u00",), 0)
    assert calls <= 600


@pytest.mark.parametrize(
    "disruptions_allowed", [0, 1], ids=["a budget protects all", "a budget protects none"]
)
def test_pairs_are_limited_to_pods_that_could_be_better(disruptions_allowed: int) -> None:
    """kube-scheduler sends hundreds of nodes in one request, and its timeout is a few seconds."""
    pods = [pod(f"u{number:03}", number % 3, number, "b") for number in range(250)]
    allowed = CountingDict({"b": disruptions_allowed})
    best = best_set(pods, allowed, lambda chosen: bool({"u001", "u006"} & chosen), trials=400)
    assert best == Victims(("u006",), 1 - disruptions_allowed)
    assert allowed.iterations < 4000, "of 31,125 pairs"


class CountingDict(collections.UserDict[str, int]):
    iterations = 0

    def __iter__(self) -> Iterator[str]:
        self.iterations += 1
        return super().__iter__()


def test_no_set_makes_room() -> None:
    assert best_set([pod("x")], {}, lambda chosen: False) is None
    assert best_set([], {}, lambda chosen: True) is None
