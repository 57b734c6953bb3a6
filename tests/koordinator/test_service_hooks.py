"""The calls of koord-runtime-proxy as calls of admission."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from agent.hooks.requests import UpdateContainer, Verdict
from agent.koordinator.service import (
    SETTLE_SECONDS,
    ContainerRef,
    KoordinatorHooks,
    RuntimeHookCall,
)
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import PodFailed, Resized
from agent.model.settings.frontends import SANDBOX_SECONDS, Deadlines
from agent.model.snapshot import Wanted
from agent.model.verdict import Code, Refuse, Wait
from tests.hooks.admission_harness import AdmissionHarness, container, pod
from tests.hooks.snapshots import EMPTY, OWNED

SHARER = container("any", "LS")


class HooksHarness(AdmissionHarness):
    """`hooks`: those of the server, which hold a call for 9 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.hooks = KoordinatorHooks(self.admission, Deadlines(9.0))

    def call(self, budget_seconds: float | None = None) -> RuntimeHookCall:
        return RuntimeHookCall(time.monotonic(), budget_seconds)

    def in_progress(self) -> int:
        return sum(each.answered_at is None for each in self.assumed.all(None))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> HooksHarness:
    it = HooksHarness(monkeypatch)
    it.publish(OWNED)
    return it


@pytest.mark.parametrize("budget_seconds", [None, 3.0])
def test_a_call_waits_until_the_deadline_of_its_hook_or_of_its_caller(
    harness: HooksHarness, budget_seconds: float | None
) -> None:
    hooks = harness.hooks

    def waits(decide: Callable[[RuntimeHookCall], Verdict], seconds: float) -> None:
        call = harness.call(budget_seconds)
        seconds = min(seconds, budget_seconds or seconds)
        for step in (0.0, seconds - 0.01):
            harness.wait(step)
            assert decide(call) == Wait()
        harness.wait(0.02)
        assert decide(call) != Wait()

    waits(lambda call: hooks.pod_announced(call, pod("p")), SANDBOX_SECONDS)
    waits(lambda call: hooks.create(call, container("new", "LSE", "2")), 9.0)
    unknown = UpdateContainer("unknown", LinuxResources("0-1"))
    waits(lambda call: hooks.update(call, unknown), 9.0)


def test_what_a_caller_gives_up_is_withdrawn(harness: HooksHarness) -> None:
    call = harness.call()
    assert harness.hooks.pod_announced(call, pod("p")) == Wait()
    harness.notifications()
    harness.hooks.abandoned(call)
    assert harness.notifications() == [PodFailed("p")]


def end_by_time(harness: HooksHarness) -> None:
    harness.wait(SETTLE_SECONDS)
    harness.hooks.create(harness.call(), container("own", "LSE", "1"))


def end_by_a_held_creation(harness: HooksHarness) -> None:
    again = container("any", "LS", "2")
    assert harness.hooks.create(harness.call(), again) == Wait()


def end_by_the_pod(harness: HooksHarness) -> None:
    harness.hooks.pod_stopped("any")


@pytest.mark.parametrize(
    "end", [end_by_time, end_by_a_held_creation, end_by_the_pod], ids=lambda each: each.__name__
)
def test_a_creation_whose_failure_is_not_reported_ends(
    harness: HooksHarness, end: Callable[[HooksHarness], None]
) -> None:
    """Until then an owner waits for it."""
    harness.publish(EMPTY)
    harness.hooks.create(harness.call(), SHARER)
    harness.publish(OWNED)
    harness.wait(SETTLE_SECONDS - 5)
    owner = container("own", "LSE", "1")
    assert harness.hooks.create(harness.call(), owner) == Wait()
    assert harness.in_progress() == 1
    end(harness)
    assert harness.in_progress() == 0
    harness.publish(OWNED)
    assert harness.hooks.create(harness.call(), owner) != Wait()


def test_a_stopped_container_has_no_cpus(harness: HooksHarness) -> None:
    harness.hooks.create(harness.call(), SHARER)
    ref = ContainerRef("any", "main", "c1")
    harness.hooks.exists(ref)
    assert harness.assumed.of("c1") is not None
    harness.hooks.stopped(ref)
    assert harness.assumed.of("c1") is None


def test_a_creation_that_could_not_be_read_counts_as_ended(harness: HooksHarness) -> None:
    """The protocol does not say which container it made."""
    harness.publish(EMPTY)
    assert harness.hooks.unhooked("PreCreateContainer", harness.call(), "malformed", "why") is None
    assert harness.in_progress() == 0


def test_a_failed_hook_is_answered_by_the_policy_of_its_pod(harness: HooksHarness) -> None:
    harness.publish(EMPTY)
    call = harness.call()
    assert harness.hooks.create(call, container("new", "LSE", "2")) == Wait()
    answer = harness.hooks.unhooked("PreCreateContainer", call, "internal_error", "broken")
    assert answer == Refuse(Code.INTERNAL, "CreateContainer: pod ns/new: broken")


@pytest.mark.parametrize("shares", [None, 512])
def test_a_resize_is_reported_unless_it_repeats_the_agents_values(
    harness: HooksHarness, shares: int | None
) -> None:
    """koord-runtime-proxy repeats in every update the container's values, including the agent's
    shares."""
    wanted = Wanted(LinuxResources("1", shares=shares))
    harness.publish(msgspec.structs.replace(OWNED, cpu_policy="static", containers={"c": wanted}))
    requested = LinuxResources("1", shares=512)
    harness.hooks.update(harness.call(), UpdateContainer("c", requested))
    assert harness.notifications() == ([] if shares else [Resized("c", requested)])
