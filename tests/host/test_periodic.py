from __future__ import annotations

import threading

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


def test_one_that_never_started_can_be_stopped() -> None:
    Periodic("never", 1.0, lambda: None).stop()
