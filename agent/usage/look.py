"""Looks at everything that runs and waits on a node. Two looks are an interval of `contention`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.usage.contention import Interval, Party, PartyKind, Runner, WaitingContainer
from agent.usage.interrupts import (
    InterruptCounters,
    Interrupts,
    stolen_seconds,
    taken,
)
from agent.usage.sampler import SYSTEM_SLICE, SampledPod, unit_groups
from agent.usage.schedstat import Delays, KernelThread, Schedstat, queue_name
from agent.usage.waits import Throttling

_MAX_GROUPS: Final = 512
"""The most cgroups of a container whose threads are read: it may make any number."""
_LEAST_USED: Final = 0.001
"""Seconds in each second: threads of pods that use less are not read, and kernel threads that run
less are not named."""
_SOFTIRQ_THREAD: Final = "ksoftirqd/"
_HYPERVISOR: Final = Party(PartyKind.HYPERVISOR, "the hypervisor")


class TaskGroups(Protocol):
    """Reads the cgroups, from one thread. A group that is gone has nothing."""

    def children(self, group: str) -> tuple[str, ...]: ...

    def cpu_seconds(self, group: str) -> float | None: ...

    def throttling(self, group: str) -> Throttling | None: ...

    def cpus(self, group: str) -> CpuSet:
        """Returns the CPUs on which its processes may run."""

    def threads(self, group: str) -> tuple[int, ...]:
        """Returns the ids of its threads, without those of groups in it."""


class LookedPod(msgspec.Struct, frozen=True):
    """A pod that is looked at."""

    party: Party
    sampled: SampledPod


class Look(msgspec.Struct, frozen=True):
    """What the kernel has counted at one moment. All times are in seconds."""

    at: float
    interrupts: Interrupts
    kernel_threads: Mapping[int, float]
    used: Mapping[str, float]
    """CPU time by cgroup."""
    cpus: Mapping[str, CpuSet]
    """Where the processes of each cgroup may run; without those that did not run."""
    throttled: Mapping[str, float]
    """By cgroup that ran and has a quota."""
    delays: Delays
    units: tuple[str, ...]
    """The cgroups outside of pods."""


class Lookout:
    """Looks from one thread, and keeps the last look."""

    def __init__(
        self, root: str, groups: TaskGroups, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interrupts = InterruptCounters(root)
        self._schedstat = Schedstat(root)
        self._groups = groups
        self._clock = clock
        self._before: Look | None = None
        self.incomplete = False
        """Whether the threads of a container were read for the first time: what they wait is known
        at the next look."""

    def look(self, pods: Iterable[LookedPod]) -> Interval | None:
        """What happened since the last look; None for the first one."""
        pods = tuple(pods)
        before, now = self._before, self._read([pod.sampled for pod in pods])
        self._before = now
        if before is None or now.at <= before.at:
            return None
        self.incomplete = not now.delays.seconds.keys() <= before.delays.seconds.keys()
        return interval(before, now, pods, self._schedstat.kernel_thread)

    def _read(self, pods: Iterable[SampledPod]) -> Look:
        at = self._clock()
        units = self._units(pods)
        containers = {group for pod in pods for group in pod.containers.values()}
        groups = (*(pod.group for pod in pods), *sorted(containers), *units)
        used = {
            group: seconds
            for group in groups
            if (seconds := self._groups.cpu_seconds(group)) is not None
        }
        active = [group for group in used if self._active(group, used[group], at)]
        return Look(
            at,
            self._interrupts.read(),
            self._schedstat.kernel_threads(),
            used,
            {group: self._groups.cpus(group) for group in active},
            {
                group: counters.seconds
                for group in active
                if (counters := self._groups.throttling(group)) is not None
            },
            self._schedstat.delays(
                {group: tuple(self._threads(group)) for group in active if group in containers}
            ),
            units,
        )

    def _active(self, group: str, used_seconds: float, at: float) -> bool:
        """Says whether the group ran enough for its threads to be read. A group that was not there
        at the last look counts as active: what it waits is known at the next."""
        if self._before is None or group not in self._before.used:
            return True
        since = used_seconds - self._before.used[group]
        return since >= _LEAST_USED * (at - self._before.at)

    def _threads(self, container: str) -> Iterator[int]:
        groups = [container]
        for group in groups:
            yield from self._groups.threads(group)
            groups += self._groups.children(group)[: _MAX_GROUPS - len(groups)]

    def _units(self, pods: Iterable[SampledPod]) -> tuple[str, ...]:
        """Lists the groups in system.slice, and all other top groups without pods."""
        tops = {"/" + pod.group.lstrip("/").partition("/")[0] for pod in pods} | {SYSTEM_SLICE}
        others = (group for group in self._groups.children("/") if group not in tops)
        return (*unit_groups(self._groups.children(SYSTEM_SLICE)), *unit_groups(others))


def interval(
    before: Look,
    now: Look,
    pods: Iterable[LookedPod],
    kernel_thread: Callable[[int], KernelThread | None],
) -> Interval:
    """What happened between two looks.

    `kernel_thread`: returns the name and CPUs of a kernel thread; None if it has ended."""
    seconds = now.at - before.at
    waiting: list[WaitingContainer] = []
    runners: list[Runner] = []
    for pod in pods:
        for runner in _of_pod(pod, before, now):
            if isinstance(runner, WaitingContainer):
                waiting.append(runner)
            else:
                runners.append(runner)
    for unit in now.units:
        if (used := _used(unit, before, now)) > 0:
            runners.append(
                Runner(Party(PartyKind.UNIT, unit.strip("/")), _cpus(unit, before, now), used)
            )
    by_interrupts = taken(before.interrupts, now.interrupts)
    for thread, ran in now.kernel_threads.items():
        since = ran - before.kernel_threads.get(thread, 0.0)
        if since >= _LEAST_USED * seconds and (named := kernel_thread(thread)) is not None:
            runners.append(Runner(_party(named, by_interrupts.softirqs), named.cpus, since))
    online = now.interrupts.cpus.keys() & before.interrupts.cpus.keys()
    return Interval(
        seconds,
        {
            cpu: now.interrupts.cpus[cpu].processes - before.interrupts.cpus[cpu].processes
            for cpu in sorted(online)
        },
        {
            **{
                Party(PartyKind.INTERRUPTS, name): by_cpu
                for name, by_cpu in by_interrupts.seconds.items()
            },
            _HYPERVISOR: stolen_seconds(before.interrupts, now.interrupts),
        },
        tuple(waiting),
        tuple(runners),
    )


def _of_pod(pod: LookedPod, before: Look, now: Look) -> Iterator[Runner]:
    groups = [group for group in pod.sampled.containers.values() if group in now.used]
    delays = {
        group: delay
        for group in groups
        if (delay := now.delays.since(before.delays, group)) is not None
    }
    by_pod_quota, all_delays = _throttled(pod.sampled.group, before, now), sum(delays.values())
    in_containers = 0.0
    for group in groups:
        used, cpus = _used(group, before, now), _cpus(group, before, now)
        in_containers += used
        if group not in delays:
            if used > 0:
                yield Runner(pod.party, cpus, used)
            continue
        delay = delays[group]
        of_pod = by_pod_quota * delay / all_delays if all_delays else 0.0
        throttled = _throttled(group, before, now) + of_pod
        yield WaitingContainer(pod.party, cpus, used, delay, throttled)
    outside_containers = _used(pod.sampled.group, before, now) - in_containers
    if outside_containers > 0:
        cpus = union(_cpus(group, before, now) for group in groups) if groups else EMPTY
        yield Runner(pod.party, cpus or _cpus(pod.sampled.group, before, now), outside_containers)


def _used(group: str, before: Look, now: Look) -> float:
    """A group that is new has used all since then, unless its counter can't be read."""
    if group not in now.used:
        return 0.0
    return max(0.0, now.used[group] - before.used.get(group, 0.0))


def _throttled(group: str, before: Look, now: Look) -> float:
    """As its delay, that of a group that did not run before the last look is not known."""
    if group not in before.cpus:
        return 0.0
    return max(0.0, now.throttled.get(group, 0.0) - before.throttled.get(group, 0.0))


def _cpus(group: str, before: Look, now: Look) -> CpuSet:
    """Returns all CPUs where a group may have run: it may have been moved in between."""
    return now.cpus.get(group, EMPTY) | before.cpus.get(group, EMPTY)


def _party(thread: KernelThread, softirqs: Mapping[int, str]) -> Party:
    """Workers of one queue are one party; the thread of softirqs is that of their device.

    `softirqs`: by CPU, the device or kind of most of them."""
    if thread.name.startswith(_SOFTIRQ_THREAD):
        cpu = next(iter(thread.cpus), -1)
        return Party(PartyKind.INTERRUPTS, softirqs.get(cpu, thread.name))
    return Party(PartyKind.KERNEL_THREAD, queue_name(thread.name))
