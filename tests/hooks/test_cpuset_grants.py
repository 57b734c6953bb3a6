import time

import msgspec

from agent.hooks.cpuset import MAX_GRANTS, CpuGrant, Grants
from agent.model.cpu.cpuset import CpuSet
from tests.hooks.snapshots import EMPTY
from tests.kept import kept_bytes

GRANT = CpuGrant("p", "pod ns/p", CpuSet([1]))


def finish_pass(grants: Grants) -> None:
    """The agent publishes a snapshot of a pass that begins now."""
    grants.seen(msgspec.structs.replace(EMPTY, listed_at=time.monotonic_ns()))


def test_creations_of_an_earlier_proxy_are_unknown_until_the_next_pass() -> None:
    grants = Grants()
    (start,) = grants.all(EMPTY)
    assert start.may_hold(CpuSet([7]))
    grants.seen(EMPTY)
    assert grants.all(EMPTY) == (start,), "this pass began before the start of the proxy"
    finish_pass(grants)
    assert grants.all(EMPTY) == ()


def test_creation_in_progress_is_kept_over_passes() -> None:
    grants = Grants()
    number = grants.open(GRANT)
    finish_pass(grants)
    assert grants.all(EMPTY) == (GRANT,)
    grants.answered(number, "c")
    assert grants.of("c") is not None
    finish_pass(grants)
    assert (grants.all(EMPTY), grants.of("c")) == ((), None)


def test_failed_creation_counts_until_the_next_pass() -> None:
    grants = Grants()
    number = grants.open(GRANT)
    grants.failed(number)
    assert GRANT.cpus in [each.cpus for each in grants.all(EMPTY)]
    finish_pass(grants)
    assert grants.all(EMPTY) == ()


def test_unknown_grant_number_is_ignored() -> None:
    grants = Grants()
    grants.answered(99, "c")
    grants.failed(99)
    assert grants.of("c") is None


def test_absent_agent_costs_bounded_memory_and_no_grant_is_lost() -> None:
    grants = Grants()
    in_progress = grants.open(GRANT)
    for each in range(10 * MAX_GRANTS):
        grants.answered(grants.open(GRANT), f"c{each}")
    kept = grants.all(EMPTY)
    assert len(kept) <= MAX_GRANTS + 2
    assert kept[0].may_hold(CpuSet([7])), "the merged grants may hold any CPU"
    assert grants.of("c0") is None
    assert grants.of(f"c{10 * MAX_GRANTS - 1}") is not None
    finish_pass(grants)
    assert grants.all(EMPTY) == (GRANT,)
    grants.answered(in_progress, "late")
    assert grants.of("late") is not None


def test_starts_without_an_agent_cost_bounded_memory() -> None:
    grants = Grants()
    before = msgspec.structs.replace(EMPTY, listed_at=1)
    starting = grants.start(before)

    def starts(count: int) -> None:
        for _ in range(count):
            grants.started(grants.start(EMPTY), EMPTY)

    starts(2 * MAX_GRANTS)
    assert kept_bytes(lambda: starts(10 * MAX_GRANTS)) < 400 * MAX_GRANTS
    assert grants.started(starting, EMPTY)
