"""How long pods wait, for evictions."""

from __future__ import annotations

from collections.abc import Mapping

from agent.usage.pod_pressure import PodPressure
from agent.usage.sampler import Counted
from agent.usage.waits import Stalls, Throttling, Waits


def counted(
    at: float,
    cpu: Mapping[str, float],
    throttled_seconds: float = 0.0,
    limited_times: int = 0,
    **memory: float,
) -> Counted:
    """`cpu`, `memory`: seconds in which some task has waited, by uid."""
    stalls: dict[str, Stalls] = {
        uid: {("cpu", "some"): cpu.get(uid, 0.0), ("memory", "some"): memory.get(uid, 0.0)}
        for uid in cpu.keys() | memory.keys()
    }
    quotas = {("throttled", "main"): Throttling(1, 1, throttled_seconds)}
    return Counted(Waits({}, stalls, quotas, {"limited": limited_times}), at=at)


def test_the_pod_that_waits_most_counts() -> None:
    pressure = PodPressure()
    pods = ("service", "other", "new")
    assert pressure.percent("cpu", pods, 15) is None
    pressure.add(counted(15, {"service": 1.0, "other": 2.0, "batch": 0.0}))
    assert pressure.percent("cpu", pods, 15) is None
    pressure.add(counted(30, {"service": 4.0, "other": 2.0, "batch": 15.0, "new": 9.0}))
    assert pressure.percent("cpu", pods, 30) == 20
    assert pressure.percent("cpu", ("other",), 30) == 0
    assert pressure.percent("cpu", (), 30) is None
    assert pressure.percent("cpu", pods, 90) is None, "the counters are old"


def test_who_is_stalled_by_its_own_limits_does_not_count() -> None:
    pressure = PodPressure()
    pressure.add(counted(15, {"throttled": 0.0}, limited_times=5, limited=0.0))
    pressure.add(counted(30, {"throttled": 3.0}, limited_times=5, limited=9.0))
    both = ("throttled", "limited")
    assert pressure.percent("cpu", both, 30) == 20, "nothing was in the way of its own"
    assert pressure.percent("memory", both, 30) == 60
    pressure.add(counted(45, {"throttled": 9.0}, 5.0, 6, limited=18.0))
    assert pressure.percent("cpu", ("throttled",), 45) is None
    assert pressure.percent("memory", ("limited",), 45) is None
    assert pressure.percent("cpu", both, 45) == 0


def test_a_minute_counts() -> None:
    pressure = PodPressure()
    for reading in range(10):
        waited = 15.0 * min(reading, 5)
        pressure.add(counted(15.0 * (reading + 1), {"service": waited}))
    assert pressure.percent("cpu", ("service",), 150) == 0
    pressure.add(counted(300, {"service": 500.0}))
    assert pressure.percent("cpu", ("service",), 300) is None
