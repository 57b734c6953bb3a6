"""Every metric of the agent, declared in one place (base units). Metrics of devices exist as long
as the devices do."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import GPU_MEMORY, Device, DeviceType
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse
from agent.model.pod.qos import POOLS, Pool, Pools
from agent.model.snapshot import Owner
from agent.telemetry.exposition import (
    BUILD_INFO,
    Declarations,
    Histogram,
    Histograms,
    Labels,
    Metric,
    Numbers,
    build_labels,
    process_metrics,
    render,
    single,
)

_AGENT: Final = Declarations("topolet")
_PASSES: Final = _AGENT.counter(
    "reconciliations",
    "Passes, by result: succeeded, failed.",
    "result",
)
_PASS_SECONDS: Final = _AGENT.histogram(
    "reconciliation_duration_seconds", "Time of a successful pass."
)
_TRIGGERS: Final = _AGENT.counter(
    "reconciliation_triggers",
    "Triggers of passes: notification, cgroup, runtime, kubelet, cluster, uevent, timer.",
    "trigger",
)
_PAUSE_SECONDS: Final = _AGENT.gauge(
    "reconciliation_interval_seconds", "Time from the last pass to the next one without an event."
)
_READY: Final = _AGENT.gauge("ready", "1 while /readyz answers 200, else 0.")
_SNAPSHOT_GENERATION: Final = _AGENT.gauge("snapshot_generation", "Number of the last snapshot.")
_SNAPSHOT_AGE: Final = _AGENT.gauge(
    "snapshot_age_seconds", "Time since a successful pass wrote or confirmed the snapshot."
)
_NOTIFICATIONS: Final = _AGENT.counter(
    "notifications", "Notifications that the frontends sent, by type.", "type"
)
_OVERLAPS: Final = _AGENT.counter(
    "cpu_overlaps", "Times a container was found on CPUs of another pod whose containers run."
)
_OVERLAPPING: Final = _AGENT.gauge(
    "overlapping_containers",
    "Containers on CPUs of another pod whose containers run, by the last pass.",
)
_REFUSALS: Final = _AGENT.counter(
    "claim_refusals", "CPU claims that were refused, each counted once."
)
_SHORT_OF_CPUS: Final = _AGENT.gauge(
    "containers_short_of_cpus",
    "Containers that have fewer CPUs of their own than the annotation of their pod, or the "
    "kubelet's checkpoint, names.",
)
_DIFFERING_CPUS: Final = _AGENT.gauge(
    "containers_with_other_cpus",
    "Running containers whose CPUs in the kernel's files, after the last pass, are not those that "
    "a source names: annotation (of the pod), checkpoint (of a static kubelet), decision (of the "
    "agent).",
    "source",
)
_WITHOUT_CPUS: Final = _AGENT.gauge(
    "pods_without_allocated_cpus",
    "LSE and LSR pods to which no scheduler allocated CPUs: they share a pool.",
)
_FAR: Final = _AGENT.gauge(
    "containers_far_from_devices",
    "Containers that run on more NUMA nodes than those near to their devices, by reason: no_cpus "
    "(their pool has no CPU there), requests (containers with devices there request more CPUs than "
    "the pool has).",
    "reason",
)
_EVENTS: Final = _AGENT.counter(
    "events",
    "Events about pods and the Node, by result: written, failed, dropped (too many waited).",
    "result",
)
_CGROUP_WRITES: Final = _AGENT.counter(
    "cgroup_writes", "Values written to cgroups, by result: written, failed.", "result"
)
_REFUSED_LIMITS: Final = _AGENT.gauge(
    "refused_limits",
    "Limits of extended-resource-spec that the cgroup of a container does not take, or of a pod if "
    "the container is empty: it uses more memory, or the group above allows less.",
    "namespace",
    "pod",
    "container",
    "file",
)
_FOREIGN_CHANGES: Final = _AGENT.counter(
    "foreign_changes",
    "Changes by other programs of what the agent had set, which it undid, by kind: cpus, "
    "memory-nodes and limit of a cgroup; NodeResourceTopology, Device and Node.",
    "kind",
)
_WITHOUT_GROUP: Final = _AGENT.gauge(
    "containers_without_cgroup", "Running containers whose cgroup can't be found."
)
_REPORTS: Final = _AGENT.counter(
    "reports",
    "Reports to the cluster, by result: written, unchanged (equal to the stored one), failed.",
    "result",
)
_CLUSTER_PROBLEMS: Final = _AGENT.gauge(
    "cluster_problems", "Pods, Nodes and reports that can't be read or written."
)
_SOURCE_PROBLEMS: Final = _AGENT.gauge(
    "source_problems", "Problems of an optional source; the log has the reasons.", "source"
)
_WATCH_AGE: Final = _AGENT.gauge(
    "watch_age_seconds",
    "Time since a watch had an event, a bookmark or an answer of the API server, by resource.",
    "resource",
)
_POOL_CPUS: Final = _AGENT.gauge("pool_cpus", "CPUs in a shared pool.", "pool", "numa_node")
_EXCLUSIVE_CPUS: Final = _AGENT.gauge(
    "exclusive_cpus", "CPUs that a pod owns.", "namespace", "pod", "qos_class"
)
_OFFLINE_CPUS: Final = _AGENT.gauge(
    "exclusive_cpus_offline", "CPUs that a pod owns and that are offline.", "namespace", "pod"
)
_REFUSED_CLAIMS: Final = _AGENT.gauge(
    "refused_claims",
    "Pods whose CPU claim, or another annotation, is refused, by reason.",
    "namespace",
    "pod",
    "annotation",
    "reason",
)
_DEVICE_HEALTHY: Final = _AGENT.gauge(
    "device_healthy", "1 for a healthy device, else 0.", "type", "id", "minor"
)
_GPU_MISSING: Final = _AGENT.gauge(
    "gpu_missing", "1 for each GPU on the PCI bus that the driver does not list.", "pci_bus_id"
)
_GPU_DRIVER_FAULT: Final = _AGENT.gauge(
    "gpu_driver_fault", "1 while the GPU driver can't be read, by reason.", "reason"
)
_GPU_LABELS: Final = ("uuid", "minor")
_GPU_MEMORY: Final = _AGENT.gauge("gpu_memory_bytes", "Memory of a GPU.", *_GPU_LABELS)
_READINGS: Final = (
    (
        _AGENT.gauge("gpu_memory_used_bytes", "Memory of a GPU in use.", *_GPU_LABELS),
        "memory_used_bytes",
        1.0,
    ),
    (
        _AGENT.gauge(
            "gpu_utilization_ratio", "Part of the time with a kernel running.", *_GPU_LABELS
        ),
        "gpu_percent",
        0.01,
    ),
    (
        _AGENT.gauge("gpu_temperature_celsius", "Temperature of a GPU.", *_GPU_LABELS),
        "temperature_celsius",
        1.0,
    ),
    (_AGENT.gauge("gpu_power_watts", "Power of a GPU.", *_GPU_LABELS), "power_milliwatts", 0.001),
    (
        _AGENT.gauge("gpu_sm_clock_hertz", "Clock of a GPU's multiprocessors.", *_GPU_LABELS),
        "sm_mhz",
        1e6,
    ),
    (
        _AGENT.counter(
            "gpu_ecc_errors", "Uncorrected ECC errors since the driver's start.", *_GPU_LABELS
        ),
        "ecc_uncorrected",
        1.0,
    ),
)
"""Series, field of a reading, and the factor that converts it to base units."""
_CONTAINER_LABELS: Final = ("namespace", "pod", "container", "uuid")
_CONTAINER_GPU_MEMORY: Final = _AGENT.gauge(
    "container_gpu_memory_used_bytes",
    "Memory of a GPU in use by a container; empty names: by no known container.",
    *_CONTAINER_LABELS,
)
_CONTAINER_GPU_BUSY: Final = _AGENT.gauge(
    "container_gpu_utilization_ratio",
    "Part of the last second in which a container used the GPU.",
    *_CONTAINER_LABELS,
)

DECLARED: Final = (*_AGENT.all, BUILD_INFO)
"""All metrics of the agent."""


class ForeignChange(enum.StrEnum):
    """What another program changed."""

    CPUS = "cpus"
    MEMORY_NODES = "memory-nodes"
    LIMIT = "limit"
    TOPOLOGY = "NodeResourceTopology"
    DEVICE = "Device"
    NODE = "Node"
    RESOURCE_SLICE = "ResourceSlice"


def pod_labels(title: str) -> tuple[str, str]:
    """Namespace and name, as kube-state-metrics has them."""
    namespace, _, name = title.partition("/")
    return namespace, name


class DeviceMetrics:
    """The last known devices and readings."""

    def __init__(self) -> None:
        self._devices: tuple[Device, ...] = ()
        self._readings: tuple[GpuReading, ...] = ()
        self._users: tuple[GpuUse, ...] = ()
        self._missing: tuple[str, ...] = ()
        self._fault = ""

    def update(
        self,
        devices: tuple[Device, ...],
        readings: tuple[GpuReading, ...],
        users: tuple[GpuUse, ...],
        missing: tuple[str, ...] = (),
        fault: str = "",
    ) -> None:
        """Replaces all earlier readings.

        `missing`: PCI addresses of GPUs that their driver does not list.
        `fault`: why the driver does not answer."""
        self._devices, self._readings, self._users = devices, readings, users
        self._missing, self._fault = missing, fault

    def in_use(self) -> tuple[tuple[GpuUse, ...], dict[str, int]]:
        """Who uses which GPU, and the part of the time in percent in which each GPU is busy."""
        busy = {
            reading.uuid: reading.gpu_percent
            for reading in self._readings
            if reading.gpu_percent is not None
        }
        return self._users, busy

    def values(self) -> list[Metric]:
        health: dict[Labels, float] = {
            (device.type, device.uuid, str(device.minor)): int(device.healthy)
            for device in self._devices
        }
        metrics = [Metric(_DEVICE_HEALTHY, health)]
        if self._missing:
            metrics.append(Metric(_GPU_MISSING, {(bus,): 1 for bus in self._missing}))
        if self._fault:
            metrics.append(Metric(_GPU_DRIVER_FAULT, {(self._fault,): 1}))
        if any(device.type == DeviceType.GPU for device in self._devices):
            metrics += [*self._cards(), *self._used()]
        return metrics

    def _cards(self) -> Iterable[Metric]:
        gpus = [device for device in self._devices if device.type == DeviceType.GPU]
        minors = {gpu.uuid: str(gpu.minor) for gpu in gpus}
        yield Metric(
            _GPU_MEMORY,
            {
                (gpu.uuid, str(gpu.minor)): memory
                for gpu in gpus
                if (memory := gpu.resources.get(GPU_MEMORY)) is not None
            },
        )
        for series, field, scale in _READINGS:
            values: dict[Labels, float] = {}
            for reading in self._readings:
                value = getattr(reading, field)
                if value is not None and reading.uuid in minors:
                    values[reading.uuid, minors[reading.uuid]] = value * scale
            yield Metric(series, values)

    def _used(self) -> tuple[Metric, Metric]:
        memory: dict[Labels, float] = {}
        busy: dict[Labels, float] = {}
        for use in self._users:
            labels = (*pod_labels(use.pod), use.container, use.uuid)
            if use.memory_bytes is not None:
                memory[labels] = use.memory_bytes
            if use.sm_percent is not None:
                busy[labels] = use.sm_percent / 100
        return Metric(_CONTAINER_GPU_MEMORY, memory), Metric(_CONTAINER_GPU_BUSY, busy)


_SET: Final = (
    _PASSES, _TRIGGERS, _PAUSE_SECONDS, _NOTIFICATIONS, _OVERLAPS, _OVERLAPPING, _REFUSALS,
    _SHORT_OF_CPUS, _DIFFERING_CPUS, _WITHOUT_CPUS, _FAR, _EVENTS, _CGROUP_WRITES, _FOREIGN_CHANGES,
    _WITHOUT_GROUP, _SNAPSHOT_GENERATION, _REPORTS, _SOURCE_PROBLEMS, _REFUSED_LIMITS,
)  # fmt: skip
"""The metrics that parts of the agent count or set; the others are read for each scrape."""


class AgentMetrics:
    """The metrics of the agent. `render` returns them in the text format."""

    def __init__(self) -> None:
        self._numbers = {series: Numbers(series) for series in _SET}
        self.passes = self._numbers[_PASSES]
        self.pass_seconds = Histogram(
            (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
        )
        self.triggers = self._numbers[_TRIGGERS]
        self.pause_seconds = self._numbers[_PAUSE_SECONDS]
        self.notifications = self._numbers[_NOTIFICATIONS]
        self.overlaps = self._numbers[_OVERLAPS]
        self.overlapping = self._numbers[_OVERLAPPING]
        self.refusals = self._numbers[_REFUSALS]
        self.short_of_cpus = self._numbers[_SHORT_OF_CPUS]
        self.differing_cpus = self._numbers[_DIFFERING_CPUS]
        self.without_cpus = self._numbers[_WITHOUT_CPUS]
        self.far_from_devices = self._numbers[_FAR]
        self.events = self._numbers[_EVENTS]
        self.cgroup_writes = self._numbers[_CGROUP_WRITES]
        self.containers_without_group = self._numbers[_WITHOUT_GROUP]
        self.snapshot_generation = self._numbers[_SNAPSHOT_GENERATION]
        self.reports = self._numbers[_REPORTS]
        self.source_problems = self._numbers[_SOURCE_PROBLEMS]
        for kind in ForeignChange:
            self._numbers[_FOREIGN_CHANGES].set(0, kind.value)
        self.devices = DeviceMetrics()
        self._decision: _Decision = ({}, (), ())
        self._read: list[Callable[[], Iterable[Metric | Histograms]]] = []

    def foreign_changes(self, kind: ForeignChange) -> None:
        """Counts one. Every kind has a series from the start: the first change is an increase."""
        self._numbers[_FOREIGN_CHANGES].inc(kind.value)

    def refused_limits(self, numbers: Mapping[tuple[str, str, str], int]) -> None:
        """Exports these refused limits until the next call.

        `numbers`: by the title of the pod, the container and the file."""
        self._numbers[_REFUSED_LIMITS].replace(
            {
                (*pod_labels(title), container, file): number
                for (title, container, file), number in numbers.items()
            }
        )

    def follow_passes(
        self, ready: Callable[[], bool], age_seconds: Callable[[], float | None]
    ) -> None:
        """Exports with each scrape whether the agent is ready, and the time since the last
        successful pass. To be called once."""

        def read() -> Iterable[Metric]:
            age = age_seconds()
            return (
                single(_READY, int(ready())),
                Metric(_SNAPSHOT_AGE, {} if age is None else {(): age}),
            )

        self._read.append(read)

    def decided(
        self,
        pools: Pools,
        owners: tuple[Owner, ...],
        refusals: tuple[tuple[str, str, str], ...],
    ) -> None:
        """Exports a decision until the next one, without dedicated pools.

        `refusals`: pod, annotation and cause of each refused claim. There are only a few causes:
            the text of an annotation can't be a label, as each text would make a new series."""
        self._decision = pools, owners, refusals

    @property
    def pools_and_owners(self) -> tuple[Pools, tuple[Owner, ...]]:
        """Those of the last decision."""
        return self._decision[:2]

    def add(self, read: Callable[[], Iterable[Metric | Histograms]]) -> None:
        """Exports with each scrape these metrics too."""
        self._read.append(read)

    def follow(
        self, ages_seconds: Callable[[], Mapping[str, float]], problems: Callable[[], int]
    ) -> None:
        """Exports with each scrape, by resource, the time since its watch last received something
        from the API server, and the number of problems of the cluster. To be called once."""
        self._read.append(
            lambda: (
                Metric(_WATCH_AGE, {(name,): age for name, age in ages_seconds().items()}),
                single(_CLUSTER_PROBLEMS, problems()),
            )
        )

    def render(self) -> str:
        return render(
            [
                *process_metrics(),
                Metric(BUILD_INFO, {build_labels("agent"): 1}),
                Histograms(_PASS_SECONDS, {(): self.pass_seconds}),
                *(numbers.metric for numbers in self._numbers.values()),
                *(metric for read in self._read for metric in read()),
                *_decision_metrics(*self._decision),
                *self.devices.values(),
            ]
        )


