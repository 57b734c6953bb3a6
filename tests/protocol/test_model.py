"""The invariants of the protocol in every state of the model, and in broken protocols."""

from __future__ import annotations

import pytest

from tests.protocol.explorer import BrokenError, explore
from tests.protocol.model import Bounds, Model, Rules

OWNER_AND_SHARER = (1, 0)
RIVALS = (1, 1)
"""Two pods that claim one CPU."""


def test_no_interleaving_without_faults_breaks_an_invariant() -> None:
    for claims in (OWNER_AND_SHARER, RIVALS):
        explored = explore(Model(Bounds(2, claims, faults=0)))
        assert explored.states > 20_000


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_interleaving_with_one_crash_or_failure_breaks_an_invariant() -> None:
    explored = explore(Model(Bounds(2, OWNER_AND_SHARER, faults=1)))
    assert explored.states > 100_000


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(publishes_first=True, ignores_blocked=True), "run on the same CPU"),
        (Rules(answers_before_publishing=True), "run on the same CPU"),
        (Rules(any_snapshot_has_seen=True), "run on the same CPU"),
        (Rules(forgets_starts=True), "run on the same CPU"),
    ],
)
def test_the_explorer_finds_what_breaks_without_faults(rules: Rules, problem: str) -> None:
    with pytest.raises(BrokenError, match=problem):
        explore(Model(Bounds(2, OWNER_AND_SHARER, faults=0), rules))


def test_an_agent_that_forgets_the_owners_of_its_predecessor_chooses_others() -> None:
    with pytest.raises(BrokenError, match="leads to another state"):
        explore(Model(Bounds(2, RIVALS, faults=0), Rules(forgets_owners=True)))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(forgets_earlier=True), "run on the same CPU"),
        (Rules(ignores_blocked=True), "run on the same CPU"),
        (Rules(journals_late=True), "is not in the journal"),
        (Rules(announces_once=True), "waits for ever"),
        (Rules(keeps_ended_sessions=True), "owns CPUs for ever"),
        (Rules(drops_at_once=True), "run on the same CPU"),
        (Rules(drops_unseen=True), "run on the same CPU"),
        (Rules(forgets_others=True), "run on the same CPU"),
    ],
)
def test_the_explorer_finds_what_breaks_with_a_fault(rules: Rules, problem: str) -> None:
    with pytest.raises(BrokenError, match=problem):
        explore(Model(Bounds(2, OWNER_AND_SHARER, faults=1), rules))
