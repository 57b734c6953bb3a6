"""The thread that restarts the NVML child after driver upgrades, hangs and the end of the child."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.discover.gpuwatcher import GpuNews, GpuTiming, GpuWatcher
from agent.model.devices.gpus import GpuEvent, GpuReport
from tests.discover import fakenvml, gpumachines
from tests.discover.fakenvml import FakeDriver, Machine
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.skipif(fakenvml.missing() is not None, reason=str(fakenvml.missing()))

NEVER = 3600.0
SHORT_PERIOD = GpuTiming(
    period_seconds=0.05, answer_seconds=DEADLINE_SECONDS, retry_seconds=0.02, max_retry_seconds=0.1
)
ON_REQUEST = GpuTiming(
    period_seconds=NEVER, least_seconds=0.0, answer_seconds=DEADLINE_SECONDS, retry_seconds=NEVER
)
"""Queries only after an event or a request."""


class Watch:
    """A watcher, its last report, and the events so far."""

    def __init__(self, driver: FakeDriver, timing: GpuTiming) -> None:
        self.driver = driver
        self.events: list[GpuEvent] = []
        self.report = GpuReport("no report yet")
        self.notified = threading.Event()
        self.watcher = GpuWatcher(self.notified.set, str(driver.root), timing, driver.environment)
        self.watcher.start()

    def until(self, check: Callable[[GpuReport], object]) -> GpuReport:
        while True:
            found = None
            for news in self.watcher.take():
                self.events += news.events
                if news.report is not None:
                    self.report = news.report
                    found = news.report if check(news.report) else found
            if found is not None:
                return found
            assert self.notified.wait(DEADLINE_SECONDS), f"no report after {self.report}"
            self.notified.clear()


def has_inventory(report: GpuReport) -> bool:
    return report.inventory is not None


def fault(name: str) -> Callable[[GpuReport], bool]:
    return lambda report: report.fault == name


StartWatch = Callable[..., Watch]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartWatch]:
    watches: list[Watch] = []

    def started(machine: Machine, timing: GpuTiming = SHORT_PERIOD) -> Watch:
        watches.append(Watch(FakeDriver(tmp_path, machine), timing))
        return watches[-1]

    yield started
    for each in watches:
        each.watcher.stop()


def test_a_driver_that_is_loaded_later_and_replaced_needs_no_agent_restart(
    start: StartWatch,
) -> None:
    machine = gpumachines.mixed()
    watch = start(machine.with_values(init=9))
    watch.until(fault("DriverNotLoaded"))
    watch.driver.set_machine(machine)
    report = watch.until(has_inventory)
    assert report.inventory is not None
    assert report.inventory.driver == "550.163.01"
    watch.driver.set_machine(machine.with_values(init=18, alive=18))
    watch.until(fault("DriverMismatch"))
    watch.driver.set_machine(Machine(machine.cards, driver="570.86.15"))
    report = watch.until(has_inventory)
    assert report.inventory is not None
    assert (report.inventory.driver, len(report.inventory.gpus)) == ("570.86.15", 2)


def test_an_event_is_reported_at_once_and_causes_a_query(start: StartWatch) -> None:
    machine = gpumachines.mixed()
    watch = start(machine, ON_REQUEST)
    watch.until(has_inventory)
    watch.driver.set_machine(machine.with_values(0, **{"return": 15}))
    watch.driver.event(0, 79)
    report = watch.until(has_inventory)
    assert watch.events == [GpuEvent(gpumachines.uuid(0), 79)]
    assert report.inventory is not None
    assert [each.fault for each in report.inventory.silent] == ["GpuLost"]


def test_many_events_cause_few_queries(
    start: StartWatch,
) -> None:
    timing = GpuTiming(period_seconds=NEVER, least_seconds=NEVER, answer_seconds=DEADLINE_SECONDS)
    watch = start(gpumachines.mixed(), timing)
    watch.until(has_inventory)
    for _ in range(50):
        watch.driver.event(0, 31)
    watch.driver.event(1, 79)
    last = GpuEvent(gpumachines.uuid(1), 79)
    received: list[GpuNews] = []
    while not any(last in news.events for news in received):
        assert watch.notified.wait(DEADLINE_SECONDS)
        watch.notified.clear()
        received += watch.watcher.take()
    assert all(len(set(news.events)) == len(news.events) for news in received)
    assert {news.report for news in received} == {None}


def test_an_event_after_a_query_is_reported_after_its_answer(start: StartWatch) -> None:
    """Otherwise the report would seem to be later than the event."""
    timing = GpuTiming(period_seconds=NEVER, least_seconds=NEVER, answer_seconds=DEADLINE_SECONDS)
    watch = start(gpumachines.mixed(), timing)
    for number in (0, 94):
        assert watch.notified.wait(DEADLINE_SECONDS)
        watch.notified.clear()
        if not number:
            watch.driver.event(0, 94)
    first, second = watch.watcher.take()
    assert first.report is not None
    assert (first.events, second) == ((), GpuNews((GpuEvent(gpumachines.uuid(0), 94),), None))
    assert watch.watcher.take() == ()


def test_reports_do_not_accumulate_while_the_agent_does_not_read(
    start: StartWatch,
) -> None:
    watch = start(gpumachines.mixed(), ON_REQUEST)
    watch.until(has_inventory)
    for _ in range(9):
        watch.driver.event(0, 31)
        assert watch.notified.wait(DEADLINE_SECONDS)
        watch.notified.clear()
    pending = watch.watcher.take()
    assert len(pending) <= 4
    assert {event for news in pending for event in news.events} == {
        GpuEvent(gpumachines.uuid(0), 31)
    }


def test_a_requested_report_comes_before_the_period_ends(start: StartWatch) -> None:
    watch = start(gpumachines.mixed(), ON_REQUEST)
    watch.until(has_inventory)
    watch.watcher.request_report()
    watch.until(has_inventory)


def test_a_requested_report_ends_the_wait_for_a_driver(start: StartWatch) -> None:
    machine = gpumachines.mixed()
    watch = start(machine.with_values(init=9), ON_REQUEST)
    watch.until(fault("DriverNotLoaded"))
    watch.driver.set_machine(machine)
    watch.watcher.request_report()
    watch.until(has_inventory)


def test_a_hanging_driver_is_reported_and_queried_again_by_another_child(
    start: StartWatch,
) -> None:
    machine = gpumachines.mixed()
    timing = GpuTiming(
        period_seconds=0.05, answer_seconds=0.5, retry_seconds=0.02, max_retry_seconds=0.1
    )
    watch = start(machine, timing)
    watch.until(has_inventory)
    watch.driver.set_machine(machine.with_values(**{"sleep.nvmlDeviceGetCount_v2": 3_600_000}))
    watch.until(fault("DriverHung"))
    watch.driver.set_machine(machine)
    watch.until(has_inventory)


def test_a_child_that_was_killed_is_started_again(start: StartWatch) -> None:
    watch = start(gpumachines.mixed())
    watch.until(has_inventory)
    child = watch.driver.child()
    assert child is not None
    os.kill(child, signal.SIGKILL)
    watch.until(fault("ChildEnded"))
    watch.until(has_inventory)


def test_a_child_that_repeatedly_ends_before_its_answer_is_a_driver_fault(
    start: StartWatch,
) -> None:
    machine = gpumachines.mixed()
    watch = start(machine)
    watch.until(has_inventory)
    # The fake driver aborts its process without its file of answers.
    watch.driver.facts.unlink()
    report = watch.until(fault("NoAnswer"))
    assert report.message == "the process that calls NVML ends repeatedly"
    watch.driver.set_machine(machine)
    watch.until(has_inventory)


def test_the_watcher_releases_the_driver_and_opens_it_again(start: StartWatch) -> None:
    machine = gpumachines.mixed()
    watch = start(machine, ON_REQUEST)
    watch.until(has_inventory)
    watch.watcher.release()
    watch.until(fault("LetGo"))
    assert watch.driver.child() is None
    watch.driver.set_machine(Machine(machine.cards, driver="570.86.15"))
    watch.watcher.resume()
    report = watch.until(has_inventory)
    assert report.inventory is not None
    assert report.inventory.driver == "570.86.15"


def test_a_watcher_that_released_the_driver_can_be_stopped(start: StartWatch) -> None:
    watch = start(gpumachines.mixed(), ON_REQUEST)
    watch.watcher.release()
    watch.until(fault("LetGo"))


def test_stopping_does_not_wait_for_a_driver_that_hangs(tmp_path: Path) -> None:
    machine = gpumachines.mixed().with_values(**{"sleep.nvmlInitWithFlags": 3_600_000})
    timing = GpuTiming(first_answer_seconds=NEVER)
    watch = Watch(FakeDriver(tmp_path, machine), timing)
    watch.watcher.stop()
    assert watch.watcher.take() == ()
