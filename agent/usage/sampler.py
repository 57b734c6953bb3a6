"""Samples the use of CPU and memory of the machine, of its NUMA nodes and of the pods, on one
clock, and reads the counters of the kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final, Protocol, TypeVar

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.qos import KubeClass, kube_class
from agent.usage import past
from agent.usage.gpus import UsedGpu
from agent.usage.machine import GroupMemory, Machine
from agent.usage.past import LoadHistory, PastHour
from agent.usage.resctrl import Monitored
from agent.usage.series import Aggregate, SampleRing
from agent.usage.traffic import DiskTraffic, Traffic
from agent.usage.waits import Stalls, Throttling, Waits

SAMPLE_SECONDS: Final = 1.0
"""The time between two samples of CPU."""
MEMORY_SECONDS: Final = 15.0
"""The time between two samples of memory and of containers, and two readings of counters."""
SELDOM_SECONDS: Final = 60.0
"""The time between two readings of what has a file for each pod, or for each thread, in /proc."""
MACHINE_SECONDS: Final = 1800.0
"""How long the samples of the machine are kept."""
POD_SECONDS: Final = 600.0
"""How long the samples of a NUMA node and of a pod are kept."""
_FEW: Final = 2
_MEMORY_WAITS: Final = ("memory", "some")
SYSTEM_SLICE: Final = "/system.slice"
_MAX_UNITS: Final = 256
_MAX_DISKS: Final = 16
"""The most disks of a pod or unit."""
_OTHER_UNITS: Final = ("/user.slice", "/init.scope")
"""The rest of what systemd has on a host without virtual machines."""


class SampledPod(msgspec.Struct, frozen=True):
    """A pod whose cgroups are sampled."""

    uid: str
    group: str
    """The cgroup of the pod."""
    containers: Mapping[str, str] = {}
    """The cgroups of its containers by name."""
    process: tuple[str, int] | None = None
    """The id of a sandbox or container, and its process on the host; None if it is not known."""


class HostUnit(msgspec.Struct, frozen=True):
    """What a part of the host has used, and uses; None for a value that is not known."""

    cpu_seconds: float | None
    memory_bytes: int | None
    """Without page cache."""
    major_faults: int | None = None


class Counted(msgspec.Struct, frozen=True):
    """The newest counters of the kernel."""

    waits: Waits = Waits()
    major_faults: int | None = None
    """Of the machine."""
    pod_major_faults: Mapping[str, int] = {}
    """By uid."""
    traffic: Traffic = Traffic()
    units: Mapping[str, HostUnit] = {}
    """Systemd's units outside of pods, by name."""
    kube_classes: Mapping[KubeClass, HostUnit] = {}
    """The kubelet's cgroups of its QoS classes, which also count pods that have ended."""
    kernel_threads_cpu_seconds: float | None = None
    monitored: Mapping[tuple[str, str], Monitored] = {}
    """By group of resctrl and L3 domain."""
    at: float = 0.0
    """When they were read, by the sampler's clock; 0 if they were not."""


class Groups(Protocol):
    """Reads the cgroups, from one thread."""

    def children(self, group: str) -> tuple[str, ...]:
        """The groups in it; empty if it does not exist."""

    def cpu_seconds(self, group: str) -> float | None:
        """The CPU time that the group has used; None if it can't be read."""

    def memory(self, group: str) -> GroupMemory | None:
        """The memory of the group; None if it can't be read."""

    def disks(self, group: str) -> Mapping[str, DiskTraffic]:
        """The traffic of the group and of those in it, by the number of the disk."""

    def throttling(self, group: str) -> Throttling | None:
        """By the quota of the group itself; None if it has had none, or it can't be read."""

    def stalls(self, group: str) -> Stalls:
        """The stalls of all tasks in and below the group."""

    def limits_reached(self, group: str) -> int | None:
        """How often the group, or one in it, was at its own limit of memory; None if that is not
        counted."""


class Used(msgspec.Struct, frozen=True):
    """What something uses of each resource."""

    cpus: Aggregate | None = None
    memory_bytes: Aggregate | None = None
    gpus: tuple[UsedGpu, ...] = ()


