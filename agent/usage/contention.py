"""Who waited for CPU time, and who had the CPUs meanwhile.

What a pod waits
    The kernel counts for each thread how long it could have run and did not (`schedstat`).
    Interrupts and a hypervisor take time from a thread that runs, which the thread does not notice:
    of their time on a CPU, the pod has lost the part in which it had the CPU.

Who ran where
    The kernel does not count the time of a cgroup v2 by CPU. But it says how long each CPU was
    busy, how long each group and kernel thread ran, and on which CPUs it may run. Of all
    distributions that agree with these, this module takes the one that assumes nothing else
    (iterative proportional fitting). Who may not run on a CPU has no time there. What no pod, unit
    or kernel thread accounts for is of processes outside of them.

What a wait consists of
    - throttled: by the quota of the pod. It never counts as a neighbour's.
    - taken by others: what the pod would have run without them, which is at most what they ran on
      its CPUs, and at most what its threads could use of those CPUs at once.
    - too few CPUs: the rest. Its threads waited for each other.

The three add up to the wait. The part that others have taken is distributed over them by their time
on the CPUs of the pod."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union


class PartyKind(enum.StrEnum):
    """What can take CPU time."""

    POD = "pod"
    UNIT = "unit"
    """A unit of systemd."""
    KERNEL_THREAD = "kernel-thread"
    INTERRUPTS = "interrupts"
    """Also the softirqs that they cause."""
    HYPERVISOR = "hypervisor"
    PROCESSES = "processes"
    """All that are in no pod and no unit."""


class Party(msgspec.Struct, frozen=True, order=True):
    """Somebody who takes CPU time."""

    kind: PartyKind
    name: str
    """`namespace/name` of a pod, the cgroup of a unit, the name of a kernel thread, or the device
    of interrupts."""
    qos: str = ""
    """The QoS class of a pod."""


class Runner(msgspec.Struct, frozen=True):
    """What ran in an interval."""

    party: Party
    cpus: CpuSet
    """Where it may run."""
    used_seconds: float


class WaitingContainer(Runner, frozen=True):
    """A container whose threads are known; its party is its pod. The times are sums over its
    threads or CPUs, so several seconds in a second are possible."""

    delay_seconds: float = 0.0
    """How long its threads could have run and did not."""
    throttled_seconds: float = 0.0
    """How long CPUs did not run it because of a quota."""


class Interval(msgspec.Struct, frozen=True):
    """What happened on a node between two moments."""

    seconds: float
    process_seconds: Mapping[int, float]
    """By CPU, how long it ran processes and kernel threads."""
    taken_seconds: Mapping[Party, Mapping[int, float]] = {}
    """How long interrupts and the hypervisor had each CPU."""
    containers: tuple[WaitingContainer, ...] = ()
    runners: tuple[Runner, ...] = ()
    """Everything else that ran."""


class CpuWait(msgspec.Struct, frozen=True):
    """A pod's wait, and its parts, in seconds of each second."""

    pod: Party
    cpus: CpuSet
    waited: float
    throttled: float
    own: float
    """Its threads waited for each other."""
    takers: tuple[tuple[Party, float], ...]
    """The largest first."""


class CoreSharing(msgspec.Struct, frozen=True):
    """A pod that runs while others run on the sibling threads of its CPUs, which slows it down
    without a wait."""

    pod: Party
    siblings: CpuSet
    """The CPUs of its cores where it may not run."""
    shared: float
    """How long both ran at most, in seconds of each second, added up over its CPUs."""
    sharers: tuple[tuple[Party, float], ...]
    """How long they ran there, in seconds of each second; the longest first."""


OTHER_PROCESSES: Final = Party(PartyKind.PROCESSES, "processes outside of pods and units")
_ROUNDS: Final = 8
_LEAST_SHARE: Final = 1e-3
"""The part of an interval that a CPU counts as busy at least: a tick may miss a short run."""
_NANOSECOND: Final = 1e-9
_UNSEEN_SHARE: Final = 0.02
"""The part of an interval that ticks may miss on a CPU."""


def delays(interval: Interval) -> dict[Party, float]:
    """How long the threads of each pod could have run and did not, in seconds of each second; only
    of pods whose threads are known."""
    of_pods: dict[Party, float] = {}
    for container in interval.containers:
        delay = container.delay_seconds / interval.seconds
        of_pods[container.party] = of_pods.get(container.party, 0.0) + delay
    return of_pods


