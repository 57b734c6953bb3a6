"""The sentence about a wait."""

from __future__ import annotations

import json

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.usage.contention import CpuWait, Party, PartyKind
from agent.view.contention import as_json, sentence, shown

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
            "quota, 220 ms batch/transcode-3 (BE), 110 ms its own threads, which are more than its "
            "CPUs can run at once, 60 ms system.slice/backup.service, 30 ms interrupts of nvme0, "
            "12 ms others",
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
    printed = json.loads(as_json(shown(CpuWait(API, CPUS, 0.8327, 0.4, 0.11, TAKERS), 2.0)))
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
