"""Looks at groups whose values are given, on a root without and with files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.usage.contention import Party, PartyKind, Runner, WaitingContainer
from agent.usage.interrupts import CpuTimes, Interrupts
from agent.usage.look import Look, LookedPod, Lookout, interval
from agent.usage.sampler import SampledPod
from agent.usage.schedstat import Delays, KernelThread
from agent.usage.waits import Throttling

API = Party(PartyKind.POD, "shop/api", "LS")
POD = LookedPod(API, SampledPod("a", "/pods/a", {"main": "/pods/a/main", "side": "/pods/a/side"}))
HEAD = "      CPU0   CPU1\n"


def look(at: float, **values: object) -> Look:
    empty = Look(at, Interrupts(), {}, {}, {}, {}, Delays(), ())
    return msgspec.structs.replace(empty, **values)


class FakeGroups:
    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        self.threads_of: dict[str, tuple[int, ...]] = {}

    def children(self, group: str) -> tuple[str, ...]:
        below = "/" if group == "/" else f"{group}/"
        names = {
            name[len(below) :].partition("/")[0]
            for name in self.used
            if name != group and name.startswith(below)
        }
        return tuple(f"{below}{name}" for name in sorted(names))

    def cpu_seconds(self, group: str) -> float | None:
        return self.used.get(group)

    def throttling(self, group: str) -> Throttling | None:
        return None

    def cpus(self, group: str) -> CpuSet:
        return CpuSet([0, 1])

    def threads(self, group: str) -> tuple[int, ...]:
        return self.threads_of.get(group, ())


def write_thread(root: Path, thread: int, delay_seconds: float) -> None:
    (root / f"proc/{thread}").mkdir(parents=True, exist_ok=True)
    (root / f"proc/{thread}/schedstat").write_text(f"1 {round(delay_seconds * 1e9)} 1\n")


def test_mounts_and_names_that_are_no_text_are_no_units(tmp_path: Path) -> None:
    clock, groups = [10.0], FakeGroups()
    (tmp_path / "proc").mkdir()
    names = ("/system.slice/a.mount", "/system.slice/b.service", "/\udcff", "/machine.slice")
    groups.used = dict.fromkeys(names, 1.0)
    lookout = Lookout(str(tmp_path), groups, lambda: clock[0])
    assert lookout.look([POD]) is None
    clock[0] += 1.0
    groups.used = dict.fromkeys(names, 1.5)
    between = lookout.look([POD])
    assert between is not None
    assert not lookout.incomplete
    assert [runner.party.name for runner in between.runners] == [
        "system.slice/b.service",
        "machine.slice",
    ]


def test_two_looks_are_an_interval(tmp_path: Path) -> None:
    clock, groups = [10.0], FakeGroups()
    groups.used = {
        "/pods/a": 1.0,
        "/pods/a/main": 0.5,
        "/pods/a/main/nested": 0.1,
        "/pods/a/side": 0.5,
        "/system.slice/backup.service": 1.0,
        "/machine.slice": 1.0,
        "/machine.slice/vm": 1.0,
    }
    groups.threads_of = {"/pods/a/main": (5,), "/pods/a/main/nested": (6,)}
    for thread in (5, 6):
        write_thread(tmp_path, thread, 0.0)
    (tmp_path / "proc/stat").write_text("cpu0 0 0 0 0 0 0 0 0\n")
    lookout = Lookout(str(tmp_path), groups, lambda: clock[0])
    assert lookout.look([POD]) is None
    clock[0] += 2.0
    groups.used["/pods/a"] += 1.5
    groups.used["/pods/a/main"] += 1.0
    groups.used["/system.slice/backup.service"] += 0.25
    groups.used["/machine.slice"] += 0.5
    write_thread(tmp_path, 5, 0.25)
    write_thread(tmp_path, 6, 0.5)
    (tmp_path / "proc/stat").write_text("cpu0 100 0 50 0 0 0 0 0\n")
    between = lookout.look([POD])
    assert between is not None
    assert (between.seconds, between.process_seconds) == (2.0, {0: 1.5})
    both = CpuSet([0, 1])
    assert between.containers == (WaitingContainer(API, both, 1.0, 0.75),)
    assert between.runners == (
        Runner(API, both, 0.5),
        Runner(Party(PartyKind.UNIT, "system.slice/backup.service"), both, 0.25),
        Runner(Party(PartyKind.UNIT, "machine.slice"), both, 0.5),
    ), "the threads of a container that uses nothing are not read"


def test_a_container_that_begins_to_run_is_known_at_the_next_look(tmp_path: Path) -> None:
    clock, groups = [10.0], FakeGroups()
    groups.used = {"/pods/a": 0.0}
    groups.threads_of = {"/pods/a/main": (5,)}
    write_thread(tmp_path, 5, 0.0)
    lookout = Lookout(str(tmp_path), groups, lambda: clock[0])
    lookout.look([POD])
    incomplete = []
    for used in (1.0, 2.0):
        clock[0] += 2.0
        groups.used = {"/pods/a": used, "/pods/a/main": used}
        between = lookout.look([POD])
        assert between is not None
        incomplete.append((lookout.incomplete, len(between.containers)))
    assert incomplete == [(True, 0), (False, 1)]


def test_a_container_that_moved_may_have_run_on_all_its_cpus() -> None:
    def at(seconds: float, cpu: int, used: float) -> Look:
        group = "/pods/a/main"
        return look(seconds, used={group: used}, cpus={group: CpuSet([cpu])})

    between = interval(at(0.0, 0, 1.0), at(1.0, 1, 2.0), [POD], lambda thread: None)
    assert between.runners == (Runner(API, CpuSet([0, 1]), 1.0),)


def test_the_quota_of_a_pod_throttles_the_containers_that_waited() -> None:
    def at(seconds: float, used: float, delays: Mapping[str, float], throttled: float) -> Look:
        groups = ("/pods/a", *POD.sampled.containers.values())
        return look(
            seconds,
            cpus=dict.fromkeys(groups, CpuSet([0])),
            used={group: used if group == "/pods/a" else used / 2 for group in groups},
            throttled={"/pods/a": throttled, "/pods/a/main": throttled / 10},
            delays=Delays(1, {group: {1: delay} for group, delay in delays.items()}),
        )

    between = interval(
        at(0.0, 0.0, {"/pods/a/main": 0.0, "/pods/a/side": 0.0}, 0.0),
        at(1.0, 1.0, {"/pods/a/main": 0.3, "/pods/a/side": 0.1}, 0.2),
        [POD],
        lambda thread: None,
    )
    main, side = between.containers
    assert (main.throttled_seconds, side.throttled_seconds) == pytest.approx((0.17, 0.05))


def test_kernel_threads_have_names() -> None:
    names = {
        3: KernelThread("kworker/u8:2-writeback", CpuSet([0, 1])),
        4: KernelThread("ksoftirqd/1", CpuSet([1])),
        5: KernelThread("kworker/1:1H-kblockd", CpuSet([1])),
        6: None,
        8: KernelThread("kworker/u8:3+writeback", CpuSet([0, 1])),
        9: KernelThread("kworker/u8:4", CpuSet([0, 1])),
    }
    softirqs = [HEAD + f"NET_RX:   0   {count}\n" for count in (1, 9)]
    times = CpuTimes(0.0, 0.0, 0.0, 0.0)
    before = look(0.0, interrupts=Interrupts({1: times}, "", softirqs[0]))
    now = look(
        1.0,
        interrupts=Interrupts({1: times}, "", softirqs[1]),
        kernel_threads={3: 0.5, 4: 0.25, 5: 0.125, 6: 0.5, 7: 0.0001, 8: 0.75, 9: 0.25},
    )
    between = interval(before, now, (), lambda thread: names[thread])
    assert between.runners == (
        Runner(Party(PartyKind.KERNEL_THREAD, "kworker/u8-writeback"), CpuSet([0, 1]), 0.5),
        Runner(Party(PartyKind.INTERRUPTS, "softirq NET_RX"), CpuSet([1]), 0.25),
        Runner(Party(PartyKind.KERNEL_THREAD, "kworker/1-kblockd"), CpuSet([1]), 0.125),
        Runner(Party(PartyKind.KERNEL_THREAD, "kworker/u8-writeback"), CpuSet([0, 1]), 0.75),
        Runner(Party(PartyKind.KERNEL_THREAD, "kworker/u8"), CpuSet([0, 1]), 0.25),
    )


def test_a_container_may_make_any_number_of_groups(tmp_path: Path) -> None:
    clock, groups = [10.0], FakeGroups()
    (tmp_path / "proc").mkdir()
    deep = "/pods/a/main" + "/x" * 1100
    wide = [f"/pods/a/side/{number:04}" for number in range(600)]
    groups.used = dict.fromkeys(("/pods/a/main", "/pods/a/side", deep, *wide), 1.0)
    groups.threads_of = {deep[: -2 * 1000]: (5,), deep: (6,), wide[-1]: (7,)}
    for thread in (5, 6, 7):
        write_thread(tmp_path, thread, float(thread))
    lookout = Lookout(str(tmp_path), groups, lambda: clock[0])
    lookout.look([POD])
    clock[0] += 1.0
    groups.used = {group: seconds + 1.0 for group, seconds in groups.used.items()}
    write_thread(tmp_path, 5, 5.25)
    between = lookout.look([POD])
    assert between is not None
    assert [container.delay_seconds for container in between.containers] == [0.25, 0.0]


def test_a_group_that_can_not_be_read_did_not_run() -> None:
    between = interval(look(0.0), look(1.0), [POD], lambda thread: None)
    assert (between.containers, between.runners) == ((), ())
