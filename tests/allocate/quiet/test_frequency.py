"""The governors of CPU frequencies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.quiet.frequency import FrequencyPolicy, GovernorWish, governors
from agent.model.cpu.cpuset import CpuSet, union

BOTH = ("performance", "powersave")
PAIRS = [FrequencyPolicy(f"policy{first}", CpuSet([first, first + 1]), BOTH) for first in (0, 2, 4)]


def wish(cpus: str, governor: str = "performance") -> GovernorWish:
    return GovernorWish(CpuSet.parse(cpus), governor)


@pytest.mark.parametrize(
    ("wishes", "owned", "wanted", "missing", "notes"),
    [
        ([], "0-3", {}, [], []),
        ([wish("2-3")], "2-3", {"policy2": "performance"}, [], []),
        (
            [wish("2-5", "powersave")],
            "0-5",
            {"policy2": "powersave", "policy4": "powersave"},
            [],
            [],
        ),
        (
            [wish("3")],
            "3",
            {"policy2": "performance"},
            [],
            ["CPUs 2, which nobody owns, get performance with policy2"],
        ),
        ([wish("3"), wish("2")], "2-3", {"policy2": "performance"}, [], []),
        (
            [wish("3-4")],
            "2-4",
            {"policy4": "performance"},
            [],
            [
                "policy2 of CPUs 2-3 stays: the owner of CPUs 2 does not ask",
                "CPUs 5, which nobody owns, get performance with policy4",
            ],
        ),
        (
            [wish("3"), wish("2", "powersave")],
            "2-3",
            {},
            [],
            ["policy2 of CPUs 2-3 stays: owners ask for performance and powersave"],
        ),
        (
            [wish("0-1", "schedutil"), wish("4-5")],
            "0-1,4-5",
            {"policy4": "performance"},
            ["policy0 has no governor 'schedutil': performance powersave"],
            [],
        ),
    ],
)
def test_a_policy_gets_the_governor_that_its_owners_ask_for(
    wishes: list[GovernorWish],
    owned: str,
    wanted: dict[str, str],
    missing: list[str],
    notes: list[str],
) -> None:
    chosen = governors(PAIRS, wishes, CpuSet.parse(owned))
    assert chosen == (wanted, missing, notes)


_CPUS = st.sets(st.integers(0, 5), min_size=1).map(CpuSet)


@given(st.lists(st.tuples(_CPUS, st.sampled_from([*BOTH, "other"]))), _CPUS)
def test_no_owner_gets_a_governor_that_it_does_not_ask_for(
    asked: list[tuple[CpuSet, str]], others: CpuSet
) -> None:
    wishes = [GovernorWish(*one) for one in asked]
    owned = union(wish.cpus for wish in wishes) | others
    wanted = governors(PAIRS, wishes, owned).wanted
    for policy in PAIRS:
        if policy.name in wanted:
            assert wanted[policy.name] in policy.governors
            for cpu in policy.cpus & owned:
                asking = [wish for wish in wishes if cpu in wish.cpus]
                assert asking
                assert all(wish.governor == wanted[policy.name] for wish in asking)
