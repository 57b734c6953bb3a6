"""What still runs on the CPUs of owners beside their own threads, by what happened between two
looks, and what would take it away.

A thread counts as one that ran on a CPU if it ran between the looks and that CPU was its last one:
the kernel does not keep where it was before. What only may run there is a number."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.qos import QoS
from agent.usage.contention import Party, PartyKind
from agent.usage.interrupts import CounterLine, counts_since
from agent.usage.sampler import SYSTEM_SLICE
from agent.usage.schedstat import queue_name
from agent.usage.threads import SeenThread
from agent.usage.timers import armed

MOST_NAMED: Final = 16
"""So many disturbers of each kind are named."""


class DisturberKind(enum.StrEnum):
    """What a disturber is, in the order in which people are told."""

    TASKS = "tasks"
    KERNEL_THREADS = "kernel-threads"
    INTERRUPTS = "interrupts"
    """Of a device."""
    TICKS = "ticks"
    KERNEL_INTERRUPTS = "kernel-interrupts"
    """Such as those by which one CPU asks another for something."""
    SOFTIRQS = "softirqs"
    TIMERS = "timers"


class Remedy(enum.StrEnum):
    """What would take a disturber away, or why nothing can."""

    HOST_SLICES = "host-slices"
    PARTITIONS = "partitions"
    WORKQUEUES = "workqueues"
    INTERRUPTS = "interrupts"
    PACKET_STEERING = "packet-steering"
    DEVICES = "devices"
    """They go with the interrupts of devices."""
    BE_PODS = "be-pods"
    """These CPUs are those of an owner that BE pods may use."""
    PODS = "pods"
    """Pods that may not run there."""
    TICKS = "ticks"
    THREADS_OF_KERNEL = "threads-of-kernel"
    """The kernel chooses their CPUs once."""
    BOUND = "bound"
    """Each CPU has such a thread."""
    WAKEUPS = "wakeups"
    CALLS = "calls"
    """Other CPUs need something of this one."""
    CALLBACKS = "callbacks"
    """Those of RCU."""
    TIMERS = "timers"
    WATCHDOG = "watchdog"
    NOTHING = "nothing"


class Disturber(msgspec.Struct, frozen=True):
    """Something that disturbs an owner."""

    kind: DisturberKind
    name: str
    """That of a party, of a device, of the line of a kernel's table, or of the function of a
    timer."""
    remedy: Remedy
    cpus: CpuSet
    """Those of the owner where it was."""
    times: float
    """How often in a second it interrupted a CPU or began to run; of timers: how many wait."""
    party: Party | None = None
    """Whose the threads are."""
    ran_seconds: float = 0.0
    """In each second, by all its threads that were there."""
    elsewhere: bool = False
    """Whether they may run on other CPUs too, where they had a part of that time."""
    threads: int = 0
    numbers: tuple[int, ...] = ()
    """Of the interrupts of a device."""


class LookedOwner(msgspec.Struct, frozen=True):
    """An owner of CPUs."""

    title: str
    cpus: CpuSet
    groups: frozenset[str]
    """The cgroups of its pod, and of those that share its claims."""


class OwnerLook(msgspec.Struct, frozen=True):
    """What a machine has counted at one moment."""

    at: float
    """Seconds."""
    interrupts: str = ""
    """The text of /proc/interrupts."""
    softirqs: str = ""
    """That of /proc/softirqs."""


class OwnerInterval(msgspec.Struct, frozen=True):
    """What happened between two looks."""

    before: OwnerLook
    now: OwnerLook
    threads: tuple[SeenThread, ...] = ()
    """Those that may run on CPUs of owners."""
    groups: Mapping[int, str] = {}
    """The cgroups of processes."""
    pods: Mapping[str, Party] = {}
    """By cgroup."""
    pauses: frozenset[str] = frozenset()
    """The cgroups of pause containers."""
    timers: str = ""
    """The text of /proc/timer_list at the second look; "" where it can't be read."""


class Disturbers(msgspec.Struct, frozen=True):
    """All that disturbs an owner."""

    owner: LookedOwner
    seconds: float
    """How long it was observed."""
    named: tuple[Disturber, ...]
    """By kind, those that were there longest or most often first."""
    more: int = 0
    """How many further ones there are."""
    allowed: Mapping[Remedy, int] = {}
    """How many threads of others may run on its CPUs and were not seen there, by what would take
    them away; without those that the kernel has for each CPU."""


class _Whose(msgspec.Struct, frozen=True):
    """Whose a thread is."""

    kind: DisturberKind
    party: Party
    remedy: Remedy
    pod_group: str = ""


