"""Which devices took CPU time by interrupts: from /proc/interrupts, /proc/softirqs, and the times
of /proc/stat.

The kernel counts interrupts by device and CPU, and the time of all interrupts by CPU. The time of
a CPU is distributed over devices by their interrupts there, and the time of softirqs by kind. The
softirqs of devices count more than those of timers and the scheduler, since one of them handles
many packets or requests. Those of disks are of the device that interrupts this CPU most and has no
network interface. Those of networks are of the device of an interface that interrupts it most, if
it has received as many packets as half of those that the CPU has handled: other packets come from
containers, and from CPUs that steer packets here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from agent.host.files import Tree
from agent.usage.machine import TICKS_PER_SECOND

_MAX_LINES: Final = 4096
_NETWORK_SOFTIRQS: Final = frozenset({"NET_TX", "NET_RX"})
_DEVICE_SOFTIRQS: Final = _NETWORK_SOFTIRQS | {"BLOCK", "IRQ_POLL"}
_DEVICE_WEIGHT: Final = 16
_MOST: Final = 0.5


class CpuTimes(msgspec.Struct, frozen=True):
    """What a CPU has done, in seconds."""

    processes: float
    """Also kernel threads."""
    irq: float
    softirq: float
    stolen: float
    """By the hypervisor."""


class Interface(msgspec.Struct, frozen=True):
    """A network interface of a device."""

    device: str
    """In sysfs: `virtio2`, `0000:c1:00.0`."""
    received: int
    """Packets."""


class Interrupts(msgspec.Struct, frozen=True):
    """The counters at one moment."""

    cpus: Mapping[int, CpuTimes] = {}
    interrupts: str = ""
    """The text of /proc/interrupts."""
    softirqs: str = ""
    """That of /proc/softirqs."""
    packets: str = ""
    """That of /proc/net/softnet_stat."""
    interfaces: Mapping[str, Interface] = {}


def cpu_times(stat: str) -> dict[int, CpuTimes]:
    """By CPU, from the text of /proc/stat (Documentation/filesystems/proc.rst). Time of guests is
    contained in that of processes."""
    times = {}
    for line in stat.splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and len(words) >= _FIELDS:
            try:
                ticks = [int(word) / TICKS_PER_SECOND for word in words[:_FIELDS]]
            except ValueError:
                continue
            user, nice, system, _, _, irq, softirq, stolen = ticks
            times[int(name[3:])] = CpuTimes(user + nice + system, irq, softirq, stolen)
    return times


_FIELDS: Final = 8


class CounterLine(NamedTuple):
    """A line of /proc/interrupts or /proc/softirqs."""

    number: str
    """Of an interrupt of a device; else the short name of a kind."""
    name: str
    """The device of a numbered interrupt, the text about one of the kernel, or the kind of a
    softirq."""

    @property
    def is_of_device(self) -> bool:
        """Whether it is no interrupt of the kernel or of each CPU, such as that of a timer."""
        return self.number.isdecimal() and not self.name.startswith(_CPUS_OWN)


def counts(table: str) -> dict[CounterLine, dict[int, int]]:
    """The counts by line and CPU, without zeros, from the text of /proc/interrupts or
    /proc/softirqs: the first line names the CPUs, the others begin with a number or a kind, and
    end in the names of devices."""
    head, *lines = table.splitlines() or [""]
    cpus = [int(word[3:]) for word in head.split() if word[3:].isdecimal()]
    by_line: dict[CounterLine, dict[int, int]] = {}
    for line in lines[:_MAX_LINES]:
        number, _, columns = line.partition(":")
        words = columns.split(None, len(cpus))
        values = words[: len(cpus)]
        if len(values) < len(cpus) or not all(value.isdecimal() for value in values):
            continue  # such as ERR, which has one number for all CPUs
        tail = words[len(cpus)] if len(words) > len(cpus) else ""
        number = number.strip()
        by_line[CounterLine(number, _name(number, tail))] = {
            cpu: int(value) for cpu, value in zip(cpus, values, strict=True) if value != "0"
        }
    return by_line


def _name(number: str, tail: str) -> str:
    if not number.isdecimal():
        return tail.strip() or number
    if _OF_EACH_CPU.match(tail):
        return f"{_CPUS_OWN}{tail.split()[-1]}"
    return device(tail.split()[-1]) if tail.split() else f"interrupt {number}"


_CPUS_OWN: Final = "CPU's "
_OF_EACH_CPU: Final = re.compile(r"GIC\S*\s+(?:1[6-9]|2\d|3[01])\s+(?:Level|Edge)\s+\S")
"""On Arm the interrupts that each CPU has for itself, as that of its timer, are numbered too (GIC:
private peripheral interrupts)."""


def device(action: str) -> str:
    """The device of a handler, whose name ends in a queue: `nvme0q3`, `ens5-Tx-Rx-0`,
    `i40e-ens1f0-TxRx-3`, `virtio2-input.0`, `mlx5_comp7@pci:0000:c1:00.0`."""
    if "@pci:" in action:
        return action.partition("@pci:")[2]
    return _QUEUE.sub("", action) or action


_QUEUE: Final = re.compile(
    r"(?:(?<=\d)q\d+"
    r"|(?:[-_.](?:tx-?rx|rx-?tx|tx|rx|input|output|req|request|config|comp|queue|q|async|control|"
    r"event|virtqueues?|stats|[a-z_]*vq)(?:[-_.]?\d+)*)+"
    r"|[-_.]\d+)\Z",
    re.IGNORECASE,
)


class TakenByInterrupts(msgspec.Struct, frozen=True):
    """What interrupts did between two moments."""

    seconds: Mapping[str, Mapping[int, float]]
    """By device or kind of softirq, how long it had each CPU."""
    softirqs: Mapping[int, str]
    """By CPU that handled softirqs, the device or kind of most of them."""


def taken(before: Interrupts, now: Interrupts) -> TakenByInterrupts:
    """What interrupts did between two moments."""
    by_name: dict[str, dict[int, float]] = {}
    hard = _since(before.interrupts, now.interrupts)
    soft = _softirq_weights(hard, before, now)
    for cpu in now.cpus.keys() & before.cpus.keys():
        times, times_before = now.cpus[cpu], before.cpus[cpu]
        for seconds, weights in (
            (times.irq - times_before.irq, hard.get(cpu, {})),
            (times.softirq - times_before.softirq, soft.get(cpu, {})),
        ):
            total = sum(weights.values())
            for name, weight in weights.items() if seconds > 0 and total else ():
                of_name = by_name.setdefault(name, {})
                of_name[cpu] = of_name.get(cpu, 0.0) + seconds * weight / total
    main = {cpu: max(of, key=lambda name: (of[name], name)) for cpu, of in soft.items()}
    return TakenByInterrupts(by_name, main)


def stolen_seconds(before: Interrupts, now: Interrupts) -> dict[int, float]:
    """Between two moments, how long the hypervisor had each CPU; without those that it did not."""
    return {
        cpu: stolen
        for cpu in now.cpus.keys() & before.cpus.keys()
        if (stolen := now.cpus[cpu].stolen - before.cpus[cpu].stolen) > 0
    }


def _softirq_weights(
    hard: Mapping[int, Mapping[str, int]], before: Interrupts, now: Interrupts
) -> dict[int, dict[str, int]]:
    """By CPU, the weights of its softirqs by their device or kind.

    `hard`: by CPU, the interrupts of devices between the two moments."""
    weights: dict[int, dict[str, int]] = {}
    old_packets, packets = packet_counts(before.packets), packet_counts(now.packets)
    for cpu, kinds in _since(before.softirqs, now.softirqs).items():
        handled = packets.get(cpu, 0) - old_packets.get(cpu, 0)
        # The kernel's own kinds and those of each CPU, such as timers, have a space in their name.
        devices = {name: count for name, count in hard.get(cpu, {}).items() if " " not in name}
        received = {
            name: count for name in devices if (count := _received(name, before, now)) is not None
        }
        of_network = _main(
            {
                name: devices[name]
                for name, count in received.items()
                if count and count >= _MOST * handled
            }
        )
        of_others = _main({name: devices[name] for name in devices.keys() - received.keys()})
        of_cpu = weights.setdefault(cpu, {})
        for kind, number in kinds.items():
            main = of_network if kind in _NETWORK_SOFTIRQS else of_others
            of_device = kind in _DEVICE_SOFTIRQS
            name = (main if of_device else "") or f"softirq {kind}"
            of_cpu[name] = of_cpu.get(name, 0) + number * (_DEVICE_WEIGHT if of_device else 1)
    return weights


def _main(devices: Mapping[str, int]) -> str:
    """The device with most of the interrupts; empty if none has."""
    name = max(devices, key=lambda name: (devices[name], name), default="")
    return name if name and devices[name] > _MOST * sum(devices.values()) else ""


def _received(name: str, before: Interrupts, now: Interrupts) -> int | None:
    """The packets that the interfaces of a device have received; None if it has none. Drivers name
    interrupts after the device, the interface, or both (`i40e-ens1f0`)."""
    received = [
        interface.received - before.interfaces[title].received
        for title, interface in now.interfaces.items()
        if title in before.interfaces
        and (name in (title, interface.device) or name.endswith(f"-{title}"))
    ]
    return sum(received) if received else None


def packet_counts(table: str) -> dict[int, int]:
    """By CPU, the packets that it has handled, from the text of /proc/net/softnet_stat
    (net/core/net-procfs.c). Kernels before 5.10 do not write the CPU's number."""
    counts = {}
    for row, line in enumerate(table.splitlines()):
        words = line.split()
        try:
            counts[int(words[_CPU], 16) if len(words) > _CPU else row] = int(words[0], 16)
        except (IndexError, ValueError):
            continue
    return counts