def cpu_waits(
    interval: Interval, least: float = 0.0, most: int | None = None
) -> tuple[CpuWait, ...]:
    """The waits of pods, the longest first.

    `least`: waits that are shorter, in seconds of each second, are left out. Without a longer one
        nothing is computed.
    `most`: computes only so many, of those that may be the longest; None for all."""
    possible: dict[Party, float] = {}
    lost = _by_cpu(interval.taken_seconds)
    for container in interval.containers:
        longest = container.delay_seconds + sum(lost.get(cpu, 0.0) for cpu in container.cpus)
        possible[container.party] = possible.get(container.party, 0.0) + longest
    waiting = [
        pod for pod, seconds in possible.items() if seconds and seconds >= least * interval.seconds
    ]
    waiting = sorted(waiting, key=lambda pod: (-possible[pod], pod))[:most]
    if not waiting or interval.seconds <= 0:
        return ()
    ran = _Ran(interval)
    containers: dict[Party, list[WaitingContainer]] = {}
    for container in interval.containers:
        containers.setdefault(container.party, []).append(container)
    waits = [_wait(pod, containers[pod], interval, ran, lost) for pod in waiting]
    longest_first = sorted(waits, key=lambda wait: (-wait.waited, wait.pod))
    return tuple(wait for wait in longest_first if wait.waited and wait.waited >= least)


def core_sharings(
    interval: Interval, siblings: Mapping[int, CpuSet], least: float
) -> tuple[CoreSharing, ...]:
    """The pods that share their cores, by name.

    `siblings`: by CPU, all CPUs of its core.
    `least`: shorter times together, in seconds of each second, are left out."""
    used: dict[Party, float] = {}
    for container in interval.containers:
        used[container.party] = used.get(container.party, 0.0) + container.used_seconds
    sharing = [
        (container, others)
        for container in interval.containers
        if used[container.party] >= least * interval.seconds
        and (others := union(siblings.get(cpu, EMPTY) for cpu in container.cpus) - container.cpus)
    ]
    if not sharing or interval.seconds <= 0:
        return ()
    ran = _Ran(interval)
    shared: dict[Party, float] = {}
    beside: dict[Party, CpuSet] = {}
    for container, others in sharing:
        beside[container.party] = beside.get(container.party, EMPTY) | others
        on_cpu = ran.on(container.cpus, container.cpus, container.used_seconds)
        for cpu, seconds in on_cpu.items():
            together = min(
                seconds, ran.of_others(siblings.get(cpu, EMPTY) & others, container.party)
            )
            shared[container.party] = shared.get(container.party, 0.0) + together
    sharings = []
    for pod in sorted(shared):
        together = min(shared[pod], ran.of_others(beside[pod], pod)) / interval.seconds
        times = {**ran.by_party(beside[pod])}
        times.pop(pod, None)
        if times and together >= least:
            longest = sorted(times.items(), key=lambda item: (-item[1], item[0]))
            sharers = tuple((party, seconds / interval.seconds) for party, seconds in longest)
            sharings.append(CoreSharing(pod, beside[pod], together, sharers))
    return tuple(sharings)


class _Ran:
    """How long each party ran on each CPU."""

    def __init__(self, interval: Interval) -> None:
        self._seconds = interval.seconds
        self._by_party: dict[Party, dict[CpuSet, float]] = {}
        self._used: dict[CpuSet, float] = {}
        for runner in _runners(interval):
            of_party = self._by_party.setdefault(runner.party, {})
            for by_set in (of_party, self._used):
                by_set[runner.cpus] = by_set.get(runner.cpus, 0.0) + runner.used_seconds
        self._of_sets = _fitted(interval, self._used)
        self._of_cpus: dict[int, float] = {}
        for of_set in self._of_sets.values():
            for cpu, seconds in of_set.items():
                self._of_cpus[cpu] = self._of_cpus.get(cpu, 0.0) + seconds
        self._on: dict[CpuSet, dict[Party, float]] = {}

    def on(self, cpus: CpuSet, own_cpus: CpuSet, used_seconds: float) -> dict[int, float]:
        """By CPU of `cpus`, the time of what may run on `own_cpus` and ran so long in all."""
        total = self._used.get(own_cpus, 0.0)
        share = used_seconds / total if total > 0 else 0.0
        of_set = self._of_sets.get(own_cpus, {})
        return {cpu: share * of_set.get(cpu, 0.0) for cpu in cpus & own_cpus}

    def interrupted_share(self, cpu: int, used_seconds: float, lost_seconds: float) -> float:
        """The part of the interrupts of a CPU that came while something ran there so long.

        Some kernels count interrupts also as time of what they interrupt (those without
        IRQ_TIME_ACCOUNTING): then what ran and the interrupts are longer than the interval."""
        remaining = self._seconds - lost_seconds
        longer = self._of_cpus.get(cpu, 0.0) - remaining
        counted_twice = longer > _UNSEEN_SHARE * self._seconds
        possible = self._seconds if counted_twice else remaining
        return min(1.0, used_seconds / max(possible, _NANOSECOND))

    def by_party(self, cpus: CpuSet) -> Mapping[Party, float]:
        """How long each party ran on those CPUs; without those that did not."""
        if cpus not in self._on:  # most pods share those of a pool
            shares = {
                own_cpus: share
                for own_cpus, of_set in self._of_sets.items()
                if of_set and (share := self._share(cpus, own_cpus, of_set)) > 0
            }
            times = {
                party: sum(used * shares.get(own_cpus, 0.0) for own_cpus, used in of_party.items())
                for party, of_party in self._by_party.items()
            }
            self._on[cpus] = {party: time for party, time in times.items() if time > 0}
        return self._on[cpus]

    def _share(self, cpus: CpuSet, own_cpus: CpuSet, of_set: Mapping[int, float]) -> float:
        if own_cpus <= cpus:
            return 1.0
        return sum(of_set.get(cpu, 0.0) for cpu in cpus & own_cpus) / self._used[own_cpus]

    def of_others(self, cpus: CpuSet, pod: Party) -> float:
        """How long all but the pod ran on those CPUs."""
        of_all = sum(self._of_cpus.get(cpu, 0.0) for cpu in cpus)
        return max(0.0, of_all - self.by_party(cpus).get(pod, 0.0))


