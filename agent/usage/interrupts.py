"""Which devices took CPU time by interrupts: from /proc/interrupts, /proc/softirqs, and the times
of /proc/stat.

The kernel counts interrupts by device and CPU, and the time of all interrupts by CPU. The time of
a CPU is distributed over devices by their interrupts there, and the time of softirqs by kind. The
softirqs of devices count more than those of timers and the scheduler, since one of them handles
many packets or requests; they are of the device that interrupts this CPU most, if it is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from agent.host.files import Tree

Counts: TypeAlias = Mapping[str, Mapping[int, int]]
"""By name and CPU, without zeros."""

_MAX_LINES: Final = 4096
_DEVICE_SOFTIRQS: Final = frozenset({"NET_TX", "NET_RX", "BLOCK", "IRQ_POLL"})
_DEVICE_WEIGHT: Final = 16
_MOST: Final = 0.5
TICKS_PER_SECOND: Final = 100.0
"""USER_HZ of every architecture that Kubernetes runs on."""


class CpuTimes(msgspec.Struct, frozen=True):
    """What a CPU has done, in seconds."""

    processes: float
    """Also kernel threads."""
    irq: float
    softirq: float
    stolen: float
    """By the hypervisor."""


class Interrupts(msgspec.Struct, frozen=True):
    """The counters at one moment."""

    cpus: Mapping[int, CpuTimes] = {}
    interrupts: str = ""
    """The text of /proc/interrupts."""
    softirqs: str = ""
    """That of /proc/softirqs."""


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


def counts(table: str) -> dict[str, dict[int, int]]:
    """From the text of /proc/interrupts or /proc/softirqs: the first line names the CPUs, the
    others begin with a number or a kind, and end in the names of devices."""
    head, *lines = table.splitlines() or [""]
    cpus = [int(word[3:]) for word in head.split() if word[3:].isdecimal()]
    by_name: dict[str, dict[int, int]] = {}
    for line in lines[:_MAX_LINES]:
        number, _, rest = line.partition(":")
        words = rest.split(None, len(cpus))
        values = words[: len(cpus)]
        if len(values) < len(cpus) or not all(value.isdecimal() for value in values):
            continue  # such as ERR, which has one number for all CPUs
        tail = words[len(cpus)] if len(words) > len(cpus) else ""
        of_name = by_name.setdefault(_name(number.strip(), tail), {})
        for cpu, value in zip(cpus, values, strict=True):
            if value != "0":
                of_name[cpu] = of_name.get(cpu, 0) + int(value)
    return by_name


def _name(number: str, tail: str) -> str:
    """The device of a numbered interrupt, the text about one of the kernel, or the kind of a
    softirq."""
    if not number.isdecimal():
        return tail.strip() or number
    return device(tail.split()[-1]) if tail.split() else f"interrupt {number}"


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


def taken_seconds(before: Interrupts, now: Interrupts) -> dict[str, dict[int, float]]:
    """Between two moments, how long each device or kind of softirq had each CPU."""
    taken: dict[str, dict[int, float]] = {}
    hard = _since(before.interrupts, now.interrupts)
    soft = _since(before.softirqs, now.softirqs)
    for cpu in now.cpus.keys() & before.cpus.keys():
        times, old = now.cpus[cpu], before.cpus[cpu]
        devices = hard.get(cpu, {})
        for seconds, weights in (
            (times.irq - old.irq, devices),
            (times.softirq - old.softirq, _softirq_weights(devices, soft.get(cpu, {}))),
        ):
            total = sum(weights.values())
            for name, weight in weights.items() if seconds > 0 and total else ():
                of_name = taken.setdefault(name, {})
                of_name[cpu] = of_name.get(cpu, 0.0) + seconds * weight / total
    return taken


def stolen_seconds(before: Interrupts, now: Interrupts) -> dict[int, float]:
    """Between two moments, how long the hypervisor had each CPU; without those that it did not."""
    return {
        cpu: stolen
        for cpu in now.cpus.keys() & before.cpus.keys()
        if (stolen := now.cpus[cpu].stolen - before.cpus[cpu].stolen) > 0
    }


def _softirq_weights(devices: Mapping[str, int], kinds: Mapping[str, int]) -> dict[str, int]:
    """The weights of the softirqs of a CPU, by their device or kind."""
    weights: dict[str, int] = {}
    for kind, number in kinds.items():
        of_device = kind in _DEVICE_SOFTIRQS
        name = (_main_device(devices) if of_device else "") or f"softirq {kind}"
        weights[name] = weights.get(name, 0) + number * (_DEVICE_WEIGHT if of_device else 1)
    return weights


def softirq_of(before: Interrupts, now: Interrupts, cpu: int) -> str:
    """The device or kind of most softirqs of a CPU between two moments; empty without any."""
    devices = _since(before.interrupts, now.interrupts).get(cpu, {})
    kinds = _since(before.softirqs, now.softirqs).get(cpu, {})
    weights = _softirq_weights(devices, kinds)
    return max(weights, key=lambda name: (weights[name], name), default="")


def _main_device(devices: Mapping[str, int]) -> str:
    """The device with most of the interrupts of a CPU; empty if none has. The kernel's own kinds,
    such as those of timers, have a space in their name."""
    of_devices = {name: number for name, number in devices.items() if " " not in name}
    name = max(of_devices, key=lambda name: (of_devices[name], name), default="")
    return name if name and of_devices[name] > _MOST * sum(of_devices.values()) else ""


def _since(before: str, now: str) -> dict[int, dict[str, int]]:
    """By CPU and name, the counts between the tables of two moments. Most lines of a large machine
    do not change; they are not parsed."""
    head, *lines = now.splitlines() or [""]
    old_lines = before.splitlines()
    same = set(lines).intersection(old_lines)
    old = counts("\n".join((head, *(line for line in old_lines[1:] if line not in same))))
    new = counts("\n".join((head, *(line for line in lines if line not in same))))
    numbers: dict[int, dict[str, int]] = {}
    for name, of_cpus in new.items():
        for cpu, number in of_cpus.items():
            if (since := number - old.get(name, {}).get(cpu, 0)) > 0:
                numbers.setdefault(cpu, {})[name] = since
    return numbers


class InterruptCounters:
    """Reads the files below a root."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)

    def read(self) -> Interrupts:
        """What can't be read is empty."""
        return Interrupts(
            cpu_times(self._tree.text("proc/stat") or ""),
            self._tree.text("proc/interrupts") or "",
            self._tree.text("proc/softirqs") or "",
        )
