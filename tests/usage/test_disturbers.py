"""What disturbs owners, by two looks with given values."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.usage.contention import Party, PartyKind
from agent.usage.disturbers import (
    MOST_NAMED,
    Disturber,
    DisturberKind,
    Disturbers,
    LookedOwner,
    OwnerInterval,
    OwnerLook,
    Remedy,
    disturbers,
)
from agent.usage.threads import SeenThread

ALL = CpuSet.parse("0-3")
OWN = CpuSet.parse("2-3")
OWNER = LookedOwner("shop/trader", OWN, frozenset({"/kubepods/podA"}))
BE = Party(PartyKind.POD, "batch/be", "BE")
LS = Party(PartyKind.POD, "shop/web", "LS")
GROUPS = {
    10: "/kubepods/podA/main",
    11: "/system.slice/cron.service/nested",
    12: "/kubepods/besteffort/podB/main",
    13: "/kubepods/podC/pause",
    14: "/kubepods/podC/web",
    15: "/user.slice/user-0.slice",
    17: "/kubepods/podGone/main",
}
PODS = {
    "/kubepods/podA": Party(PartyKind.POD, "shop/trader", "LSR"),
    "/kubepods/besteffort/podB": BE,
    "/kubepods/podC": LS,
}


def between(
    *threads: SeenThread,
    interrupts: tuple[str, str] = ("", ""),
    softirqs: tuple[str, str] = ("", ""),
    timers: str = "",
    seconds: float = 2.0,
) -> OwnerInterval:
    return OwnerInterval(
        OwnerLook(10.0, interrupts[0], softirqs[0]),
        OwnerLook(10.0 + seconds, interrupts[1], softirqs[1]),
        threads,
        GROUPS,
        PODS,
        frozenset({"/kubepods/podC/pause"}),
        timers,
    )


def task(
    process: int, last_cpu: int | None = None, *, name: str = "x", cpus: CpuSet = ALL
) -> SeenThread:
    ran = 0.0 if last_cpu is None else 0.5
    return SeenThread(process, name, False, cpus, ran, 4 if ran else 0, last_cpu)


def kernel(name: str, last_cpu: int | None = None, cpus: CpuSet = ALL) -> SeenThread:
    ran = 0.0 if last_cpu is None else 0.001
    return SeenThread(0, name, True, cpus, ran, 1 if ran else 0, last_cpu)


def of(interval: OwnerInterval, owner: LookedOwner = OWNER) -> Disturbers:
    [of_owner] = disturbers([owner], interval)
    return of_owner


@pytest.mark.parametrize(
    ("process", "party", "remedy"),
    [
        (11, Party(PartyKind.UNIT, "system.slice/cron.service"), Remedy.HOST_SLICES),
        (12, BE, Remedy.BE_PODS),
        (13, LS, Remedy.HOST_SLICES),
        (14, LS, Remedy.PODS),
        (15, Party(PartyKind.UNIT, "user.slice"), Remedy.HOST_SLICES),
        (16, Party(PartyKind.PROCESSES, "x"), Remedy.PARTITIONS),
        (17, Party(PartyKind.PROCESSES, "x"), Remedy.PARTITIONS),
    ],
    ids=["unit", "be-pod", "pause", "other-pod", "slice", "no-group", "pod-gone"],
)
def test_tasks_are_named_by_whose_they_are(process: int, party: Party, remedy: Remedy) -> None:
    pinned = task(process, 3, cpus=CpuSet([3]))
    seen = of(between(task(process, 2), pinned, task(process, 1), task(process), task(10, 2)))
    assert seen.named == (
        Disturber(DisturberKind.TASKS, party.name, remedy, OWN, 4.0, party, 0.5, True, threads=2),
    ), "the thread that ran on CPU 1 and the one that did not run are only allowed"
    assert seen.allowed == {remedy: 2}
    alone = of(between(pinned)).named
    assert [(one.elsewhere, one.ran_seconds) for one in alone] == [(False, 0.25)]


def test_threads_of_the_kernel_have_cpus_of_their_own_or_not() -> None:
    bound = [kernel(f"{name}/2", 2, CpuSet([2])) for name in ("ksoftirqd", "migration")]
    workers = [kernel(f"kworker/2:{n}-events", 2, CpuSet([2])) for n in (1, 2)]
    seen = of(
        between(
            *bound,
            *workers,
            kernel("ksoftirqd/3", None, CpuSet([3])),
            kernel("kswapd0", 3),
            kernel("kcompactd0"),
            kernel("kworker/u8:1-flush", 3),
            kernel("kworker/u8:2", None),
            kernel("elsewhere", 1, CpuSet([0, 1])),
        )
    )
    assert [(one.name, one.remedy, one.threads) for one in seen.named] == [
        ("kworker/2-events", Remedy.BOUND, 2),
        ("ksoftirqd/2", Remedy.BOUND, 1),
        ("kswapd0", Remedy.THREADS_OF_KERNEL, 1),
        ("kworker/u8-flush", Remedy.WORKQUEUES, 1),
        ("migration/2", Remedy.BOUND, 1),
    ]
    assert {one.kind for one in seen.named} == {DisturberKind.KERNEL_THREADS}
    assert seen.allowed == {Remedy.THREADS_OF_KERNEL: 1, Remedy.WORKQUEUES: 1}


def table(*rows: tuple[str, str, tuple[int, int, int, int]]) -> str:
    lines = [f"{number:>4}: {' '.join(map(str, values))} {tail}" for number, tail, values in rows]
    return "\n".join(("      CPU0 CPU1 CPU2 CPU3", *lines, " ERR: 0", ""))


def test_interrupts_are_of_devices_the_tick_or_the_kernel() -> None:
    names = {
        "24": "PCI-MSIX 1-edge nvme0q1",
        "25": "PCI-MSIX 2-edge nvme0q2",
        "26": "PCI-MSIX 3-edge eth0-rx-0",
        "LOC": "Local timer interrupts",
        "11": "GICv3 30 Level arch_timer",
        "RES": "Rescheduling interrupts",
        "TLB": "TLB shootdowns",
        "MCP": "Machine check polls",
    }
    grown = dict.fromkeys(names, (6, 6, 6, 6)) | {"26": (6, 0, 0, 0), "25": (0, 0, 2, 0)}
    seen = of(
        between(
            interrupts=(
                table(*((number, tail, (1, 1, 1, 1)) for number, tail in names.items())),
                table(
                    *(
                        (number, tail, tuple(1 + more for more in grown[number]))  # type: ignore[misc]
                        for number, tail in names.items()
                    )
                ),
            )
        )
    )
    told = {(one.kind, one.name): (one.times, str(one.cpus), one.remedy) for one in seen.named}
    of_kernel = DisturberKind.KERNEL_INTERRUPTS
    assert told == {
        (DisturberKind.INTERRUPTS, "nvme0"): (7.0, "2-3", Remedy.INTERRUPTS),
        (DisturberKind.TICKS, "Local timer interrupts"): (6.0, "2-3", Remedy.TICKS),
        (DisturberKind.TICKS, "CPU's arch_timer"): (6.0, "2-3", Remedy.TICKS),
        (of_kernel, "Rescheduling interrupts"): (6.0, "2-3", Remedy.WAKEUPS),
        (of_kernel, "TLB shootdowns"): (6.0, "2-3", Remedy.CALLS),
        (of_kernel, "Machine check polls"): (6.0, "2-3", Remedy.NOTHING),
    }, "eth0 interrupts only CPU 0"
    assert seen.named[0].numbers == (24, 25)


def test_softirqs_and_timers() -> None:
    def softirqs(number: int) -> str:
        kinds = ("NET_RX", "BLOCK", "SCHED", "RCU", "HRTIMER")
        return table(*((kind, "", (0, 0, number, 0)) for kind in kinds))

    timers = "cpu: 2\n #0: <0>, hrtimer_wakeup, S:01\n #1: <0>, tick_nohz_handler, S:01\n"
    timers += " #2: <0>, watchdog_timer_fn, S:01\ncpu: 0\n #0: <0>, other, S:01\n"
    seen = of(between(softirqs=(softirqs(0), softirqs(3)), timers=timers))
    assert {(one.name, one.times): one.remedy for one in seen.named} == {
        ("BLOCK", 1.5): Remedy.DEVICES,
        ("HRTIMER", 1.5): Remedy.TIMERS,
        ("NET_RX", 1.5): Remedy.PACKET_STEERING,
        ("RCU", 1.5): Remedy.CALLBACKS,
        ("SCHED", 1.5): Remedy.PARTITIONS,
        ("hrtimer_wakeup", 1.0): Remedy.TIMERS,
        ("watchdog_timer_fn", 1.0): Remedy.WATCHDOG,
    }
    assert {str(one.cpus) for one in seen.named} == {"2"}


def test_the_first_of_many_are_named() -> None:
    seen = of(between(*(task(100 + n, 2, name=f"p{n:02}") for n in range(MOST_NAMED + 5))))
    assert (len(seen.named), seen.more) == (MOST_NAMED, 5)
    assert not disturbers([OWNER], between(seconds=0.0))


CPUS = st.frozensets(st.integers(0, 3), min_size=1).map(CpuSet)


@st.composite
def threads(draw: st.DrawFn) -> SeenThread:
    cpus = draw(CPUS)
    last_cpu = draw(st.none() | st.sampled_from([*cpus]))
    return SeenThread(
        draw(st.integers(10, 17)),
        draw(st.sampled_from(["a", "kworker/1:0-x", "kworker/u8:0-x"])),
        draw(st.booleans()),
        cpus,
        0.0 if last_cpu is None else 0.5,
        0 if last_cpu is None else 1,
        last_cpu,
    )


COLUMNS = st.fixed_dictionaries(
    {name: st.tuples(*[st.integers(0, 2)] * 4) for name in ("24", "LOC", "NET_RX")}
)


@given(st.lists(threads(), max_size=8), COLUMNS, CPUS)
def test_what_was_elsewhere_is_never_named(
    seen: list[SeenThread], columns: Mapping[str, tuple[int, int, int, int]], own: CpuSet
) -> None:
    zero = (0, 0, 0, 0)
    tails = {"24": "PCI 1-edge eth0", "LOC": "Local timer interrupts", "NET_RX": ""}

    def text(*names: str, now: bool) -> str:
        return table(*((name, tails[name], columns[name] if now else zero) for name in names))

    interval = between(
        *seen,
        interrupts=(text("24", "LOC", now=False), text("24", "LOC", now=True)),
        softirqs=(text("NET_RX", now=False), text("NET_RX", now=True)),
    )
    owner = LookedOwner("shop/trader", own, OWNER.groups)
    disturbed = of(interval, owner)
    own_threads = [t for t in seen if not t.kernel and GROUPS.get(t.process) == GROUPS[10]]
    there = [t for t in seen if t not in own_threads and t.last_cpu in {*own}]
    named = [one for one in disturbed.named if one.party is not None]
    assert sum(one.threads for one in named) == len(there)
    for one in disturbed.named:
        assert one.cpus
        assert one.cpus <= own
    counted = {one.name: one.times for one in disturbed.named if one.party is None}
    expected = {
        name: sum(columns[line][cpu] for cpu in own) / 2.0
        for line, name in (("24", "eth0"), ("LOC", tails["LOC"]), ("NET_RX", "NET_RX"))
    }
    assert counted == {name: times for name, times in expected.items() if times}
    allowed = [
        t
        for t in seen
        if t not in own_threads
        and t not in there
        and t.cpus & own
        and not (t.kernel and len(t.cpus) == 1)
    ]
    assert sum(disturbed.allowed.values()) == len(allowed)


def test_a_large_machine_is_looked_at_in_a_second() -> None:
    cpus = 512
    head = "     " + " ".join(f"CPU{cpu}" for cpu in range(cpus))

    def interrupts(more: int) -> str:
        lines = [head]
        for line in range(2000):
            grown = more if line % 4 == 0 else 0
            values = " ".join(
                f"{1000 + (grown if cpu == line % cpus else 0)}" for cpu in range(cpus)
            )
            lines.append(f"{line}: {values} PCI-MSIX {line}-edge nvme{line // 64}q{line % 64}")
        lines.append(f"LOC: {' '.join([str(1000 + more)] * cpus)} Local timer interrupts")
        return "\n".join(lines)

    seen = [
        SeenThread(n, f"p{n % 50}", n % 3 == 0, CpuSet([n % cpus]), 0.1, 1, n % cpus)
        if n % 2
        else SeenThread(n, f"p{n % 50}", n % 3 == 0, CpuSet(range(cpus)))
        for n in range(16_384)
    ]
    interval = between(*seen, interrupts=(interrupts(0), interrupts(5)))
    owners = [
        LookedOwner(f"ns/{n}", CpuSet([4 * n, 4 * n + 1]), frozenset({f"/kubepods/pod{n}"}))
        for n in range(100)
    ]
    began = time.process_time()
    assert len(disturbers(owners, interval)) == 100
    assert time.process_time() - began < 1.0
