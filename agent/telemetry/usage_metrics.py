"""The metrics of usage, waits and colocation: an agent without usage does not load them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from agent.model.pod.qos import Pools
from agent.model.snapshot import Owner
from agent.telemetry.exposition import Declarations, Labels, Metric, Series, single
from agent.telemetry.metrics import AgentMetrics, pod_labels, shared_pools
from agent.usage.contention import CpuWait
from agent.usage.sampler import Counted, Last

_USAGE: Final = Declarations("topolet")
_NODE_CPUS: Final = _USAGE.gauge("node_used_cpus", "CPUs in use on the machine.")
_NODE_MEMORY: Final = _USAGE.gauge(
    "node_used_memory_bytes", "Memory of the machine in use, without page cache."
)
_NUMA_CPUS: Final = _USAGE.gauge("numa_node_used_cpus", "CPUs in use on a NUMA node.", "node")
_NUMA_MEMORY: Final = _USAGE.gauge(
    "numa_node_used_memory_bytes", "Memory of a NUMA node in use, without page cache.", "node"
)
_POD_CPUS: Final = _USAGE.gauge("pod_used_cpus", "CPUs that a pod uses.", "namespace", "pod")
_POD_MEMORY: Final = _USAGE.gauge(
    "pod_used_memory_bytes",
    "Memory that a pod uses, without page cache.",
    "namespace",
    "pod",
)
_OF_CONTAINER: Final = ("namespace", "pod", "container")
_CONTAINER_USE: Final = (
    _USAGE.gauge("container_used_cpus", "CPUs that a container uses.", *_OF_CONTAINER),
    _USAGE.gauge(
        "container_used_memory_bytes",
        "Memory that a container uses, without page cache.",
        *_OF_CONTAINER,
    ),
)
_QUOTA_PERIODS: Final = _USAGE.counter(
    "pod_cpu_quota_periods",
    "Periods of a CPU quota in which its container, or pod without a container, ran.",
    *_OF_CONTAINER,
)
_THROTTLED_PERIODS: Final = _USAGE.counter(
    "pod_cpu_throttled_periods", "Periods in which a CPU quota was used up.", *_OF_CONTAINER
)
_THROTTLED: Final = _USAGE.counter(
    "pod_cpu_throttled_seconds",
    "Time without CPU after a CPU quota was used up, added up over the CPUs.",
    *_OF_CONTAINER,
)
_POD_STALLED: Final = _USAGE.counter(
    "pod_pressure_stalled_seconds",
    "Time in which some or all (full) tasks of a pod waited for cpu, memory or io.",
    *("namespace", "pod", "resource", "kind"),
)
_NODE_STALLED: Final = _USAGE.counter(
    "node_pressure_stalled_seconds",
    "Time in which some or all (full) tasks of the machine waited for cpu, memory or io.",
    *("resource", "kind"),
)
_NODE_FAULTS: Final = _USAGE.counter(
    "node_major_page_faults", "Accesses to memory on the machine that waited for a disk."
)
_POD_FAULTS: Final = _USAGE.counter(
    "pod_major_page_faults",
    "Accesses to memory by a pod that waited for a disk.",
    *("namespace", "pod"),
)
_UNIT_USE: Final = (
    _USAGE.counter(
        "host_unit_cpu_seconds", "CPU time of a unit of systemd outside of pods.", "unit"
    ),
    _USAGE.gauge(
        "host_unit_used_memory_bytes",
        "Memory in use by a unit of systemd outside of pods, without page cache.",
        "unit",
    ),
    _USAGE.counter(
        "host_unit_major_page_faults",
        "Accesses to memory by a unit of systemd that waited for a disk.",
        "unit",
    ),
)
_CLASS_USE: Final = (
    _USAGE.counter(
        "kubepods_cpu_seconds",
        "CPU time of all pods of a QoS class of the kubelet, also of those that ended.",
        "kube_class",
    ),
    _USAGE.gauge(
        "kubepods_used_memory_bytes",
        "Memory in use by the pods of a QoS class of the kubelet, without page cache.",
        "kube_class",
    ),
    _USAGE.counter(
        "kubepods_major_page_faults",
        "Accesses to memory by the pods of a QoS class of the kubelet that waited for a disk.",
        "kube_class",
    ),
)
_QOS_CPUS: Final = _USAGE.gauge(
    "qos_class_used_cpus", "CPUs that the pods of a QoS class of Koordinator use.", "qos_class"
)
_QOS_MEMORY: Final = _USAGE.gauge(
    "qos_class_used_memory_bytes",
    "Memory that the pods of a QoS class of Koordinator use, without page cache.",
    "qos_class",
)
_POOL_BUSY: Final = _USAGE.gauge(
    "pool_used_cpus",
    "CPUs of a shared pool that are in use, by whatever runs there.",
    *("pool", "numa_node"),
)
_EXCLUSIVE_BUSY: Final = _USAGE.gauge(
    "exclusive_used_cpus",
    "CPUs that a pod owns and that are in use, by whatever runs there.",
    *("namespace", "pod", "qos_class"),
)


def _of_disks(prefix: str, by: str, *labels: str) -> tuple[Series, ...]:
    """Declares one series for each field of DiskTraffic, in their order.

    `prefix`: what their names begin with.
    `by`: who moves the bytes, as the help says it."""
    return tuple(
        _USAGE.counter(f"{prefix}disk_{name}", f"{text} {by}.", *labels, "device")
        for name, text in (
            ("read_bytes", "Bytes read from a disk"),
            ("written_bytes", "Bytes written to a disk"),
            ("reads", "Reads of a disk"),
            ("writes", "Writes to a disk"),
        )
    )


def _of_networks(prefix: str, by: str, *labels: str) -> tuple[Series, ...]:
    """Declares one series for each field of NetworkTraffic, in their order; the arguments are those
    of `_of_disks`, without the word "by"."""
    return tuple(
        _USAGE.counter(f"{prefix}network_{way}_{what}", f"{what.title()} {way} by {by}.", *labels)
        for what in ("bytes", "packets")
        for way in ("received", "sent")
    )


_DISKS: Final = _of_disks("", "by the machine")
_POD_DISKS: Final = _of_disks("pod_", "by a pod", "namespace", "pod")
_UNIT_DISKS: Final = _of_disks("host_unit_", "by a unit of systemd", "unit")
_NETWORKS: Final = _of_networks("", "a network device of the machine", "device")
_POD_NETWORKS: Final = _of_networks("pod_", "a pod, without loopback", "namespace", "pod")
_OFFERED_CPUS: Final = _USAGE.gauge(
    "offered_cpus", "CPUs that the Node offers as a kind of resource: batch, mid.", "kind"
)
_OFFERED_MEMORY: Final = _USAGE.gauge(
    "offered_memory_bytes", "Memory that the Node offers as a kind of resource: batch, mid.", "kind"
)
_KERNEL_THREADS: Final = _USAGE.counter(
    "kernel_threads_cpu_seconds", "CPU time of the threads of the kernel."
)
_MONITORED: Final = (
    _USAGE.gauge(
        "resctrl_cache_bytes",
        "Part of an L3 cache that holds data of a group of resctrl.",
        *("group", "cache_id"),
    ),
    _USAGE.counter(
        "resctrl_memory_bytes",
        "Bytes that a group of resctrl moved between an L3 cache and memory.",
        *("group", "cache_id"),
    ),
    _USAGE.counter(
        "resctrl_local_memory_bytes",
        "Bytes that a group of resctrl moved between an L3 cache and its own memory.",
        *("group", "cache_id"),
    ),
)
"""In the order of the fields of Monitored."""
_DELAY: Final = _USAGE.gauge(
    "pod_run_queue_delay_ratio",
    "Seconds of each second that the threads of a pod could have run and did not, added up over "
    "its threads; of pods that ran in the last 15 seconds.",
    *("namespace", "pod"),
)
_WAIT: Final = _USAGE.gauge(
    "pod_cpu_wait_ratio",
    "Seconds of each second that a pod waited too long for CPUs, by cause: throttled by its own "
    "quota, own threads that are more than its CPUs can run at once, or taken by others.",
    *("namespace", "pod", "cause"),
)
_TAKEN: Final = _USAGE.gauge(
    "pod_cpu_taken_ratio",
    "Seconds of each second that the three largest takers took from a pod that waited too long: "
    "pods, units, kernel threads, interrupts of devices, the hypervisor, or other processes.",
    *("namespace", "pod", "kind", "taker"),
)
_COLOCATION_FILES: Final = _USAGE.gauge(
    "colocation_files",
    "Files of cgroups that a feature of colocation has, or would have if it acted.",
    "feature",
)
_COLOCATION_UNSUPPORTED: Final = _USAGE.gauge(
    "colocation_unsupported",
    "1 for a feature that a strategy wants and this machine can't have.",
    "feature",
)
_COLOCATION_FAILED: Final = _USAGE.gauge(
    "colocation_failed_files", "Files that colocation could not write in the last second."
)
_BE_LEFT: Final = _USAGE.gauge(
    "colocation_be_left_cpus",
    "CPUs that all others leave to BE pods below the share of the node that may be in use.",
)
_BE_AT_MINIMUM: Final = _USAGE.gauge(
    "colocation_be_at_minimum",
    "1 while BE pods run and suppression leaves them no more CPU than they keep in any case.",
)
_ABOVE_MARK: Final = _USAGE.gauge(
    "colocation_above_mark_bytes",
    "Memory above their marks of BE containers from which the agent reclaimed in the last second.",
)

_EVICTION_CANDIDATES: Final = _USAGE.gauge(
    "eviction_candidates",
    "Pods that a feature of evictions may take; only while it wants some to leave.",
    "feature",
)
_EVICTED: Final = _USAGE.counter("evicted_pods", "Pods that the agent has evicted.", "feature")
_EVICTIONS_REFUSED: Final = _USAGE.counter(
    "refused_evictions", "Evictions that a disruption budget has refused.", "feature"
)

DECLARED: Final = _USAGE.all
"""These metrics."""

_Two = tuple[float | None, float | None]
"""CPUs and bytes of memory in use; None for a value that is not known."""


class PodUse(NamedTuple):
    """The newest sample of a pod."""

    labels: tuple[str, str]
    """Namespace and name."""
    qos: str
    cpus: float | None
    memory_bytes: float | None


class UsageValues(NamedTuple):
    """The newest samples of the machine, of NUMA nodes by id, of pods by uid, and of containers by
    uid and name; and the newest counters."""

    machine: _Two
    numa: Mapping[int, _Two]
    pods: Mapping[str, PodUse]
    containers: Mapping[tuple[str, str], Last]
    counted: Counted
    busy_cpus: Mapping[int, float] = {}
    """By CPU, the part of the last second in which it was busy."""

    def metrics(self) -> Iterable[Metric]:
        yield from _fields((_NODE_CPUS, _NODE_MEMORY), [((), self.machine)])
        numa = (((str(node),), used) for node, used in self.numa.items())
        yield from _fields((_NUMA_CPUS, _NUMA_MEMORY), numa)
        pods = ((pod.labels, (pod.cpus, pod.memory_bytes)) for pod in self.pods.values())
        yield from _fields((_POD_CPUS, _POD_MEMORY), pods)
        containers = {
            (*self.pods[uid].labels, name): last
            for (uid, name), last in self.containers.items()
            if uid in self.pods
        }
        yield from _of_structs(_CONTAINER_USE, containers.items())
        yield from self._qos_classes()
        yield from self._waits()
        yield from _of_structs(_UNIT_USE, self.counted.units.items())
        yield from _of_structs(_CLASS_USE, self.counted.kube_classes.items())
        yield from self._traffic()
        seconds = self.counted.kernel_threads_cpu_seconds
        yield Metric(_KERNEL_THREADS, {} if seconds is None else {(): seconds})
        yield from _of_structs(_MONITORED, self.counted.monitored.items())

    def _qos_classes(self) -> Iterable[Metric]:
        sums: tuple[dict[Labels, float], dict[Labels, float]] = {}, {}
        for pod in self.pods.values():
            for of_class, value in zip(sums, (pod.cpus, pod.memory_bytes), strict=True):
                if value is not None:
                    of_class[pod.qos,] = of_class.get((pod.qos,), 0.0) + value
        return Metric(_QOS_CPUS, sums[0]), Metric(_QOS_MEMORY, sums[1])

    def _waits(self) -> Iterable[Metric]:
        counted, waits = self.counted, self.counted.waits
        faults = counted.major_faults
        yield Metric(_NODE_FAULTS, {} if faults is None else {(): faults})
        yield Metric(
            _POD_FAULTS,
            {
                pod.labels: number
                for uid, pod in self.pods.items()
                if (number := counted.pod_major_faults.get(uid)) is not None
            },
        )
        yield Metric(_NODE_STALLED, waits.machine)
        of_pods: dict[Labels, float] = {
            (*pod.labels, *key): seconds
            for uid, pod in self.pods.items()
            for key, seconds in waits.pods.get(uid, {}).items()
        }
        yield Metric(_POD_STALLED, of_pods)
        quotas = {
            (*self.pods[uid].labels, name): counters
            for (uid, name), counters in waits.quotas.items()
            if uid in self.pods
        }
        yield from _of_structs((_QUOTA_PERIODS, _THROTTLED_PERIODS, _THROTTLED), quotas.items())

    def _traffic(self) -> Iterable[Metric]:
        traffic, pods = self.counted.traffic, self.pods
        yield from _of_structs(_DISKS, traffic.disks.items())
        of_disks = {
            (*pods[uid].labels, disk): moved
            for (uid, disk), moved in traffic.pod_disks.items()
            if uid in pods
        }
        yield from _of_structs(_POD_DISKS, of_disks.items())
        yield from _of_structs(_UNIT_DISKS, traffic.unit_disks.items())
        yield from _of_structs(_NETWORKS, traffic.networks.items())
        of_networks = {
            pods[uid].labels: moved for uid, moved in traffic.pod_networks.items() if uid in pods
        }
        yield from _of_structs(_POD_NETWORKS, of_networks.items())


def _of_structs(
    series: tuple[Series, ...], values: Iterable[tuple[str | Labels, Struct]]
) -> Iterable[Metric]:
    """Makes one metric of each field of the structs. A text is the value of a single label."""
    return _fields(
        series,
        ((key if isinstance(key, tuple) else (key,), astuple(fields)) for key, fields in values),
    )


def _fields(
    series: tuple[Series, ...], values: Iterable[tuple[Labels, Sequence[float | None]]]
) -> Iterable[Metric]:
    """Makes one metric of each field of the values, without those that are not known."""
    by_labels = dict(values)
    for place, of_field in enumerate(series):
        numbers = ((labels, fields[place]) for labels, fields in by_labels.items())
        yield Metric(of_field, {labels: number for labels, number in numbers if number is not None})


_MOST_TAKERS: Final = 3


def follow_usage(metrics: AgentMetrics, values: Callable[[], UsageValues]) -> None:
    """Exports with each scrape the newest samples and counters. To be called once."""

    def read() -> Iterable[Metric]:
        usage = values()
        yield from usage.metrics()
        yield from _busy_metrics(*metrics.pools_and_owners, usage.busy_cpus)

    metrics.add(read)


def follow_waits(
    metrics: AgentMetrics,
    waits: Callable[[], Iterable[CpuWait]],
    delays: Callable[[], Mapping[str, float]],
) -> None:
    """Exports with each scrape the waits that are too long. To be called once.

    `delays`: returns by title how long the threads of pods waited."""

    def read() -> Iterable[Metric]:
        causes: dict[Labels, float] = {}
        takers: dict[Labels, float] = {}
        for wait in waits():
            pod = pod_labels(wait.pod.name)
            causes[*pod, "throttled"], causes[*pod, "own"] = wait.throttled, wait.own
            causes[*pod, "taken"] = sum(seconds for _, seconds in wait.takers)
            for taker, seconds in wait.takers[:_MOST_TAKERS]:
                takers[*pod, taker.kind.value, taker.name] = seconds
        of_pods: dict[Labels, float] = {
            pod_labels(title): delay for title, delay in delays().items()
        }
        return Metric(_DELAY, of_pods), Metric(_WAIT, causes), Metric(_TAKEN, takers)

    metrics.add(read)


def follow_offers(metrics: AgentMetrics, offers: Callable[[], Mapping[str, int]]) -> None:
    """Exports with each scrape the batch and mid resources that the agent offers: milli-CPU or
    bytes by name. To be called once."""

    def read() -> Iterable[Metric]:
        amounts: dict[str, dict[Labels, float]] = {"cpu": {}, "memory": {}}
        for name, amount in offers().items():
            kind, _, resource = name.rpartition("/")[2].rpartition("-")
            amounts[resource][(kind,)] = amount / 1000 if resource == "cpu" else amount
        return Metric(_OFFERED_CPUS, amounts["cpu"]), Metric(_OFFERED_MEMORY, amounts["memory"])

    metrics.add(read)


class ColocationMeasures(NamedTuple):
    """What the last second of colocation has brought."""

    files: Mapping[str, int]
    """The number of files by feature."""
    unsupported: Collection[str]
    """The features that can't have what a strategy wants."""
    failed: int
    """The number of files that could not be written."""
    left_cpus: float | None
    """What all others leave to BE pods; None if it is not measured."""
    at_minimum: bool
    """Whether BE pods run on the least that suppression leaves them."""