_CPU: Final = 12


def _since(before: str, now: str) -> dict[int, dict[str, int]]:
    """By CPU and name, the counts between the tables of two moments."""
    numbers: dict[int, dict[str, int]] = {}
    for line, by_cpu in counts_since(before, now).items():
        for cpu, number in by_cpu.items():
            of_cpu = numbers.setdefault(cpu, {})
            of_cpu[line.name] = of_cpu.get(line.name, 0) + number
    return numbers


def counts_since(before: str, now: str) -> dict[CounterLine, dict[int, int]]:
    """By line and CPU, the counts between the tables of two moments, without zeros. Most lines of a
    large machine do not change; they are not parsed."""
    (head_before, *lines_before), (head, *lines) = (
        text.splitlines() or [""] for text in (before, now)
    )
    # When a CPU comes or goes, the columns of all lines change.
    same = set(lines).intersection(lines_before) if head == head_before else set()
    counts_before = counts(
        "\n".join((head_before, *(line for line in lines_before if line not in same)))
    )
    counts_now = counts("\n".join((head, *(line for line in lines if line not in same))))
    differences: dict[CounterLine, dict[int, int]] = {}
    for line, of_cpus in counts_now.items():
        of_before = counts_before.get(line, {})
        grown = {
            cpu: since
            for cpu, number in of_cpus.items()
            if (since := number - of_before.get(cpu, 0)) > 0
        }
        if grown:
            differences[line] = grown
    return differences


class InterruptCounters:
    """Reads the files below a root."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)

    def read(self) -> Interrupts:
        """Returns the counters of now. What can't be read is empty."""
        return Interrupts(
            cpu_times(self._tree.text("proc/stat") or ""),
            self._tree.text("proc/interrupts") or "",
            self._tree.text("proc/softirqs") or "",
            self._tree.text("proc/net/softnet_stat") or "",
            dict(self._interfaces()),
        )

    def _interfaces(self) -> Iterator[tuple[str, Interface]]:
        """Lists the interfaces of devices; those of containers have no device."""
        for name in self._tree.names(_INTERFACES):
            device = self._tree.link(f"{_INTERFACES}/{name}/device")
            if device is None:
                continue
            try:
                received = self._tree.text(f"{_INTERFACES}/{name}/statistics/rx_packets") or ""
            except OSError:  # EINVAL: the interface is just being removed
                continue
            if received.isdecimal():
                yield name, Interface(device.rpartition("/")[2], int(received))


_INTERFACES: Final = "sys/class/net"
