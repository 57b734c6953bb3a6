"""Compares the selected victims with an exhaustive search of all sets."""

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
# What helps: any set that has one of these within.
needed = st.lists(
    st.frozensets(st.sampled_from([f"u{n}" for n in range(7)]), min_size=1, max_size=4), max_size=4
).map(tuple)
allowances = st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.integers(-1, 2)})


def helps(needed: Sets, chosen: frozenset[str]) -> bool:
    return any(each <= chosen for each in needed)


def brute(
    candidates: Sequence[PotentialVictim], allowed: Mapping[str, int], needed: Sets
) -> set[str]:
    """The best of all sets."""
    ordered = sorted(candidates, key=importance)
    best: tuple[object, ...] | None = None
    answer: set[str] = set()
    for size in range(1, len(ordered) + 1):
        for chosen in itertools.combinations(enumerate(ordered), size):
            pods = [each for _, each in chosen]
            if not helps(needed, frozenset(each.uid for each in pods)):
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
def test_equals_the_best_of_every_set(
    candidates: list[PotentialVictim], allowed: dict[str, int], needed: Sets
) -> None:
    found = best_set(candidates, allowed, lambda chosen: helps(needed, chosen))
    assert set(found.uids if found else ()) == brute(candidates, allowed, needed)


@given(pods, allowances, needed, st.integers(0, 10))
def test_short_search_makes_room_and_spares_pods_if_possible(
    candidates: list[PotentialVictim], allowed: dict[str, int], needed: Sets, trials: int
) -> None:
    found = best_set(candidates, allowed, lambda chosen: helps(needed, chosen), trials=trials)
    everyone = frozenset(each.uid for each in candidates)
    assert (found is not None) == helps(needed, everyone)
    if found is not None:
        chosen = frozenset(found.uids)
        assert helps(needed, chosen)
        assert not any(helps(needed, chosen - {each}) for each in chosen)


@given(pods, allowances, needed, st.randoms())
def test_order_of_the_candidates_does_not_matter(
    candidates: list[PotentialVictim], allowed: dict[str, int], needed: Sets, chance: object
) -> None:
    found = best_set(candidates, allowed, lambda chosen: helps(needed, chosen))
    backwards = best_set(candidates[::-1], allowed, lambda chosen: helps(needed, chosen))
    assert found == backwards


def pod(uid: str, priority: int = 0, started_at: int = 0, *budgets: str) -> PotentialVictim:
    return PotentialVictim(uid, priority, started_at, budgets)


CASES = {
    "one of high priority is spared for two of low": (
        [pod("high", 5), pod("low1"), pod("low2")],
        {},
        ({"high"}, {"low1", "low2"}),
        ("low1", "low2"),
        0,
    ),
    "one large one for two small ones of its priority": (
        [pod("large"), pod("small1", 0, 1), pod("small2", 0, 2)],
        {},
        ({"large"}, {"small1", "small2"}),
        ("large",),
        0,
    ),
    "who started last": ([pod("old", 0, 1), pod("new", 0, 2)], {}, ({"old"}, {"new"}), ("new",), 0),
    "a budget goes before priority": (
        [pod("high", 5), pod("guarded", 0, 0, "b")],
        {"b": 0},
        ({"high"}, {"guarded"}),
        ("high",),
        0,
    ),
    "a budget that allows one is no hindrance": (
        [pod("high", 5), pod("guarded", 0, 0, "b")],
        {"b": 1},
        ({"high"}, {"guarded"}),
        ("guarded",),
        0,
    ),
    "violations are counted": (
        [pod("x", 0, 0, "b"), pod("y", 0, 0, "b")],
        {"b": 1},
        ({"x", "y"},),
        ("x", "y"),
        1,
    ),
}


def test_short_search_first_spares_pods_with_a_budget() -> None:
    candidates = [pod("free", 5), pod("kept", 0, 0, "b")]
    assert best_set(candidates, {"b": 0}, bool, trials=0) == Victims(("free",), 0)


def test_one_large_pod_among_many() -> None:
    """Of 60 equal pods any three make room, or two certain ones, or the first one alone."""
    pods = [pod(f"u{number:02}", 0, number) for number in range(60)]
    calls = 0

    def helps(chosen: frozenset[str]) -> bool:
        nonlocal calls
        calls += 1
        return len(chosen) >= 3 or bool({"u00"} & chosen) or {"u10", "u11"} <= chosen

    assert best_set(pods, {}, helps) == Victims(("u00",), 0)
    assert calls <= 600


@pytest.mark.parametrize("kept", [0, 1], ids=["a budget protects all", "a budget protects none"])
def test_pairs_are_limited_to_pods_that_could_be_better(kept: int) -> None:
    """kube-scheduler sends hundreds of nodes at once, and waits for seconds."""
    pods = [pod(f"u{number:03}", number % 3, number, "b") for number in range(250)]
    allowed = Counted({"b": kept})
    found = best_set(pods, allowed, lambda chosen: bool({"u001", "u006"} & chosen), trials=400)
    assert found == Victims(("u006",), 1 - kept)
    assert allowed.looks < 4000, "of 31,125 pairs"


class Counted(collections.UserDict[str, int]):
    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    candidates, allowed, needed, uids, count = CASES[case]
    sets = tuple(map(frozenset, needed))
    assert best_set(candidates, allowed, lambda chosen: helps(sets, chosen)) == Victims(uids, count)


def test_no_set_makes_room() -> None:
    assert best_set([pod("x")], {}, lambda chosen: False) is None
    assert best_set([], {}, lambda chosen: True) is None