def follow_colocation(
    metrics: AgentMetrics,
    read: Callable[[], ColocationMeasures],
    above_mark_bytes: Callable[[], int],
) -> None:
    """Exports these values with each scrape. To be called once.

    `above_mark_bytes`: returns the memory above their marks of BE containers."""

    def values() -> Iterable[Metric]:
        measures = read()
        left = measures.left_cpus
        return (
            Metric(_COLOCATION_FILES, {(name,): number for name, number in measures.files.items()}),
            Metric(_COLOCATION_UNSUPPORTED, {(name,): 1 for name in measures.unsupported}),
            single(_COLOCATION_FAILED, measures.failed),
            Metric(_BE_LEFT, {} if left is None else {(): left}),
            single(_BE_AT_MINIMUM, 1 if measures.at_minimum else 0),
            single(_ABOVE_MARK, above_mark_bytes()),
        )

    metrics.add(values)


def follow_evictions(
    metrics: AgentMetrics,
    read: Callable[[], tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]],
) -> None:
    """Exports with each scrape, by feature, the number of pods that may be evicted now, of those
    that have been, and of refusals. To be called once."""

    def values() -> Iterable[Metric]:
        series = (_EVICTION_CANDIDATES, _EVICTED, _EVICTIONS_REFUSED)
        for of_series, numbers in zip(series, read(), strict=True):
            yield Metric(of_series, {(name,): number for name, number in numbers.items()})

    metrics.add(values)


def _busy_metrics(
    pools: Pools, owners: tuple[Owner, ...], busy: Mapping[int, float]
) -> Iterable[Metric]:
    """`busy`: by CPU, the part of the time in which it was busy."""
    owned = (((*pod_labels(owner.title), owner.qos.value), owner.cpus) for owner in owners)
    for series, of_series in (
        (_POOL_BUSY, ((labels, pool.cpus) for labels, pool in shared_pools(pools))),
        (_EXCLUSIVE_BUSY, owned),
    ):
        used: dict[Labels, float] = {}
        for labels, cpus in of_series:
            if not busy.keys().isdisjoint(cpus):
                used[labels] = used.get(labels, 0.0) + sum(busy.get(cpu, 0.0) for cpu in cpus)
        yield Metric(series, used)
