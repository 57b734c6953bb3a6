"""Interrupts by device, from texts as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.usage.interrupts import (
    CpuTimes,
    InterruptCounters,
    Interrupts,
    counts,
    cpu_times,
    device,
    softirq_of,
    stolen_seconds,
    taken_seconds,
)

HEAD = "           CPU0       CPU1       \n"


def table(*lines: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in lines)


BEFORE = Interrupts(
    {0: CpuTimes(1.0, 0.0, 0.0, 0.0), 1: CpuTimes(1.0, 0.0, 0.0, 0.5)},
    table(
        " 24:   10    0  PCI-MSIX-0000:00:01.0   0-edge      nvme0q1",
        " 25:   50    0  PCI-MSIX-0000:00:01.0   1-edge      nvme0q2",
        "LOC:   10   10   Local timer interrupts",
        "ERR:    0",
    ),
    table("      NET_RX:   1   1", "       TIMER:  10  10", "       BLOCK:   0   0"),
)
NOW = Interrupts(
    {0: CpuTimes(2.0, 0.3, 0.2, 0.0), 1: CpuTimes(2.0, 0.1, 0.4, 0.75)},
    table(
        " 24:  100    0  PCI-MSIX-0000:00:01.0   0-edge      nvme0q1",
        " 25:  150    0  PCI-MSIX-0000:00:01.0   1-edge      nvme0q2",
        "LOC:   20   20   Local timer interrupts",
        "ERR:    0",
    ),
    table("      NET_RX:   1  11", "       TIMER:  10  50", "       BLOCK:   9   0"),
)


def test_the_time_of_a_cpu_is_of_the_devices_that_interrupt_it() -> None:
    taken = taken_seconds(BEFORE, NOW)
    assert taken["nvme0"] == {0: pytest.approx(0.3 * 190 / 200 + 0.2)}, "and its softirqs"
    assert taken["Local timer interrupts"] == {0: pytest.approx(0.3 / 20), 1: pytest.approx(0.1)}
    assert taken["softirq NET_RX"] == {1: pytest.approx(0.4 * 160 / 200)}, "of no device"
    assert taken["softirq TIMER"] == {1: pytest.approx(0.4 * 40 / 200)}
    total = sum(sum(by_cpu.values()) for by_cpu in taken.values())
    assert total == pytest.approx(0.3 + 0.2 + 0.1 + 0.4)
    assert stolen_seconds(BEFORE, NOW) == {1: 0.25}
    assert [softirq_of(BEFORE, NOW, cpu) for cpu in (0, 1, 2)] == ["nvme0", "softirq NET_RX", ""]


def test_a_cpu_that_comes_online_has_no_time_before() -> None:
    earlier = Interrupts({0: BEFORE.cpus[0]}, BEFORE.interrupts, BEFORE.softirqs)
    assert set(taken_seconds(earlier, NOW)["Local timer interrupts"]) == {0}
    assert not stolen_seconds(earlier, NOW)


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ("nvme0q3", "nvme0"),
        ("ens5-Tx-Rx-0", "ens5"),
        ("i40e-ens1f0-TxRx-3", "i40e-ens1f0"),
        ("eth0-rx-1", "eth0"),
        ("virtio2-input.0", "virtio2"),
        ("virtio0-reporting_vq", "virtio0"),
        ("mlx5_comp7@pci:0000:c1:00.0", "0000:c1:00.0"),
        ("ahci[0000:00:1f.2]", "ahci[0000:00:1f.2]"),
        ("eth0", "eth0"),
    ],
)
def test_the_queue_is_not_part_of_the_device(action: str, name: str) -> None:
    assert device(action) == name


def test_torn_lines_are_left_out() -> None:
    text = table(" 24:   10", " 25:   x   1  PCI  a", " 26:   1   2", "garbage", "NMI: 1 2 Name it")
    assert counts(text) == {"interrupt 26": {0: 1, 1: 2}, "Name it": {0: 1, 1: 2}}
    assert counts("") == {}
    assert cpu_times("cpu0 1 2 3\ncpu1 1 2 3 4 5 x 7 8\ncpu 1 2 3 4 5 6 7 8\nintr 1") == {}


def test_what_the_machine_has() -> None:
    counters = InterruptCounters("/").read()
    assert counters.cpus
    assert counts(counters.softirqs)


def test_a_machine_without_the_files_has_nothing(tmp_path: Path) -> None:
    assert InterruptCounters(str(tmp_path)).read() == Interrupts()
