"""Who presses on a pod that is stalled, and who shares its card."""

from __future__ import annotations

import pytest

from agent.model.devices.holding import GpuUse
from agent.usage.contention import Party, PartyKind
from agent.usage.pressure import (
    DISKS,
    MEMORY,
    CacheUse,
    Consumption,
    Pressure,
    SharedCard,
    cache_uses,
    pressures,
    shared_cards,
)
from agent.usage.resctrl import Monitored

API = Party(PartyKind.POD, "shop/api", "LS")
HOG = Party(PartyKind.POD, "batch/hog", "BE")
BACKUP = Party(PartyKind.UNIT, "backup.service")
MB = 1 << 20


def test_who_grew_and_who_is_above_its_request_press_on_memory() -> None:
    before = {
        API: Consumption(100 * MB, stalled_seconds={MEMORY: 5.0, DISKS: 1.0}),
        HOG: Consumption(100 * MB, stalled_seconds={MEMORY: 0.0}),
        BACKUP: Consumption(100 * MB),
    }
    now = {
        API: Consumption(120 * MB, stalled_seconds={MEMORY: 6.5, DISKS: 1.5}),
        HOG: Consumption(400 * MB, stalled_seconds={MEMORY: 0.5}),
        BACKUP: Consumption(90 * MB),
    }
    requests = {API: 100 * MB, HOG: 50 * MB, Party(PartyKind.POD, "shop/new"): MB}
    assert pressures(before, now, 10.0, lambda: requests) == (
        Pressure(
            API,
            MEMORY,
            0.15,
            0.0,
            ((HOG, 30.0 * MB), (API, 2.0 * MB)),
            ((HOG, 350.0 * MB), (API, 20.0 * MB)),
        ),
    )


def test_the_requests_are_read_once_for_all_pods_that_are_stalled() -> None:
    pods = [Party(PartyKind.POD, f"shop/{number}") for number in range(3)]
    before = dict.fromkeys(pods, Consumption(MB, stalled_seconds={MEMORY: 0.0}))
    now = dict.fromkeys(pods, Consumption(2 * MB, stalled_seconds={MEMORY: 1.0}))
    reads = []

    def requested_bytes() -> dict[Party, int]:
        reads.append(1)
        return {}

    assert [each.pod for each in pressures(before, now, 1.0, requested_bytes)] == pods
    assert reads == [1]


def test_without_psi_major_page_faults_say_that_a_pod_is_stalled() -> None:
    before = {API: Consumption(10 * MB, major_faults=100), HOG: Consumption(0, major_faults=100)}
    now = {API: Consumption(10 * MB, major_faults=700), HOG: Consumption(20 * MB, major_faults=200)}
    (pressure,) = pressures(before, now, 10.0)
    assert (pressure.pod, pressure.stalled, pressure.faults) == (API, 0.0, 60.0)
    assert pressure.takers == ((HOG, 2.0 * MB),)
    with_psi = {API: Consumption(10 * MB, stalled_seconds={MEMORY: 0.0}, major_faults=700)}
    assert pressures(before, with_psi, 10.0) == ()


def test_who_moves_bytes_on_the_disks_of_the_pod_presses_on_them() -> None:
    before = {
        API: Consumption(disk_bytes={"sda": 0}, stalled_seconds={DISKS: 0.0}),
        HOG: Consumption(disk_bytes={"sda": 5 * MB, "sdb": 0}),
        BACKUP: Consumption(disk_bytes={"sda": 0, "sdb": 0}),
    }
    now = {
        API: Consumption(disk_bytes={"sda": 20 * MB}, stalled_seconds={DISKS: 5.0}),
        HOG: Consumption(disk_bytes={"sda": 25 * MB, "sdb": 900 * MB}),
        BACKUP: Consumption(disk_bytes={"sda": 100 * MB, "sdb": 0}),
    }
    (pressure,) = pressures(before, now, 10.0)
    assert (pressure.resource, pressure.stalled) == (DISKS, 0.5)
    assert pressure.takers == ((BACKUP, 10.0 * MB), (HOG, 2.0 * MB), (API, 2.0 * MB))


def test_on_a_pod_without_disks_all_disks_press() -> None:
    before = {
        API: Consumption(stalled_seconds={DISKS: 0.0}),
        HOG: Consumption(disk_bytes={"sda": 0}),
    }
    now = {
        API: Consumption(stalled_seconds={DISKS: 5.0}),
        HOG: Consumption(disk_bytes={"sda": 50 * MB}),
    }
    (pressure,) = pressures(before, now, 10.0)
    assert pressure.takers == ((HOG, 5.0 * MB),)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_two_moments_that_are_one_have_no_pressure(seconds: float) -> None:
    before = {API: Consumption(stalled_seconds={DISKS: 0.0})}
    now = {API: Consumption(stalled_seconds={DISKS: 5.0})}
    assert pressures(before, now, seconds) == ()


def test_pods_share_a_card_that_is_busy() -> None:
    uses = [
        GpuUse("GPU-1", "a/x", "main", 5, 60),
        GpuUse("GPU-1", "a/y", "main", 5, 20),
        GpuUse("GPU-1", "a/y", "side", 5, 15),
        GpuUse("GPU-1", "", "", 5, None),
        GpuUse("GPU-2", "a/x", "main", 5, 10),
        GpuUse("GPU-2", "a/y", "main", 5, 10),
        GpuUse("GPU-3", "a/z", "main", 5, 99),
    ]
    assert shared_cards(uses, {"GPU-1": 95, "GPU-2": 20, "GPU-3": 99}) == (
        SharedCard("a/x", "GPU-1", 95, (("a/y", 35), ("", None))),
        SharedCard("a/y", "GPU-1", 95, (("a/x", 60), ("", None))),
    )


def test_groups_of_resctrl_are_ranked_by_what_they_move() -> None:
    before = {
        ("BE", "0"): Monitored(5 * MB, 100 * MB, 0),
        ("/", "0"): Monitored(9 * MB, 100 * MB, 0),
        ("LS", "0"): Monitored(None, None, None),
        ("idle", "0"): Monitored(MB, 5, 5),
    }
    now = {
        ("BE", "0"): Monitored(6 * MB, 900 * MB, 0),
        ("/", "0"): Monitored(None, 1700 * MB, 0),
        ("LS", "0"): Monitored(None, None, None),
        ("idle", "0"): Monitored(MB, 6, 5),
        ("new", "0"): Monitored(MB, 900 * MB, 5),
    }
    assert cache_uses(before, now, 2.0) == (
        CacheUse("/", "0", 800.0 * MB, 0),
        CacheUse("BE", "0", 400.0 * MB, 6 * MB),
    )
    assert cache_uses(before, now, 0.0) == ()