class _Thread(msgspec.Struct, frozen=True):
    """What threads have in common for which only their number counts."""

    cpus: CpuSet
    last_cpu: int | None
    remedy: Remedy
    pod_group: str


def disturbers(owners: Iterable[LookedOwner], interval: OwnerInterval) -> tuple[Disturbers, ...]:
    """What disturbs each owner."""
    seconds = interval.now.at - interval.before.at
    if seconds <= 0:
        return ()
    ran: dict[int, list[tuple[SeenThread, _Whose]]] = {}
    alike: Counter[_Thread] = Counter()
    whose = _Parties(interval)
    for thread in interval.threads:
        of = whose.of(thread)
        if thread.last_cpu is not None:
            ran.setdefault(thread.last_cpu, []).append((thread, of))
        if of.remedy is not Remedy.BOUND:
            alike[_Thread(thread.cpus, thread.last_cpu, of.remedy, of.pod_group)] += 1
    tables = (
        *counts_since(interval.before.interrupts, interval.now.interrupts).items(),
        *(
            (CounterLine(_SOFTIRQ, line.name), by_cpu)
            for line, by_cpu in counts_since(
                interval.before.softirqs, interval.now.softirqs
            ).items()
        ),
    )
    timers = armed(interval.timers)
    return tuple(
        _of_owner(owner, seconds, ran, alike, tables, timers) for owner in owners if owner.cpus
    )


def _of_owner(
    owner: LookedOwner,
    seconds: float,
    ran: Mapping[int, list[tuple[SeenThread, _Whose]]],
    alike: Mapping[_Thread, int],
    tables: Iterable[tuple[CounterLine, Mapping[int, int]]],
    timers: Mapping[int, Mapping[str, int]],
) -> Disturbers:
    """`ran`: has by CPU the threads that ran there last.
    `alike`: has the number of all threads that are not bound to a CPU.
    `tables`: has the interrupts and softirqs by CPU.
    `timers`: has the number of timers by CPU and function."""
    every = [
        *_ran(owner, seconds, ran),
        *_interrupted(owner, seconds, tables),
        *_waiting(owner, timers),
    ]
    named: list[Disturber] = []
    for kind in DisturberKind:
        of_kind = [one for one in every if one.kind is kind]
        of_kind.sort(key=lambda one: (-one.ran_seconds, -one.times, one.name))
        named += of_kind[:MOST_NAMED]
    allowed: Counter[Remedy] = Counter()
    for threads, number in alike.items():
        elsewhere = threads.last_cpu is None or threads.last_cpu not in owner.cpus
        if elsewhere and threads.pod_group not in owner.groups and threads.cpus & owner.cpus:
            allowed[threads.remedy] += number
    return Disturbers(owner, seconds, tuple(named), len(every) - len(named), dict(allowed))


def _ran(
    owner: LookedOwner, seconds: float, ran: Mapping[int, list[tuple[SeenThread, _Whose]]]
) -> Iterator[Disturber]:
    """The threads of others that ran on the owner's CPUs, by whose they are."""
    by_party: dict[_Whose, list[SeenThread]] = {}
    for cpu in owner.cpus:
        for thread, whose in ran.get(cpu, ()):
            if whose.pod_group not in owner.groups:
                by_party.setdefault(whose, []).append(thread)
    for whose, threads in by_party.items():
        yield Disturber(
            whose.kind,
            whose.party.name,
            whose.remedy,
            CpuSet(thread.last_cpu for thread in threads if thread.last_cpu is not None),
            sum(thread.runs for thread in threads) / seconds,
            whose.party,
            sum(thread.ran_seconds for thread in threads) / seconds,
            any(not thread.cpus <= owner.cpus for thread in threads),
            len(threads),
        )


def _interrupted(
    owner: LookedOwner,
    seconds: float,
    tables: Iterable[tuple[CounterLine, Mapping[int, int]]],
) -> Iterator[Disturber]:
    """The interrupts of each device, of the kernel, and the softirqs on the owner's CPUs."""
    by_name: dict[tuple[DisturberKind, str, Remedy], tuple[Counter[int], list[int]]] = {}
    for line, by_cpu in tables:
        there = {cpu: number for cpu, number in by_cpu.items() if cpu in owner.cpus}
        if there:
            kind, remedy = _of_line(line)
            counted, numbers = by_name.setdefault((kind, line.name, remedy), (Counter(), []))
            counted.update(there)
            numbers += [int(line.number)] if line.is_of_device else []
    for (kind, name, remedy), (counted, numbers) in by_name.items():
        times = counted.total() / seconds
        yield Disturber(kind, name, remedy, CpuSet(counted), times, numbers=tuple(sorted(numbers)))