_Decision = tuple[Pools, tuple[Owner, ...], tuple[tuple[str, str, str], ...]]


def _decision_metrics(
    pools: Pools,
    owners: tuple[Owner, ...],
    refusals: tuple[tuple[str, str, str], ...],
) -> list[Metric]:
    """A series exists as long as its pool, pod or claim. Two pods may have one name while one of
    them terminates, and a series must not occur twice, so their numbers are added."""
    pool_cpus, owned, offline, refused = (Counter[Labels]() for _ in range(4))
    for labels, pool in shared_pools(pools):
        pool_cpus[labels] += len(pool.cpus)
    for owner in owners:
        owned[*pod_labels(owner.title), owner.qos.value] += len(owner.cpus)
        if owner.offline:
            offline[pod_labels(owner.title)] += len(CpuSet.parse(owner.offline))
    for title, annotation, cause in refusals:
        refused[*pod_labels(title), annotation, cause] += 1
    return [
        Metric(_POOL_CPUS, pool_cpus),
        Metric(_EXCLUSIVE_CPUS, owned),
        Metric(_OFFLINE_CPUS, offline),
        Metric(_REFUSED_CLAIMS, refused),
    ]


def shared_pools(pools: Pools) -> Iterable[tuple[Labels, Pool]]:
    """All pools but dedicated ones, with the labels `pool` and `numa_node`."""
    return (
        ((name, str(pool.node)), pool)
        for name, of_name in pools.items()
        if not POOLS[name].dedicated
        for pool in of_name
    )
