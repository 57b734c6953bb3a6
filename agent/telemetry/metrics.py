"""Every metric of the agent, declared in one place (base units). Metrics of devices exist as long
as the devices do."""

from __future__ import annotations

import enum
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.gpu_users import GpuUse
from agent.model.devices.gpus import GpuReading
from agent.model.nrt.node_status import GPU_MEMORY
from agent.model.snapshot import Owner, Pool
from agent.telemetry.series import BUILD_INFO, Declarations, Series, build_labels

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


def _counter(series: Series, registry: CollectorRegistry) -> Counter:
    return Counter(series.name, series.text, series.labels, registry=registry)


def _gauge(series: Series, registry: CollectorRegistry) -> Gauge:
    return Gauge(series.name, series.text, series.labels, registry=registry)


_Family = GaugeMetricFamily | CounterMetricFamily


def _family(series: Series) -> _Family:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    return kind(series.name, series.text, labels=series.labels)


def pod_labels(title: str) -> tuple[str, str]:
    """Namespace and name, as kube-state-metrics has them."""
    namespace, _, name = title.partition("/")
    return namespace, name


class DeviceMetrics(Collector):
    """Exports the last known devices and readings."""

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
        """Replaces all earlier readings. `missing`: PCI addresses of GPUs that their driver does
        not list; `fault`: why the driver does not answer."""
        self._devices, self._readings, self._users = devices, readings, users
        self._missing, self._fault = missing, fault

    def collect(self) -> Iterable[_Family]:
        healthy = _family(_DEVICE_HEALTHY)
        for device in self._devices:
            labels = [device.type, device.uuid, str(device.minor)]
            healthy.add_metric(labels, int(device.healthy))
        families = [healthy, *self._faults()]
        if any(each.type == DeviceType.GPU for each in self._devices):
            families += [*self._cards(), *self._used()]
        return families

    def _faults(self) -> Iterable[_Family]:
        if self._missing:
            missing = _family(_GPU_MISSING)
            for bus in self._missing:
                missing.add_metric([bus], 1)
            yield missing
        if self._fault:
            fault = _family(_GPU_DRIVER_FAULT)
            fault.add_metric([self._fault], 1)
            yield fault

    def _cards(self) -> Iterable[_Family]:
        total = _family(_GPU_MEMORY)
        minors = {}
        for device in self._devices:
            if device.type == DeviceType.GPU:
                minors[device.uuid] = str(device.minor)
                if (memory := device.resources.get(GPU_MEMORY)) is not None:
                    total.add_metric([device.uuid, str(device.minor)], memory)
        yield total
        for series, field, scale in _READINGS:
            family = _family(series)
            for reading in self._readings:
                value = getattr(reading, field)
                if value is not None and reading.uuid in minors:
                    family.add_metric([reading.uuid, minors[reading.uuid]], value * scale)
            yield family

    def _used(self) -> Iterable[_Family]:
        memory, busy = _family(_CONTAINER_GPU_MEMORY), _family(_CONTAINER_GPU_BUSY)
        for each in self._users:
            names = [*pod_labels(each.pod), each.container, each.uuid]
            if each.memory_bytes is not None:
                memory.add_metric(names, each.memory_bytes)
            if each.sm_percent is not None:
                busy.add_metric(names, each.sm_percent / 100)
        return memory, busy