def _waiting(owner: LookedOwner, timers: Mapping[int, Mapping[str, int]]) -> Iterator[Disturber]:
    """The timers of the owner's CPUs by their functions, without the tick's."""
    by_function: dict[str, Counter[int]] = {}
    for cpu in owner.cpus:
        for function, number in timers.get(cpu, {}).items():
            if function not in _TICK_FUNCTIONS:
                by_function.setdefault(function, Counter())[cpu] += number
    for function, numbers in by_function.items():
        remedy = Remedy.WATCHDOG if function == _WATCHDOG else Remedy.TIMERS
        yield Disturber(DisturberKind.TIMERS, function, remedy, CpuSet(numbers), numbers.total())


_TICK_FUNCTIONS: Final = frozenset({"tick_sched_timer", "tick_nohz_handler"})
_WATCHDOG: Final = "watchdog_timer_fn"
_SOFTIRQ: Final = "softirq"


def _of_line(line: CounterLine) -> tuple[DisturberKind, Remedy]:
    if line.number == _SOFTIRQ:
        return DisturberKind.SOFTIRQS, _OF_SOFTIRQS.get(line.name, Remedy.DEVICES)
    if line.is_of_device:
        return DisturberKind.INTERRUPTS, Remedy.INTERRUPTS
    if line.name == "Local timer interrupts" or line.name.endswith("timer"):
        return DisturberKind.TICKS, Remedy.TICKS
    return DisturberKind.KERNEL_INTERRUPTS, _OF_INTERRUPTS.get(line.name, Remedy.NOTHING)


_OF_INTERRUPTS: Final = {
    "Rescheduling interrupts": Remedy.WAKEUPS,
    "Function call interrupts": Remedy.CALLS,
    "TLB shootdowns": Remedy.CALLS,
    "IRQ work interrupts": Remedy.CALLS,
}
_OF_SOFTIRQS: Final = {
    "NET_RX": Remedy.PACKET_STEERING,
    "NET_TX": Remedy.PACKET_STEERING,
    "SCHED": Remedy.PARTITIONS,
    "RCU": Remedy.CALLBACKS,
    "TIMER": Remedy.TIMERS,
    "HRTIMER": Remedy.TIMERS,
}
"""The others are what interrupts of devices leave to do."""


class _Parties:
    """Whose threads are. Most threads of a machine are in a few hundred groups."""

    def __init__(self, interval: OwnerInterval) -> None:
        self._interval = interval
        self._by_group: dict[str, _Whose | None] = {}

    def of(self, thread: SeenThread) -> _Whose:
        if thread.kernel:
            return _of_kernel(thread)
        group = self._interval.groups.get(thread.process, "/")
        if group not in self._by_group:
            self._by_group[group] = self._of_group(group)
        return self._by_group[group] or _Whose(
            DisturberKind.TASKS, Party(PartyKind.PROCESSES, thread.name), Remedy.PARTITIONS
        )

    def _of_group(self, group: str) -> _Whose | None:
        """None for a group that is of no unit and no pod."""
        parts = group.strip("/").split("/")
        for depth in range(len(parts), 0, -1):
            pod_group = "/" + "/".join(parts[:depth])
            if (pod := self._interval.pods.get(pod_group)) is not None:
                be = Remedy.BE_PODS if pod.qos == QoS.BE else Remedy.PODS
                remedy = Remedy.HOST_SLICES if group in self._interval.pauses else be
                return _Whose(DisturberKind.TASKS, pod, remedy, pod_group)
        if not parts[0] or parts[0].startswith(_KUBEPODS):
            return None
        unit = parts[:2] if f"/{parts[0]}" == SYSTEM_SLICE else parts[:1]
        party = Party(PartyKind.UNIT, "/".join(unit))
        return _Whose(DisturberKind.TASKS, party, Remedy.HOST_SLICES)


_KUBEPODS: Final = "kubepods"
_UNBOUND_WORKER: Final = "kworker/u"


def _of_kernel(thread: SeenThread) -> _Whose:
    party = Party(PartyKind.KERNEL_THREAD, queue_name(thread.name))
    remedy = Remedy.THREADS_OF_KERNEL
    if len(thread.cpus) == 1:
        remedy = Remedy.BOUND
    elif thread.name.startswith(_UNBOUND_WORKER):
        remedy = Remedy.WORKQUEUES
    return _Whose(DisturberKind.KERNEL_THREADS, party, remedy)
