"""Interrupts by device, from texts as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.usage.interrupts import (
    CounterLine,
    CpuTimes,
    Interface,
    InterruptCounters,
    Interrupts,
    counts,
    cpu_times,
    device,
    packet_counts,
    stolen_seconds,
    taken,
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
    seconds = taken(BEFORE, NOW).seconds
    assert seconds["nvme0"] == {0: pytest.approx(0.3 * 190 / 200 + 0.2)}, "and its softirqs"
    assert seconds["Local timer interrupts"] == {0: pytest.approx(0.3 / 20), 1: pytest.approx(0.1)}
    assert seconds["softirq NET_RX"] == {1: pytest.approx(0.4 * 160 / 200)}, "of no device"
    assert seconds["softirq TIMER"] == {1: pytest.approx(0.4 * 40 / 200)}
    total = sum(sum(by_cpu.values()) for by_cpu in seconds.values())
    assert total == pytest.approx(0.3 + 0.2 + 0.1 + 0.4)
    assert stolen_seconds(BEFORE, NOW) == {1: 0.25}
    assert taken(BEFORE, NOW).softirqs == {0: "nvme0", 1: "softirq NET_RX"}


def test_a_cpu_that_comes_online_has_no_time_before() -> None:
    earlier = Interrupts({0: BEFORE.cpus[0]}, BEFORE.interrupts, BEFORE.softirqs)
    assert set(taken(earlier, NOW).seconds["Local timer interrupts"]) == {0}
    assert not stolen_seconds(earlier, NOW)


def with_packets(interface: str, device: str, received: int) -> tuple[Interrupts, Interrupts]:
    """A CPU that a disk interrupts more often than a network, and that handles 1,000 packets."""

    def at(moment: int) -> Interrupts:
        return Interrupts(
            {0: CpuTimes(0.0, 0.0, moment * 0.5, 0.0)},
            "      CPU0\n"
            f" 24: {moment * 900} PCI-MSIX-0000:00:02.0 1-edge virtio1-req.0\n"
            f" 25: {moment * 100} PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\n",
            f"      CPU0\n NET_RX: {moment * 300}\n BLOCK: {moment * 100}\n",
            f"{moment * 1_000:08x} 00000000 00000000\n",
            {interface: Interface(device, moment * received)},
        )

    return at(1), at(2)


@pytest.mark.parametrize(
    ("interface", "device", "received", "name"),
    [
        pytest.param("eth0", "virtio2", 1_000, "virtio2", id="device"),
        pytest.param("virtio2", "0000:00:03.0", 1_000, "virtio2", id="interface"),
        pytest.param("eth0", "virtio2", 400, "softirq NET_RX", id="of-other-interfaces"),
        pytest.param("eth1", "virtio3", 1_000, "softirq NET_RX", id="other-device"),
    ],
)
def test_packets_are_of_the_interface_that_received_them(
    interface: str, device: str, received: int, name: str
) -> None:
    seconds = taken(*with_packets(interface, device, received)).seconds
    assert seconds[name] == {0: pytest.approx(0.5 * 300 / 400)}


def test_no_packet_is_of_a_disk() -> None:
    before, now = with_packets("eth0", "virtio2", 10)
    assert taken(before, now).seconds["virtio1"] == {0: pytest.approx(0.5 * 100 / 400)}
    assert taken(before, now).softirqs == {0: "softirq NET_RX"}


def test_the_timers_of_arm_are_no_device() -> None:
    def at(timers: int, disk: int, softirqs: int, seconds: float) -> Interrupts:
        return Interrupts(
            {0: CpuTimes(1.0, 0.0, seconds, 0.0)},
            "CPU0\n"
            f" 11: {timers} GICv3  30 Level     arch_timer\n"
            f" 55: {disk} ITS-MSI 524288 Edge      nvme0q1\n"
            f" 60: {disk // 5} GICv3 112 Level     uart\n",
            f"CPU0\nBLOCK: {softirqs}\n",
        )

    before, now = at(0, 0, 0, 0.0), at(900, 100, 10, 0.5)
    assert taken(before, now).seconds == {"nvme0": {0: 0.5}}
    assert {(line.name, line.is_of_device) for line in counts(now.interrupts)} == {
        ("CPU's arch_timer", False),
        ("nvme0", True),
        ("uart", True),
    }


def test_packets_by_cpu() -> None:
    assert packet_counts("0000000a 0\n00000010 0\nx\n\n") == {0: 10, 1: 16}, "before 5.10"
    row = " ".join(["00000000"] * 11)
    assert packet_counts(f"000000ff {row} 00000003 00000000") == {3: 255}


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
    assert counts(text) == {
        CounterLine("26", "interrupt 26"): {0: 1, 1: 2},
        CounterLine("NMI", "Name it"): {0: 1, 1: 2},
    }
    assert counts("") == {}
    assert cpu_times("cpu0 1 2 3\ncpu1 1 2 3 4 5 x 7 8\ncpu 1 2 3 4 5 6 7 8\nintr 1") == {}


def test_what_the_machine_has() -> None:
    counters = InterruptCounters("/").read()
    assert counters.cpus
    assert counts(counters.softirqs)
    assert counters.cpus.keys() <= packet_counts(counters.packets).keys()


def test_interfaces_of_containers_have_no_device(tmp_path: Path) -> None:
    for name in ("eth0", "veth1"):
        (tmp_path / f"sys/class/net/{name}/statistics").mkdir(parents=True)
        (tmp_path / f"sys/class/net/{name}/statistics/rx_packets").write_text("12\n")
    (tmp_path / "sys/class/net/eth0/device").symlink_to("../../../0000:00:05.0")
    interfaces = InterruptCounters(str(tmp_path)).read().interfaces
    assert interfaces == {"eth0": Interface("0000:00:05.0", 12)}


def test_an_interface_that_is_just_being_removed_is_left_out(tmp_path: Path) -> None:
    # The kernel answers EINVAL, which no file of a test does; a folder answers EISDIR.
    (tmp_path / "sys/class/net/eth0/statistics/rx_packets").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/device").symlink_to("../../../0000:00:05.0")
    assert InterruptCounters(str(tmp_path)).read().interfaces == {}


def test_counts_of_before_a_cpu_came_or_went_are_not_new() -> None:
    one_cpu = Interrupts(
        {0: CpuTimes(1.0, 0.0, 0.0, 0.0)}, "CPU0\n7: 900 PCI nvme0q1\nLOC: 9 Timers\n"
    )
    two_cpus = Interrupts(
        {0: CpuTimes(2.0, 0.5, 0.0, 0.0)},
        "CPU0 CPU1\n7: 900 0 PCI nvme0q1\nLOC: 99 1 Timers\n",
    )
    assert taken(one_cpu, two_cpus).seconds == {"Timers": {0: 0.5}}
    back = msgspec.structs.replace(one_cpu, cpus={0: CpuTimes(3.0, 1.0, 0.0, 0.0)})
    assert taken(two_cpus, back).seconds == {}


def test_a_machine_without_the_files_has_nothing(tmp_path: Path) -> None:
    assert InterruptCounters(str(tmp_path)).read() == Interrupts()
