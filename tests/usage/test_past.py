"""The last hour of load and pressure."""

from __future__ import annotations

import pytest

from agent.usage.past import MACHINE, MINUTES, NOTHING, LoadHistory, PastLoad, PastPool

WALL = 1_700_000_000.0
POD_A = ("pod", "a")


def test_a_minute_has_the_mean_of_its_samples_and_a_minute_without_samples_is_unknown() -> None:
    history = LoadHistory()
    for at, cpus in ((6000, 1.0), (6015, 2.0), (6030, 6.0), (6120, 4.0)):
        history.add(at, {POD_A: {"cpus": cpus}})
    load = history.hour(6130, WALL).pods["a"]
    assert load.cpus[-3:] == (3.0, None, 4.0)
    assert set(load.cpus[:-3]) == {None}
    assert load == PastLoad(load.cpus), "what was never measured is empty"


def test_the_last_minute_is_that_of_the_call() -> None:
    history = LoadHistory()
    history.add(6000, {MACHINE: {"cpu_pressure": 0.5}})
    later = history.hour(6130, WALL)
    assert later.begin == WALL - 10 - 59 * 60
    assert later.machine.cpu_pressure[-3:] == (0.5, None, None)
    assert history.hour(6000 + 59 * 60, WALL).machine.cpu_pressure[0] == 0.5
    assert history.hour(6000 + 60 * 60, WALL).machine == NOTHING


@pytest.mark.parametrize("gap_minutes", [1, 59, 60, 61, 1000])
def test_an_older_hour_is_forgotten(gap_minutes: int) -> None:
    history = LoadHistory()
    for minute in range(MINUTES):
        history.add(minute * 60, {MACHINE: {"cpus": 1.0}})
    at = (MINUTES - 1 + gap_minutes) * 60
    history.add(at, {MACHINE: {"cpus": 2.0}})
    values = history.hour(at, WALL).machine.cpus
    kept_minutes = max(MINUTES - gap_minutes, 0)
    unknown = (None,) * (MINUTES - kept_minutes - 1)
    assert values == (*((1.0,) * kept_minutes), *unknown, 2.0)


def test_a_part_that_is_gone_is_dropped() -> None:
    history = LoadHistory()
    history.add(60, {POD_A: {"cpus": 1.0}, ("pool", "LS", 1): {"of_cpus": 4}})
    hour = history.hour(60, WALL)
    assert (set(hour.pods), hour.pools) == (
        {"a"},
        (PastPool("LS", 1, PastLoad(of_cpus=(*([None] * 59), 4.0))),),
    )
    history.add(75, {("numa-node", 0): {}})
    hour = history.hour(75, WALL)
    assert (hour.pods, hour.pools, hour.numa_nodes) == ({}, (), {0: NOTHING})
