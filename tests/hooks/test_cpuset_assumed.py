import time

import msgspec

from agent.hooks.cpuset import MAX_ASSUMED, AssumedContainer, AssumedContainers
from agent.model.cpu.cpuset import CpuSet
from tests.hooks.snapshots import EMPTY
from tests.kept import kept_bytes

ASSUMED = AssumedContainer("p", "pod ns/p", CpuSet([1]))


def finish_pass(assumed: AssumedContainers) -> None:
    """The agent publishes a snapshot of a pass that begins now."""
    assumed.seen(msgspec.structs.replace(EMPTY, listed_at=time.monotonic_ns()))


def test_unknown_number_is_ignored() -> None:
    assumed = AssumedContainers()
    assumed.answered(99, "c")
    assumed.failed(99)
    assert assumed.of("c") is None


def test_absent_agent_costs_bounded_memory_and_no_assumed_container_is_lost() -> None:
    assumed = AssumedContainers()
    in_progress = assumed.assume(ASSUMED)
    for each in range(10 * MAX_ASSUMED):
        assumed.answered(assumed.assume(ASSUMED), f"c{each}")
    kept = assumed.all(EMPTY)
    assert len(kept) <= MAX_ASSUMED + 2
    assert kept[0].may_hold(CpuSet([7])), "the merged containers may hold any CPU"
    assert assumed.of("c0") is None
    assert assumed.of(f"c{10 * MAX_ASSUMED - 1}") is not None
    finish_pass(assumed)
    assert assumed.all(EMPTY) == (ASSUMED,)
    assumed.answered(in_progress, "late")
    assert assumed.of("late") is not None


def test_starts_without_an_agent_cost_bounded_memory() -> None:
    assumed = AssumedContainers()
    before = msgspec.structs.replace(EMPTY, listed_at=1)
    starting = assumed.start(before)

    def starts(count: int) -> None:
        for _ in range(count):
            assumed.started(assumed.start(EMPTY), EMPTY)

    starts(2 * MAX_ASSUMED)
    assert kept_bytes(lambda: starts(10 * MAX_ASSUMED)) < 400 * MAX_ASSUMED
    assert assumed.started(starting, EMPTY)