class AgentMetrics:
    """The metrics of the agent. `render` returns them in the text format."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.passes = _counter(_PASSES, registry)
        self.pass_seconds = Histogram(
            _PASS_SECONDS.name,
            _PASS_SECONDS.text,
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
        )
        self.triggers = _counter(_TRIGGERS, registry)
        self.pause_seconds = _gauge(_PAUSE_SECONDS, registry)
        self.notifications = _counter(_NOTIFICATIONS, registry)
        self.overlaps = _counter(_OVERLAPS, registry)
        self.overlapping = _gauge(_OVERLAPPING, registry)
        self.refusals = _counter(_REFUSALS, registry)
        self.short_of_cpus = _gauge(_SHORT_OF_CPUS, registry)
        self.differing_cpus = _gauge(_DIFFERING_CPUS, registry)
        self.without_cpus = _gauge(_WITHOUT_CPUS, registry)
        self.events = _counter(_EVENTS, registry)
        self.cgroup_writes = _counter(_CGROUP_WRITES, registry)
        changes = _counter(_FOREIGN_CHANGES, registry)
        self._foreign_changes = {kind: changes.labels(kind.value) for kind in ForeignChange}
        self.containers_without_group = _gauge(_WITHOUT_GROUP, registry)
        self.snapshot_generation = _gauge(_SNAPSHOT_GENERATION, registry)
        self.reports = _counter(_REPORTS, registry)
        self.cluster_problems = _gauge(_CLUSTER_PROBLEMS, registry)
        self.source_problems = _gauge(_SOURCE_PROBLEMS, registry)
        _gauge(BUILD_INFO, registry).labels(*build_labels("agent")).set(1)
        self._refused_limits = _gauge(_REFUSED_LIMITS, registry)
        self._decision = _DecisionMetrics()
        registry.register(self._decision)
        self.devices = DeviceMetrics()
        registry.register(self.devices)

    def foreign_changes(self, kind: ForeignChange) -> None:
        """Counts one. Every kind has a series from the start: the first change is an increase."""
        self._foreign_changes[kind].inc()

    def refused_limits(self, numbers: Mapping[tuple[str, str, str], int]) -> None:
        """Exports these refused limits until the next call. `numbers`: by the title of the pod, the
        container and the file."""
        self._refused_limits.clear()
        for (title, container, file), number in numbers.items():
            self._refused_limits.labels(*pod_labels(title), container, file).set(number)

    def follow_passes(
        self, ready: Callable[[], bool], age_seconds: Callable[[], float | None]
    ) -> None:
        """Exports with each scrape whether the agent is ready, and the time since the last
        successful pass. To be called once."""
        self._registry.register(_Passes(ready, age_seconds))

    def decided(
        self,
        pools: Mapping[str, tuple[Pool, ...]],
        owners: tuple[Owner, ...],
        refusals: tuple[tuple[str, str, str], ...],
    ) -> None:
        """Exports a decision until the next one. `pools`: by name; `refusals`: pod, annotation and
        cause of each refused claim. There are only a few causes: the text of an annotation can't be
        a label, as each text would make a new series."""
        self._decision.decision = pools, owners, refusals

    def follow(self, ages_seconds: Callable[[], Mapping[str, float]]) -> None:
        """Exports with each scrape, by resource, the time since its watch last received something
        from the API server. To be called once."""
        self._registry.register(_Watches(ages_seconds))

    def render(self) -> str:
        return generate_latest(self._registry).decode()


class _Watches(Collector):
    def __init__(self, ages_seconds: Callable[[], Mapping[str, float]]) -> None:
        self._ages_seconds = ages_seconds

    def collect(self) -> Iterable[_Family]:
        family = _family(_WATCH_AGE)
        for resource, seconds in self._ages_seconds().items():
            family.add_metric([resource], seconds)
        return [family]


class _Passes(Collector):
    def __init__(self, ready: Callable[[], bool], age_seconds: Callable[[], float | None]) -> None:
        self._ready = ready
        self._age_seconds = age_seconds

    def collect(self) -> Iterable[_Family]:
        ready, age = _family(_READY), _family(_SNAPSHOT_AGE)
        ready.add_metric((), int(self._ready()))
        if (seconds := self._age_seconds()) is not None:
            age.add_metric((), seconds)
        return [ready, age]


_Decision = tuple[
    Mapping[str, tuple[Pool, ...]], tuple[Owner, ...], tuple[tuple[str, str, str], ...]
]


class _DecisionMetrics(Collector):
    """Exports the last decision: a series exists as long as its pool, pod or claim."""

    def __init__(self) -> None:
        self.decision: _Decision = ({}, (), ())

    def collect(self) -> Iterable[_Family]:
        pools, owned = _family(_POOL_CPUS), _family(_EXCLUSIVE_CPUS)
        vanished, refused = _family(_OFFLINE_CPUS), _family(_REFUSED_CLAIMS)
        by_pool, owners, refusals = self.decision
        for name, of_kind in by_pool.items():
            for pool in of_kind:
                pools.add_metric([name, str(pool.node)], len(pool.cpus))
        # Two pods may have one name while one of them terminates; a series must not occur twice.
        numbers: Counted[tuple[str, str]] = Counted()
        offline: Counted[str] = Counted()
        for owner in owners:
            numbers[owner.title, owner.qos.value] += len(owner.cpus)
            offline[owner.title] += len(CpuSet.parse(owner.offline))
        for (title, qos_class), number in numbers.items():
            owned.add_metric([*pod_labels(title), qos_class], number)
        for title, number in offline.items():
            if number:
                vanished.add_metric(pod_labels(title), number)
        for (title, annotation, cause), number in Counted(refusals).items():
            refused.add_metric([*pod_labels(title), annotation, cause], number)
        return [pools, owned, vanished, refused]
