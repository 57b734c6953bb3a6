from __future__ import annotations

import threading
import time

from agent.host.periodic import Periodic
from tests.waiting import DEADLINE_SECONDS, eventually


def test_steps_follow_each_other_until_it_is_stopped() -> None:
    steps: list[str] = []
    it = Periodic("steps", 0.001, lambda: steps.append(threading.current_thread().name))
    it.start()
    eventually("several steps", lambda: len(steps) > 2)
    it.stop()
    assert set(steps) == {"steps"}
    assert "steps" not in {each.name for each in threading.enumerate()}


def test_a_pause_of_any_length_ends_with_the_stop() -> None:
    stepped = threading.Event()
    it = Periodic("slow", 1e6, stepped.set)
    it.start()
    assert stepped.wait(DEADLINE_SECONDS), "the first step waits for nothing"
    it.stop()


def test_a_step_under_way_is_waited_for() -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        assert goes_on.wait(DEADLINE_SECONDS)
        ended.set()

    it = Periodic("long", 1e6, step)
    it.start()
    assert begun.wait(DEADLINE_SECONDS)
    stopping = threading.Thread(target=it.stop)
    stopping.start()
    goes_on.set()
    stopping.join()
    assert ended.is_set()


def test_a_hurried_step_begins_before_its_period_and_not_before_the_least() -> None:
    steps: list[float] = []
    it = Periodic("hurried", 1e6, lambda: steps.append(time.monotonic()), 0.05)
    it.start()
    eventually("the first step", lambda: steps)
    it.hurry()
    eventually("another one", lambda: len(steps) == 2)
    it.stop()
    assert steps[1] - steps[0] >= 0.05


def test_the_least_pause_ends_with_the_stop() -> None:
    stepped = threading.Event()
    it = Periodic("slow", 1e6, stepped.set, 1e5)
    it.start()
    assert stepped.wait(DEADLINE_SECONDS)
    it.stop()


def test_a_stop_waits_no_longer_than_it_should() -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        goes_on.wait(DEADLINE_SECONDS)
        ended.set()

    it = Periodic("hangs", 1e6, step)
    it.start()
    assert begun.wait(DEADLINE_SECONDS)
    it.stop(0.0)
    assert not ended.is_set()
    goes_on.set()
    it.stop()
    assert ended.is_set()


def test_one_that_never_started_can_be_stopped() -> None:
    Periodic("never", 1.0, lambda: None).stop()
