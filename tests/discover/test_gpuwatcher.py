"""The thread that keeps a child with NVML running: through upgrades, hangs and the child's end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.discover.gpuwatcher import GpuNews, GpuTiming, GpuWatcher
from agent.model.devices.gpu_actions import GpuActions
from agent.model.devices.gpu_health import GpuHealth, on_event, on_report
from agent.model.devices.gpus import GpuEvent, GpuReport, pci_address
from tests.discover import fakenvml, gpumachines
from tests.discover.fakenvml import FakeDriver, Machine
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.skipif(fakenvml.missing() is not None, reason=str(fakenvml.missing()))

NEVER = 3600.0
QUICK = GpuTiming(
    period_seconds=0.05, answer_seconds=DEADLINE_SECONDS, retry_seconds=0.02, max_retry_seconds=0.1
)
ASKED = GpuTiming(
    period_seconds=NEVER, least_seconds=0.0, answer_seconds=DEADLINE_SECONDS, retry_seconds=NEVER
)
"""Queries only when it must."""


class Watch:
    """A watcher and its last report."""

    def __init__(self, driver: FakeDriver, timing: GpuTiming) -> None:
        self.driver = driver
        self.events: list[GpuEvent] = []
        self.report = GpuReport("nothing yet")
        self.told = threading.Event()
        self.watcher = GpuWatcher(self.told.set, str(driver.root), timing, driver.environment)
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
            assert self.told.wait(DEADLINE_SECONDS), f"nothing came after {self.report}"
            self.told.clear()


def good(report: GpuReport) -> bool:
    return report.inventory is not None


def fault(name: str) -> Callable[[GpuReport], bool]:
    return lambda report: report.fault == name


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    watches: list[Watch] = []

    def started(machine: Machine, timing: GpuTiming = QUICK) -> Watch:
        watches.append(Watch(FakeDriver(tmp_path, machine), timing))
        return watches[-1]

    yield started
    for each in watches:
        each.watcher.stop()


def test_a_driver_that_is_loaded_later_and_replaced_needs_no_agent_restart(
    watch: Callable[..., Watch],
) -> None:
    machine = gpumachines.mixed()
    here = watch(machine.with_values(init=9))
    here.until(fault("DriverNotLoaded"))
    here.driver.set_machine(machine)
    report = here.until(good)
    assert report.inventory is not None
    assert report.inventory.driver == "550.163.01"
    here.driver.set_machine(machine.with_values(init=18, alive=18))
    here.until(fault("DriverMismatch"))
    here.driver.set_machine(Machine(machine.cards, driver="570.86.15"))
    report = here.until(good)
    assert report.inventory is not None
    assert (report.inventory.driver, len(report.inventory.gpus)) == ("570.86.15", 2)


def test_an_event_is_reported_at_once_and_causes_a_query(watch: Callable[..., Watch]) -> None:
    machine = gpumachines.mixed()
    here = watch(machine, ASKED)
    here.until(good)
    here.driver.set_machine(machine.with_values(0, **{"return": 15}))
    here.driver.event(0, 79)
    report = here.until(good)
    assert here.events == [GpuEvent(gpumachines.uuid(0), 79)]
    assert report.inventory is not None
    assert [each.fault for each in report.inventory.silent] == ["GpuLost"]


def test_many_events_cause_few_queries(
    watch: Callable[..., Watch],
) -> None:
    timing = GpuTiming(period_seconds=NEVER, least_seconds=NEVER, answer_seconds=DEADLINE_SECONDS)
    here = watch(gpumachines.mixed(), timing)
    here.until(good)
    for _ in range(50):
        here.driver.event(0, 31)
    here.driver.event(1, 79)
    last = GpuEvent(gpumachines.uuid(1), 79)
    taken: list[GpuNews] = []
    while not any(last in news.events for news in taken):
        assert here.told.wait(DEADLINE_SECONDS)
        here.told.clear()
        taken += here.watcher.take()
    assert all(len(set(news.events)) == len(news.events) for news in taken)
    assert {news.report for news in taken} == {None}


def test_an_event_after_a_query_is_reported_after_its_answer(watch: Callable[..., Watch]) -> None:
    """Otherwise the report would count as evidence about the event."""
    timing = GpuTiming(period_seconds=NEVER, least_seconds=NEVER, answer_seconds=DEADLINE_SECONDS)
    here = watch(gpumachines.mixed(), timing)
    for number in (0, 94):
        assert here.told.wait(DEADLINE_SECONDS)
        here.told.clear()
        if not number:
            here.driver.event(0, 94)
    first, then = here.watcher.take()
    assert first.report is not None
    assert (first.events, then) == ((), GpuNews((GpuEvent(gpumachines.uuid(0), 94),), None))
    assert here.watcher.take() == ()


def test_reports_do_not_accumulate_while_the_agent_does_not_read(
    watch: Callable[..., Watch],
) -> None:
    here = watch(gpumachines.mixed(), ASKED)
    here.until(good)
    for _ in range(9):
        here.driver.event(0, 31)
        assert here.told.wait(DEADLINE_SECONDS)
        here.told.clear()
    pending = here.watcher.take()
    assert len(pending) <= 4
    assert {event for news in pending for event in news.events} == {
        GpuEvent(gpumachines.uuid(0), 31)
    }


def test_a_requested_report_comes_before_the_period_ends(watch: Callable[..., Watch]) -> None:
    here = watch(gpumachines.mixed(), ASKED)
    here.until(good)
    here.watcher.request_report()
    here.until(good)


def test_a_requested_report_ends_the_wait_for_a_driver(watch: Callable[..., Watch]) -> None:
    machine = gpumachines.mixed()
    here = watch(machine.with_values(init=9), ASKED)
    here.until(fault("DriverNotLoaded"))
    here.driver.set_machine(machine)
    here.watcher.request_report()
    here.until(good)


def test_a_hanging_driver_is_reported_and_queried_again_by_another_child(
    watch: Callable[..., Watch],
) -> None:
    machine = gpumachines.mixed()
    timing = GpuTiming(
        period_seconds=0.05, answer_seconds=0.5, retry_seconds=0.02, max_retry_seconds=0.1
    )
    here = watch(machine, timing)
    here.until(good)
    here.driver.set_machine(machine.with_values(**{"sleep.nvmlDeviceGetCount_v2": 3_600_000}))
    here.until(fault("DriverHung"))
    here.driver.set_machine(machine)
    here.until(good)


def test_a_child_that_was_killed_is_started_again(watch: Callable[..., Watch]) -> None:
    here = watch(gpumachines.mixed())
    here.until(good)
    child = here.driver.child()
    assert child is not None
    os.kill(child, signal.SIGKILL)
    here.until(fault("ChildEnded"))
    here.until(good)


def test_a_child_that_repeatedly_ends_before_its_answer_is_a_driver_fault(
    watch: Callable[..., Watch],
) -> None:
    machine = gpumachines.mixed()
    here = watch(machine)
    health = on_report(GpuHealth(), here.until(good), 0, GpuActions({}))
    # The fake aborts its process if its file of answers is missing.
    here.driver.facts.unlink()
    report = here.until(fault("NoAnswer"))
    assert report.message == "the process that calls NVML ends repeatedly"
    assert [card.healthy for card in on_report(health, report, 1, GpuActions({})).cards] == [
        False
    ] * 2
    here.driver.set_machine(machine)
    here.until(good)


def test_it_releases_the_driver_and_opens_it_again(watch: Callable[..., Watch]) -> None:
    machine = gpumachines.mixed()
    here = watch(machine, ASKED)
    here.until(good)
    here.watcher.release()
    here.until(fault("LetGo"))
    assert here.driver.child() is None
    here.driver.set_machine(Machine(machine.cards, driver="570.86.15"))
    here.watcher.resume()
    report = here.until(good)
    assert report.inventory is not None
    assert report.inventory.driver == "570.86.15"


def test_a_watcher_that_released_the_driver_can_be_stopped(watch: Callable[..., Watch]) -> None:
    here = watch(gpumachines.mixed(), ASKED)
    here.watcher.release()
    here.until(fault("LetGo"))


def test_stopping_does_not_wait_for_a_driver_that_hangs(tmp_path: Path) -> None:
    machine = gpumachines.mixed().with_values(**{"sleep.nvmlInitWithFlags": 3_600_000})
    timing = GpuTiming(first_answer_seconds=NEVER)
    here = Watch(FakeDriver(tmp_path, machine), timing)
    here.watcher.stop()
    assert here.watcher.take() == ()


def test_seven_of_eight_from_driver_to_health(watch: Callable[..., Watch]) -> None:
    machine = gpumachines.a100_hgx()
    actions = GpuActions({})
    buses = [pci_address(card.bus) for card in machine.cards]
    here = watch(machine, ASKED)
    health = on_report(GpuHealth(), here.until(good), 0, actions, buses)
    assert (len(health.cards), {card.healthy for card in health.cards}) == (8, {True})
    here.driver.set_machine(
        Machine(machine.cards, enumerated=(0, 1, 2, 3, 4, 6, 7), pairs=machine.pairs)
    )
    here.driver.event(5, 79)
    report = here.until(good)
    for event in here.events:
        health = on_event(health, event, 1, actions)
    health = on_report(health, report, 1, actions, buses)
    ill = {card.gpu.uuid: [each.reason for each in card.gpu_conditions] for card in health.cards
           if not card.healthy}  # fmt: skip
    assert ill == {gpumachines.uuid(5): ["NotEnumerated", "XID79"]}
