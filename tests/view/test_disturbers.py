"""What people are told about disturbed owners."""

from __future__ import annotations

import json

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.settings.feature_modes import FeatureMode
from agent.usage.contention import Party, PartyKind
from agent.usage.disturbers import (
    Disturber,
    DisturberKind,
    Disturbers,
    LookedOwner,
    Remedy,
)
from agent.view.disturbers import DisturbedOwner, as_text, lines, quiet_now, shown
from agent.view.features import ShownFeature
from agent.view.quiet import ShownQuiet, ShownQuietOwner, as_json
from agent.view.quiet import as_text as as_text_of_agent

OWN = CpuSet.parse("2-3")
OWNER = LookedOwner("shop/trader", OWN, frozenset())
CRON = Party(PartyKind.UNIT, "system.slice/cron.service")
CPU = CpuSet([2])


def one(
    kind: DisturberKind,
    name: str,
    remedy: Remedy,
    times: float = 0.0,
    party: Party | None = None,
    ran_seconds: float = 0.0,
    *,
    elsewhere: bool = False,
    threads: int = 0,
    numbers: tuple[int, ...] = (),
) -> Disturber:
    return Disturber(
        kind, name, remedy, CPU, times, party, ran_seconds, elsewhere, threads, numbers
    )


SEEN = Disturbers(
    OWNER,
    2.0,
    (
        one(
            DisturberKind.TASKS,
            CRON.name,
            Remedy.HOST_SLICES,
            12.0,
            CRON,
            0.1204,
            elsewhere=True,
            threads=3,
        ),
        one(
            DisturberKind.TASKS,
            "batch/be",
            Remedy.BE_PODS,
            party=Party(PartyKind.POD, "batch/be", "BE"),
            ran_seconds=1.0,
            threads=1,
        ),
        one(
            DisturberKind.TASKS,
            "evil\x1b[2J",
            Remedy.PARTITIONS,
            1.0,
            Party(PartyKind.PROCESSES, "evil\x1b[2J"),
            0.0000312,
            threads=1,
        ),
        one(
            DisturberKind.KERNEL_THREADS,
            "kworker/2-events",
            Remedy.BOUND,
            3.2,
            Party(PartyKind.KERNEL_THREAD, "kworker/2-events"),
            0.00012,
            threads=1,
        ),
        one(DisturberKind.INTERRUPTS, "nvme0", Remedy.INTERRUPTS, 230.4, numbers=(24, 25)),
        one(DisturberKind.TICKS, "Local timer interrupts", Remedy.TICKS, 250.0),
        one(DisturberKind.SOFTIRQS, "SCHED", Remedy.PARTITIONS, 0.49),
        one(DisturberKind.TIMERS, "hrtimer_wakeup", Remedy.TIMERS, 2.0),
    ),
    7,
    {Remedy.HOST_SLICES: 41, Remedy.THREADS_OF_KERNEL: 1},
)


def features(**modes: FeatureMode) -> tuple[ShownFeature, ...]:
    return tuple(ShownFeature(name.replace("_", "-"), mode, 0) for name, mode in modes.items())