class _Use:
    """The series of one thing that is sampled."""

    __slots__ = ("cache", "cpus", "memory")

    def __init__(self, seconds: float) -> None:
        self.cpus = SampleRing(round(seconds / SAMPLE_SECONDS))
        self.memory = SampleRing(max(_FEW, round(seconds / MEMORY_SECONDS)))
        self.cache = SampleRing(max(_FEW, round(seconds / MEMORY_SECONDS)))

    def since(self, at: float, *, page_cache: bool) -> Used:
        return Used(self.cpus.since(at), (self.cache if page_cache else self.memory).since(at))


class Last(msgspec.Struct, frozen=True):
    """The newest values of one thing that is sampled; None for a value that is not known."""

    cpus: float | None = None
    memory_bytes: float | None = None
    memory_with_cache_bytes: float | None = None


class UsageSampler:
    """`sample` is called from one thread, all other methods from any."""

    def __init__(
        self,
        machine: Machine,
        groups: Groups,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = machine
        self._groups = groups
        self._clock = clock
        self._lock = threading.Lock()
        self._pods: tuple[SampledPod, ...] = ()
        self._node_of: Mapping[int, int] = {}
        self._pools: Mapping[tuple[str, int], CpuSet] = {}
        self._past = LoadHistory()
        self._past_before: _Moment | None = None
        self._before: _Counters | None = None
        self._memory_at: float | None = None
        self._seldom_at: float | None = None
        self._node, self._system = _Use(MACHINE_SECONDS), _Use(MACHINE_SECONDS)
        self._numa: dict[int, _Use] = {}
        self._of_pods: dict[str, _Use] = {}
        self._applications: Mapping[str, str] = {}
        self._of_applications: dict[str, _Use] = {}
        self._of_containers: dict[tuple[str, str], Last] = {}
        self._sampled: tuple[SampledPod, ...] = ()
        self._busy_cpus: Mapping[int, float] = {}
        self._counted = Counted()

    def follow(
        self,
        pods: Iterable[SampledPod],
        node_of: Mapping[int, int],
        pools: Mapping[tuple[str, int], CpuSet] = {},
        applications: Mapping[str, str] = {},
    ) -> None:
        """From now on these pods are sampled.

        `node_of`: the NUMA node that each online CPU belongs to.
        `pools`: the CPUs that each pool has, by its kind and NUMA node.
        `applications`: the cgroup that each application of the host has, by its name."""
        with self._lock:
            self._pods, self._node_of, self._pools = tuple(pods), node_of, pools
            self._applications = applications
            self._of_applications = {
                name: use for name, use in self._of_applications.items() if name in applications
            }

    def sample(self) -> None:
        """Takes one sample. What can't be read is missing in it."""
        with self._lock:
            pods, node_of, pools = self._pods, self._node_of, self._pools
            applications = self._applications
        now = self._clock()
        groups = (*(pod.group for pod in pods), *applications.values())
        counters = _Counters(now, self._machine.busy_seconds(), self._cpu_seconds(groups))
        counted, moment = self._counted, None
        if self._memory_at is None or now - self._memory_at >= MEMORY_SECONDS - SAMPLE_SECONDS / 2:
            memory, self._memory_at = self._memory(pods, node_of, applications), now
            containers = (group for pod in pods for group in pod.containers.values())
            of_containers = _Counters(now, {}, self._cpu_seconds(containers))
            counted = self._read_counters(now, pods, memory)
            moment = _Moment(counters, of_containers, memory, counted.waits)
        else:
            new = tuple(pod for pod in pods if pod.uid not in self._of_pods)
            memory = _Memory(None, {}, self._memory_of_groups(pod.group for pod in new), new)
        with self._lock:
            if pods is not self._sampled:
                self._forget(pods, node_of)
                self._sampled = pods
            if self._before is not None and now > self._before.at:
                self._add_cpus(pods, node_of, applications, self._before, counters)
            self._add_memory(now, memory, applications)
            if moment is not None:
                self._add_containers(pods, self._past_before, moment)
                samples = _past_samples(self._past_before, moment, pods, node_of, pools)
                self._past.add(now, samples)
                self._past_before = moment
            self._before, self._counted = counters, counted

    def node(self, seconds: float, *, page_cache: bool = False) -> Used:
        """The use of the machine in the last `seconds`."""
        return self._since(self._node, seconds, page_cache=page_cache)

    def system(self, seconds: float) -> Used:
        """The use of the machine without its pods and the applications that are sampled, in the
        last `seconds`."""
        return self._since(self._system, seconds)

    def numa(self, seconds: float) -> dict[int, Used]:
        """The use of the NUMA nodes in the last `seconds`; memory without page cache."""
        with self._lock:
            at = self._clock() - seconds
            return {
                node: use.since(at, page_cache=False) for node, use in sorted(self._numa.items())
            }

    def pods(self, seconds: float, *, page_cache: bool = False) -> dict[str, Used]:
        """The use of each pod, by uid, in the last `seconds`."""
        with self._lock:
            at = self._clock() - seconds
            return {uid: use.since(at, page_cache=page_cache) for uid, use in self._of_pods.items()}

    def applications(self, seconds: float, *, page_cache: bool = False) -> dict[str, Used]:
        """The use of each application of the host, by name, in the last `seconds`."""
        with self._lock:
            at = self._clock() - seconds
            return {
                name: use.since(at, page_cache=page_cache)
                for name, use in self._of_applications.items()
            }

    def last(self) -> tuple[Last, dict[str, Last], dict[tuple[str, str], Last]]:
        """The newest values of the machine, of the pods by uid, and of the containers by uid and
        name."""
        with self._lock:
            of_pods = {uid: _last(use) for uid, use in self._of_pods.items()}
            return _last(self._node), of_pods, dict(self._of_containers)

    def busy_cpus(self) -> Mapping[int, float]:
        """By CPU, the part of the time between the last two samples in which it was busy."""
        with self._lock:
            return self._busy_cpus

    def counted(self) -> Counted:
        """The newest counters."""
        with self._lock:
            return self._counted

    def past(self, wall: float) -> PastHour:
        """The load and pressure of the last hour. `wall`: the time in seconds since 1970."""
        with self._lock:
            return self._past.hour(self._clock(), wall)

    def _since(self, use: _Use, seconds: float, *, page_cache: bool = False) -> Used:
        with self._lock:
            return use.since(self._clock() - seconds, page_cache=page_cache)

    def _cpu_seconds(self, groups: Iterable[str]) -> dict[str, float]:
        read = ((group, self._groups.cpu_seconds(group)) for group in groups)
        return {group: seconds for group, seconds in read if seconds is not None}

    def _read_counters(self, now: float, pods: tuple[SampledPod, ...], memory: _Memory) -> Counted:
        last, disks = self._counted, self._machine.disks()
        names = {number: name for number, (name, _) in disks.items()}
        units = self._unit_groups()
        networks, thread_seconds = last.traffic.pod_networks, last.kernel_threads_cpu_seconds
        if self._seldom_at is None or now - self._seldom_at >= SELDOM_SECONDS - SAMPLE_SECONDS / 2:
            self._seldom_at = now
            processes = {pod.uid: pod.process for pod in pods if pod.process is not None}
            networks = self._machine.pod_networks.read(processes)
            thread_seconds = self._machine.kernel_threads_cpu_seconds()
        of_pods = {pod.uid: memory.groups.get(pod.group) for pod in pods}
        of_units = {name: self._use_of(group) for name, group in units.items()}
        return Counted(
            self._read_waits(pods),
            self._machine.major_faults(),
            {
                uid: read.major_faults
                for uid, read in of_pods.items()
                if read is not None and read.major_faults is not None
            },
            Traffic(
                dict(disks.values()),
                self._machine.networks(),
                self._disks({pod.uid: pod.group for pod in pods}, names),
                networks,
                self._disks(units, names),
            ),
            {name: use for name, use in of_units.items() if use != _UNKNOWN},
            self._read_classes(pods),
            thread_seconds,
            self._machine.resctrl.monitored(),
            now,
        )

    def _read_waits(self, pods: Iterable[SampledPod]) -> Waits:
        of_pods, quotas, limits = {}, {}, {}
        for pod in pods:
            stalls = of_pods[pod.uid] = self._groups.stalls(pod.group)
            if _MEMORY_WAITS in stalls:
                reached = self._groups.limits_reached(pod.group)
                if reached is not None:
                    limits[pod.uid] = reached
            for name, group in (("", pod.group), *pod.containers.items()):
                if (counters := self._groups.throttling(group)) is not None:
                    quotas[pod.uid, name] = counters
        return Waits(self._machine.stalls(), of_pods, quotas, limits)

    def _disks(
        self, groups: Mapping[str, str], names: Mapping[str, str]
    ) -> dict[tuple[str, str], DiskTraffic]:
        return {
            (owner, names[number]): traffic
            for owner, group in groups.items()
            for number, traffic in islice(self._groups.disks(group).items(), _MAX_DISKS)
            if number in names
        }

    def _unit_groups(self) -> dict[str, str]:
        groups = (*unit_groups(self._groups.children(SYSTEM_SLICE)), *_OTHER_UNITS)
        return {group.removeprefix(SYSTEM_SLICE).strip("/"): group for group in groups}

    def _use_of(self, group: str) -> HostUnit:
        seconds, memory = self._groups.cpu_seconds(group), self._groups.memory(group)
        if memory is None:
            return HostUnit(seconds, None)
        return HostUnit(seconds, memory.used, memory.major_faults)

    def _read_classes(self, pods: Iterable[SampledPod]) -> dict[KubeClass, HostUnit]:
        root = next((root for pod in pods if (root := kubepods(pod.group))), None)
        if root is None:
            return {}
        all_pods = self._use_of(root)
        burstable, besteffort = (self._use_of(f"{root}/{name}") for name in qos_groups(root))
        before = self._counted.kube_classes.get("guaranteed", _UNKNOWN)
        guaranteed = HostUnit(
            # The groups are read one after the other, and a counter never decreases.
            _left(
                before.cpu_seconds,
                all_pods.cpu_seconds,
                burstable.cpu_seconds,
                besteffort.cpu_seconds,
            ),
            _left(0, all_pods.memory_bytes, burstable.memory_bytes, besteffort.memory_bytes),
            _left(
                before.major_faults,
                all_pods.major_faults,
                burstable.major_faults,
                besteffort.major_faults,
            ),
        )
        return {"guaranteed": guaranteed, "burstable": burstable, "besteffort": besteffort}

    def _memory(
        self,
        pods: Iterable[SampledPod],
        node_of: Mapping[int, int],
        applications: Mapping[str, str],
    ) -> _Memory:
        nodes = {}
        for node in sorted(set(node_of.values())):
            if (used := self._machine.numa_memory_bytes(node)) is not None:
                nodes[node] = used
        machine = self._machine.memory()
        total = None if machine is None else (machine.used, machine.used_with_page_cache)
        groups = (group for pod in pods for group in (pod.group, *pod.containers.values()))
        of_groups = self._memory_of_groups((*groups, *applications.values()))
        return _Memory(total, nodes, of_groups, tuple(pods))

    def _memory_of_groups(self, groups: Iterable[str]) -> dict[str, GroupMemory]:
        read = ((group, self._groups.memory(group)) for group in groups)
        return {group: memory for group, memory in read if memory is not None}

    def _forget(self, pods: Iterable[SampledPod], node_of: Mapping[int, int]) -> None:
        """Drops the series of pods, containers and NUMA nodes that are gone."""
        uids = {pod.uid for pod in pods}
        names = {(pod.uid, name) for pod in pods for name in pod.containers}
        nodes = set(node_of.values())
        self._of_pods = {uid: use for uid, use in self._of_pods.items() if uid in uids}
        self._of_containers = {
            key: last for key, last in self._of_containers.items() if key in names
        }
        self._numa = {node: use for node, use in self._numa.items() if node in nodes}

    def _add_cpus(
        self,
        pods: Iterable[SampledPod],
        node_of: Mapping[int, int],
        applications: Mapping[str, str],
        before: _Counters,
        now: _Counters,
    ) -> None:
        passed = now.at - before.at
        busy: dict[int, float] = {}
        self._busy_cpus = {
            cpu: max(0.0, now.busy[cpu] - before.busy[cpu]) / passed
            for cpu in now.busy.keys() & before.busy.keys()
        }
        for cpu, used in self._busy_cpus.items():
            if cpu in node_of:
                busy[node_of[cpu]] = busy.get(node_of[cpu], 0.0) + used
        total = sum(self._busy_cpus.values())
        accounted = 0.0
        for name, group in applications.items():
            used_cpus = _rate(group, before, now)
            if used_cpus is not None:
                accounted += used_cpus
                self._of_application(name).cpus.add(now.at, used_cpus)
        for pod in pods:
            used_cpus = _rate(pod.group, before, now)
            if used_cpus is not None:
                accounted += used_cpus
                self._of(pod.uid).cpus.add(now.at, used_cpus)
        if now.busy:
            self._node.cpus.add(now.at, total)
            self._system.cpus.add(now.at, max(0.0, total - accounted))
        for node, used in busy.items():
            self._numa.setdefault(node, _Use(POD_SECONDS)).cpus.add(now.at, used)

    def _add_memory(self, at: float, memory: _Memory, applications: Mapping[str, str]) -> None:
        accounted = 0
        for name, group in applications.items():
            if (read := memory.groups.get(group)) is not None:
                use = self._of_application(name)
                use.memory.add(at, read.used)
                use.cache.add(at, read.used_with_page_cache)
                accounted += read.used
        for pod in memory.pods:
            if (read := memory.groups.get(pod.group)) is not None:
                use = self._of(pod.uid)
                use.memory.add(at, read.used)
                use.cache.add(at, read.used_with_page_cache)
                accounted += read.used
        if memory.machine is not None:
            self._node.memory.add(at, memory.machine[0])
            self._node.cache.add(at, memory.machine[1])
            self._system.memory.add(at, max(0, memory.machine[0] - accounted))
        for node, used in memory.nodes.items():
            self._numa.setdefault(node, _Use(POD_SECONDS)).memory.add(at, used)

    def _add_containers(
        self, pods: Iterable[SampledPod], before: _Moment | None, now: _Moment
    ) -> None:
        for pod in pods:
            for name, group in pod.containers.items():
                memory = now.memory.groups.get(group)
                self._of_containers[pod.uid, name] = Last(
                    None if before is None else _rate(group, before.containers, now.containers),
                    None if memory is None else memory.used,
                )

    def _of(self, uid: str) -> _Use:
        use = self._of_pods.get(uid)
        if use is None:
            use = self._of_pods[uid] = _Use(POD_SECONDS)
        return use

    def _of_application(self, name: str) -> _Use:
        return self._of_applications.setdefault(name, _Use(POD_SECONDS))


class _Counters(msgspec.Struct, frozen=True):
    """CPU time at one moment."""

    at: float
    busy: Mapping[int, float]
    groups: Mapping[str, float]


class _Memory(msgspec.Struct, frozen=True):
    """Bytes in use at one moment, without and with page cache."""

    machine: tuple[int, int] | None
    nodes: Mapping[int, int]
    groups: Mapping[str, GroupMemory]
    pods: tuple[SampledPod, ...]


class _Moment(msgspec.Struct, frozen=True):
    """What is read at a sample of memory."""

    counters: _Counters
    containers: _Counters
    memory: _Memory
    waits: Waits


def _past_samples(
    before: _Moment | None,
    now: _Moment,
    pods: Iterable[SampledPod],
    node_of: Mapping[int, int],
    pools: Mapping[tuple[str, int], CpuSet],
) -> dict[past.Part, dict[str, float]]:
    """The load and pressure of each part of the node since the moment before."""
    at, counters, memory = now.counters.at, now.counters, now.memory
    machine: dict[str, float] = {}
    samples: dict[past.Part, dict[str, float]] = {past.MACHINE: machine}
    samples |= {(past.NUMA_NODE, node): {} for node in sorted(set(node_of.values()))}
    samples |= {(past.POOL, *key): {"of_cpus": len(cpus)} for key, cpus in pools.items()}
    samples |= {(past.POD, pod.uid): {} for pod in pods}
    if memory.machine is not None:
        machine["memory_bytes"] = memory.machine[0]
    for node, used_bytes in memory.nodes.items():
        samples[past.NUMA_NODE, node]["memory_bytes"] = used_bytes
    for pod in pods:
        if (read := memory.groups.get(pod.group)) is not None:
            samples[past.POD, pod.uid]["memory_bytes"] = read.used
    if before is None or at <= before.counters.at:
        return samples
    passed = at - before.counters.at
    busy = {
        cpu: max(0.0, seconds - before.counters.busy[cpu]) / passed
        for cpu, seconds in counters.busy.items()
        if cpu in before.counters.busy
    }
    if busy:
        machine["cpus"] = sum(busy.values())
        for cpu, node in node_of.items():
            of_node = samples[past.NUMA_NODE, node]
            of_node["cpus"] = of_node.get("cpus", 0.0) + busy.get(cpu, 0.0)
        for key, cpus in pools.items():
            samples[past.POOL, *key]["cpus"] = sum(busy.get(cpu, 0.0) for cpu in cpus)
    machine |= _pressure(before.waits.machine, now.waits.machine, passed)
    for pod in pods:
        of_pod = samples[past.POD, pod.uid]
        if (used_cpus := _rate(pod.group, before.counters, counters)) is not None:
            of_pod["cpus"] = used_cpus
        stalled_before = before.waits.pods.get(pod.uid, {})
        of_pod |= _pressure(stalled_before, now.waits.pods.get(pod.uid, {}), passed)
    for key_of_quota, quota in now.waits.quotas.items():
        quota_before = before.waits.quotas.get(key_of_quota)
        if quota_before is not None:
            of_pod = samples[past.POD, key_of_quota[0]]
            seconds = max(0.0, quota.seconds - quota_before.seconds)
            of_pod["throttled_cpus"] = of_pod.get("throttled_cpus", 0.0) + seconds / passed
    return samples


def _pressure(before: Stalls, now: Stalls, passed: float) -> dict[str, float]:
    """By quantity, the part of the time in which a task waited."""
    return {
        f"{key[0]}_pressure": min(max(0.0, seconds - before[key]) / passed, 1.0)
        for key, seconds in now.items()
        if key in before and key[1:] == ("some",)
    }


def _rate(group: str, before: _Counters, now: _Counters) -> float | None:
    """CPUs in use between two moments; None without both. A counter that was reset gives 0."""
    if group not in before.groups or group not in now.groups:
        return None
    return max(0.0, now.groups[group] - before.groups[group]) / (now.at - before.at)


def _last(use: _Use) -> Last:
    return Last(use.cpus.last, use.memory.last, use.cache.last)


_UNKNOWN: Final = HostUnit(None, None)


def unit_groups(groups: Iterable[str]) -> list[str]:
    """The first _MAX_UNITS of these cgroups. On v1 systemd makes a group of each mount, also of
    those of pods: no task runs there. A name that can't be printed is left out."""
    units = (group for group in groups if group.isprintable() and not group.endswith(".mount"))
    return list(islice(units, _MAX_UNITS))


def kubepods(group: str) -> str | None:
    """The kubelet's cgroup of all pods, from that of a pod; None for a group elsewhere."""
    of_pod = kube_class(group)
    if of_pod is None:
        return None
    above = group.rpartition("/")[0]
    return above if of_pod == "guaranteed" else above.rpartition("/")[0]


def qos_groups(root: str) -> tuple[str, str]:
    """The names of the groups of burstable and besteffort pods in the kubelet's cgroup of all pods;
    those of systemd contain that of the group above."""
    name = root.rpartition("/")[2]
    if name.endswith(".slice"):
        prefix = name.removesuffix(".slice")
        return f"{prefix}-burstable.slice", f"{prefix}-besteffort.slice"
    return "burstable", "besteffort"


_Number = TypeVar("_Number", int, float)


def _left(least: _Number | None, whole: _Number | None, *parts: _Number | None) -> _Number | None:
    """What the parts leave of the whole; None if one of them is not known."""
    amounts = [part for part in parts if part is not None]
    if whole is None or len(amounts) < len(parts):
        return None
    return max(whole - sum(amounts), least or 0)