def _wait(
    pod: Party,
    containers: Iterable[WaitingContainer],
    interval: Interval,
    ran: _Ran,
    lost: Mapping[int, float],
) -> CpuWait:
    """The wait of the pod with these containers.

    `lost`: by CPU, how long interrupts and the hypervisor had it."""
    throttled = own = 0.0
    taken: dict[Party, float] = {}
    cpus = EMPTY
    for container in containers:
        cpus |= container.cpus
        times = {**ran.by_party(container.cpus)}
        own_seconds = times.pop(pod, 0.0)
        on_cpu = ran.on(container.cpus, container.cpus, container.used_seconds)
        while_it_ran = {
            cpu: ran.interrupted_share(cpu, time, lost.get(cpu, 0.0))
            for cpu, time in on_cpu.items()
        }
        for party, by_cpu in interval.taken_seconds.items():
            all_of_it = sum(by_cpu.get(cpu, 0.0) for cpu in container.cpus)
            hit = sum(by_cpu.get(cpu, 0.0) * share for cpu, share in while_it_ran.items())
            if hit > 0:
                taken[party] = taken.get(party, 0.0) + hit
            if all_of_it > hit:
                times[party] = all_of_it - hit
        by_quota = min(container.delay_seconds, container.throttled_seconds)
        by_others = min(
            container.delay_seconds - by_quota,
            sum(times.values()),
            max(0.0, _usable(container, own_seconds, interval) - by_quota),
        )
        throttled += by_quota
        own += container.delay_seconds - by_quota - by_others
        total = sum(times.values())
        for party, time in times.items():
            if by_others > 0:
                taken[party] = taken.get(party, 0.0) + by_others * time / total
    takers = ((party, seconds / interval.seconds) for party, seconds in taken.items())
    return CpuWait(
        pod,
        cpus,
        (throttled + own + sum(taken.values())) / interval.seconds,
        throttled / interval.seconds,
        own / interval.seconds,
        tuple(sorted(takers, key=lambda taker: (-taker[1], taker[0]))),
    )


def _usable(container: WaitingContainer, own_seconds: float, interval: Interval) -> float:
    """What the container could have used more if nobody else had run.

    `own_seconds`: what its pod used of its CPUs."""
    capacity = len(container.cpus) * interval.seconds
    of_its_pod = max(0.0, own_seconds - container.used_seconds)
    wanted = container.used_seconds + container.delay_seconds
    return min(wanted, capacity - of_its_pod) - container.used_seconds


def _by_cpu(taken_seconds: Mapping[Party, Mapping[int, float]]) -> dict[int, float]:
    seconds: dict[int, float] = {}
    for by_cpu in taken_seconds.values():
        for cpu, time in by_cpu.items():
            seconds[cpu] = seconds.get(cpu, 0.0) + time
    return seconds


def _runners(interval: Interval) -> Iterator[Runner]:
    """All that ran. The processes of no party are one of them, if they ran longer than what ticks
    may miss."""
    rest = sum(interval.process_seconds.values())
    for runner in (*interval.containers, *interval.runners):
        if runner.used_seconds >= _NANOSECOND:
            rest -= runner.used_seconds
            yield runner
    if rest > _UNSEEN_SHARE * interval.seconds * len(interval.process_seconds):
        yield Runner(OTHER_PROCESSES, CpuSet(interval.process_seconds), rest)


def _fitted(
    interval: Interval, used: Mapping[CpuSet, float]
) -> Mapping[CpuSet, Mapping[int, float]]:
    """By set of CPUs, how long what may run there ran on each of them.

    `used`: how long it ran in all."""
    least = _LEAST_SHARE * interval.seconds
    busy = {cpu: max(seconds, least) for cpu, seconds in interval.process_seconds.items()}
    rows = {cpus: {cpu: busy[cpu] for cpu in cpus if cpu in busy} for cpus in used}
    for _ in range(_ROUNDS):
        sums = dict.fromkeys(busy, 0.0)
        for row in rows.values():
            for cpu, seconds in row.items():
                sums[cpu] += seconds
        for cpus, row in rows.items():
            fitted = {cpu: seconds * busy[cpu] / sums[cpu] for cpu, seconds in row.items()}
            total = sum(fitted.values())
            rows[cpus] = {cpu: seconds * used[cpus] / total for cpu, seconds in fitted.items()}
    return rows