def test_lines_are_grouped_by_what_would_help() -> None:
    text = lines(shown(SEEN, features(interrupts=FeatureMode.ACT), ["interrupts"]))
    assert text == [
        "On CPUs 2-3 of shop/trader, in 2.0 s:",
        "  system.slice/cron.service, 3 threads: at most 120 ms of each second, 12 runs a second "
        "on CPU 2",
        "  41 other threads may run there",
        "    -> host-slices would keep units of the host and pause containers away; it is off on "
        "this node (--quiet)",
        "  pod batch/be (BE): 1000 ms of each second on CPU 2",
        "    -> BE pods may use the CPUs of LSR pods, and not those of LSE pods",
        "  process evil?[2J: 0.031 ms of each second, 1 run a second on CPU 2",
        "  softirq SCHED: 0.49 a second on CPU 2",
        "    -> partitions would take these CPUs from the load balancer, and on cgroup v2 from all "
        "other groups; it is off on this node (--quiet)",
        "  kernel thread kworker/2-events: 0.12 ms of each second, 3.2 runs a second on CPU 2",
        "    -> nothing moves them: each CPU has its own, for what interrupts, timers and threads "
        "there leave to do",
        "  nvme0 (IRQ 24, 25): 230 a second on CPU 2",
        "    -> interrupts acts: the kernel manages these itself, other CPUs have no room for "
        "them, they leave when they next occur, or the pod keeps them on its first core",
        "  Local timer interrupts: 250 a second on CPU 2",
        "    -> no feature stops the tick; the boot option nohz_full= does while one thread runs",
        "  timer hrtimer_wakeup: 2 wait on CPU 2",
        "    -> nothing moves them: they were armed on these CPUs, also by the owner's own threads",
        "  1 other kernel thread may run there",
        "    -> no feature moves threads of the kernel; the boot option nohz_full= keeps most "
        "away, and taskset moves most",
        "  and 7 more",
    ]


@pytest.mark.parametrize(
    ("mode", "asked", "text"),
    [
        (None, (), "; it is off on this node (--quiet)"),
        (FeatureMode.OFF, ("interrupts",), "; it is off on this node (--quiet)"),
        (FeatureMode.OBSERVE, ("interrupts",), "; it only observes on this node (--quiet)"),
        (FeatureMode.ACT, (), "; the pod does not ask for it (annotation topolet.io/quiet)"),
        (FeatureMode.ACT, ("interrupts",), "acts: the kernel manages these itself, "),
    ],
)
def test_why_a_feature_does_not_take_something_away(
    mode: FeatureMode | None, asked: tuple[str, ...], text: str
) -> None:
    disk = one(DisturberKind.INTERRUPTS, "nvme0", Remedy.INTERRUPTS, 230.4, numbers=(24,))
    on_node = None if mode is None else features(interrupts=mode)
    owner = shown(Disturbers(OWNER, 2.0, (disk,)), on_node, asked)
    [advice] = owner.advice
    assert text in advice.text
    assert owner.features == asked


def test_every_remedy_has_a_sentence() -> None:
    for remedy in Remedy:
        owner = shown(Disturbers(OWNER, 2.0, (), allowed={remedy: 1}), None, ())
        assert lines(owner)[2].startswith("    -> ")


def test_nothing_disturbs() -> None:
    quiet: DisturbedOwner = shown(Disturbers(OWNER, 2.0, ()), (), ())
    assert lines(quiet) == ["On CPUs 2-3 of shop/trader, in 2.0 s: nothing of others"]


def test_the_node_shows_features_and_disturbed_owners() -> None:
    owner = shown(SEEN, None, ())
    alone = quiet_now(None, (owner,), "")
    assert as_text(alone).startswith(
        "The agent of this node quiets no CPUs: it does with --quiet=act or observe.\n"
        "No owner asks for them.\n"
        "On CPUs 2-3 of shop/trader, in 2.0 s:\n"
    )
    quiet = ShownQuiet(
        features(interrupts=FeatureMode.ACT),
        (ShownQuietOwner("shop/trader", "2-3", ("interrupts",)),),
    )
    unseen = quiet_now(quiet, (), "the runtime does not answer")
    assert as_text(unseen) == as_text_of_agent(quiet) + (
        "Who runs on the CPUs of owners is not known: the runtime does not answer\n"
    )
    body = json.loads(as_json(quiet_now(quiet, (owner,), "")))
    assert body["features"][0]["name"] == "interrupts"
    assert body["disturbed"][0]["disturbers"][4] == {
        "kind": "interrupts",
        "name": "nvme0",
        "remedy": "interrupts",
        "cpus": "2",
        "times": 230.4,
        "microseconds": 0,
        "elsewhere": False,
        "threads": 0,
        "interrupts": [24, 25],
        "party": "",
        "qos": "",
    }
