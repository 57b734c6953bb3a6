"""The sentence about a wait."""

from __future__ import annotations

import json

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.usage.contention import CoreSharing, CpuWait, Party, PartyKind
from agent.usage.pressure import DISKS, MEMORY, CacheUse, Pressure, SharedCard
from agent.view.contention import (
    Disturbance,
    as_json,
    as_text,
    sentence,
    sentences,
    shown,
    shown_pressure,
    shown_sharing,
)

API = Party(PartyKind.POD, "shop/api-7", "LS")
TAKERS = (
    (Party(PartyKind.POD, "batch/transcode-3", "BE"), 0.22),
    (Party(PartyKind.UNIT, "system.slice/backup.service"), 0.06),
    (Party(PartyKind.INTERRUPTS, "nvme0"), 0.03),
    (Party(PartyKind.KERNEL_THREAD, "kworker/u8-writeback"), 0.0123),
    (Party(PartyKind.HYPERVISOR, "the hypervisor"), 0.0004),
)
CPUS = CpuSet.parse("4-7")


@pytest.mark.parametrize(
    ("wait", "usual", "text"),
    [
        (
            CpuWait(API, CPUS, 0.31, 0.0, 0.0, TAKERS[:3]),
            None,
            "shop/api-7 waited 310 ms of each second for CPUs 4-7: 220 ms batch/transcode-3 (BE), "
            "60 ms system.slice/backup.service, 30 ms interrupts of nvme0",
        ),
        (
            CpuWait(API, CPUS, 0.8327, 0.4, 0.11, TAKERS),
            0.02,
            "shop/api-7 waited 832 ms of each second (usually 20) for CPUs 4-7: 400 ms its own "
            "quota, 220 ms batch/transcode-3 (BE), 110 ms its own threads, 60 ms "
            "system.slice/backup.service, 30 ms interrupts of nvme0, 12 ms others",
        ),
        (
            CpuWait(API, CPUS, 0.1, 0.0, 0.0, ((TAKERS[3][0], 0.1),)),
            None,
            "shop/api-7 waited 100 ms of each second for CPUs 4-7: 100 ms kernel thread "
            "kworker/u8-writeback",
        ),
        (
            CpuWait(API, CPUS, 0.0004, 0.0, 0.0, TAKERS[4:]),
            0.02,
            "shop/api-7 did not wait for CPUs 4-7",
        ),
    ],
)
def test_the_parts_are_named_from_the_largest_to_the_smallest(
    wait: CpuWait, usual: float | None, text: str
) -> None:
    assert sentence(shown(wait, 15.0, usual)) == text


def test_json_has_all_takers_and_parts_that_add_up() -> None:
    wait = shown(CpuWait(API, CPUS, 0.8327, 0.4, 0.11, TAKERS), 2.0)
    printed = json.loads(as_json(Disturbance(wait)))["cpu"]
    assert [taker["kind"] for taker in printed["takers"]] == [
        "pod",
        "unit",
        "interrupts",
        "kernel-thread",
    ]
    parts = printed["throttled_milliseconds"] + printed["own_milliseconds"]
    parts += sum(taker["milliseconds"] for taker in printed["takers"])
    assert printed["waited_milliseconds"] == parts == 832
    assert (printed["usual_milliseconds"], printed["seconds"]) == (None, 2.0)


def test_a_name_that_somebody_chose_does_not_control_the_terminal() -> None:
    hostile = Party(PartyKind.UNIT, "system.slice/\x1b[2Jx")
    assert "\x1b" not in sentence(shown(CpuWait(API, CPUS, 0.2, 0.0, 0.0, ((hostile, 0.2),)), 1.0))


def test_each_kind_of_disturbance_has_a_sentence() -> None:
    hog, etl = TAKERS[0][0], Party(PartyKind.POD, "batch/etl", "BE")
    growing = ((hog, 60.0 * (1 << 20)), (API, 5.0 * (1 << 20)))
    moved = tuple((Party(PartyKind.POD, f"batch/{name}"), 9.0 * (1 << 20)) for name in "abcd")
    of = Disturbance(
        shown(CpuWait(API, CPUS, 0.0, 0.0, 0.0, ()), 15.0),
        (
            shown_pressure(Pressure(API, MEMORY, 0.12, 3.0, growing, ((hog, 2.0 * (1 << 30)),))),
            shown_pressure(Pressure(API, MEMORY, 0.0, 80.2, ())),
            shown_pressure(Pressure(API, DISKS, 0.3, 0.0, moved)),
        ),
        shown_sharing(CoreSharing(API, CpuSet([12, 13]), 0.8, ((etl, 0.7), (hog, 0.2)))),
        (SharedCard("shop/api-7", "GPU-1", 97, (("batch/train-2", 61), ("", None))),),
        (CacheUse("BE", "1", 9000.0 * (1 << 20), 20 << 20), CacheUse("/", "0", 5.0 * (1 << 20), 0)),
    )
    api = "shop/api-7"
    assert as_text(of).splitlines() == [
        f"{api} did not wait for CPUs 4-7",
        f"{api} was stalled 120 ms of each second for memory: batch/transcode-3 (BE) grew by 60 "
        "MiB/s, the pod itself grew by 5 MiB/s, batch/transcode-3 (BE) is 2048 MiB above its "
        "request",
        f"{api} had to read memory from disks 80 times a second: nobody grew",
        f"{api} was stalled 300 ms of each second for disks: batch/a moved 9 MiB/s, batch/b moved "
        "9 MiB/s, batch/c moved 9 MiB/s, 1 more",
        f"{api} shares its cores: while it ran, others ran 800 ms of each second on the sibling "
        "CPUs 12-13: 700 ms batch/etl (BE), 200 ms batch/transcode-3 (BE)",
        f"{api} shares GPU GPU-1, which is 97 % busy, with batch/train-2 (61 %), processes outside "
        "of pods",
        "on this machine resctrl group BE moves 9000 MiB/s through L3 cache 1 and holds 20 MiB of "
        "it, resctrl group / moves 5 MiB/s through L3 cache 0",
    ]
    assert len(sentences(of, also_without_wait=False)) == 6
    alone = Disturbance(of.cpu, caches=of.caches)
    assert sentences(alone, also_without_wait=False) == [], "nothing disturbs the pod"
