"""Every metric of the agent, declared in one place (base units). Metrics of devices exist as long
as the devices do."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.gpu_users import GpuUse
from agent.model.devices.gpus import GpuReading
from agent.model.nrt.node_status import GPU_MEMORY
from agent.model.snapshot import Owner, Pool


class DeviceMetrics(Collector):
    """The last readings."""

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

    def collect(self) -> Iterable[GaugeMetricFamily]:
        healthy = GaugeMetricFamily(
            "topolet_device_healthy", "1: healthy, 0: not.", labels=["type", "id", "minor"]
        )
        for device in self._devices:
            labels = [device.type, device.uuid, str(device.minor)]
            healthy.add_metric(labels, int(device.healthy))
        families = [healthy, *self._faults()]
        if any(each.type == DeviceType.GPU for each in self._devices):
            families += [*self._cards(), *self._used()]
        return families

    def _faults(self) -> Iterable[GaugeMetricFamily]:
        if self._missing:
            missing = GaugeMetricFamily(
                "topolet_gpu_missing",
                "1 for each GPU on the PCI bus that the driver has never listed.",
                labels=["bus"],
            )
            for bus in self._missing:
                missing.add_metric([bus], 1)
            yield missing
        if self._fault:
            fault = GaugeMetricFamily(
                "topolet_gpu_driver_fault",
                "1 while the GPU driver can't be read, by reason.",
                labels=["reason"],
            )
            fault.add_metric([self._fault], 1)
            yield fault

    def _cards(self) -> Iterable[GaugeMetricFamily]:
        total = GaugeMetricFamily(
            "topolet_gpu_memory_bytes", "Memory of a GPU.", labels=["uuid", "minor"]
        )
        minors = {}
        for device in self._devices:
            if device.type == DeviceType.GPU:
                minors[device.uuid] = str(device.minor)
                if (memory := device.resources.get(GPU_MEMORY)) is not None:
                    total.add_metric([device.uuid, str(device.minor)], memory)
        yield total
        for name, text, field, scale in _READINGS:
            family = GaugeMetricFamily(name, text, labels=["uuid", "minor"])
            for reading in self._readings:
                value = getattr(reading, field)
                if value is not None and reading.uuid in minors:
                    family.add_metric([reading.uuid, minors[reading.uuid]], value * scale)
            yield family

    def _used(self) -> Iterable[GaugeMetricFamily]:
        labels = ["uuid", "pod", "container"]
        memory = GaugeMetricFamily(
            "topolet_gpu_container_memory_bytes",
            "Memory of a GPU in use by a container; empty names: by no known container.",
            labels=labels,
        )
        busy = GaugeMetricFamily(
            "topolet_gpu_container_busy_ratio",
            "Part of the last second in which a container used the GPU.",
            labels=labels,
        )
        for each in self._users:
            names = [each.uuid, each.pod, each.container]
            if each.memory_bytes is not None:
                memory.add_metric(names, each.memory_bytes)
            if each.sm_percent is not None:
                busy.add_metric(names, each.sm_percent / 100)
        return memory, busy


_READINGS = (
    ("topolet_gpu_memory_used_bytes", "Memory in use.", "memory_used_bytes", 1.0),
    ("topolet_gpu_busy_ratio", "Part of the time with a kernel running.", "gpu_percent", 0.01),
    ("topolet_gpu_temperature_celsius", "Temperature of the GPU.", "temperature_celsius", 1.0),
    ("topolet_gpu_power_watts", "Power that it draws.", "power_milliwatts", 0.001),
    ("topolet_gpu_clock_hertz", "Clock of its processors.", "sm_mhz", 1e6),
    ("topolet_gpu_ecc_errors", "Uncorrected since the driver's start.", "ecc_uncorrected", 1.0),
)
"""Name, help, field of a reading, and the factor that converts it to base units."""


class AgentMetrics:
    """`render` gives the text format."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.passes = Counter(
            "topolet_looks",
            "Reconciliation passes, by result.",
            ["result"],
            registry=registry,
        )
        self.pass_seconds = Histogram(
            "topolet_look_seconds",
            "Time of a pass.",
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
        )
        self.triggers = Counter(
            "topolet_wakes",
            "Triggers of passes: ring, tree, runtime, kubelet, cluster, hotplug, clock.",
            ["source"],
            registry=registry,
        )
        self.pause_seconds = Gauge(
            "topolet_pause_seconds",
            "Time from the last pass to the next one if no event occurs.",
            registry=registry,
        )
        self.notifications = Counter(
            "topolet_doorbell_rings", "Datagrams of the proxy.", ["kind"], registry=registry
        )
        self.overlaps = Counter(
            "topolet_cpu_overlaps",
            "Times a container was found on CPUs of another pod whose containers run.",
            registry=registry,
        )
        self.refusals = Counter(
            "topolet_claim_refusals",
            "Claims that were refused, each counted once.",
            registry=registry,
        )
        self.short_of_cpus = Gauge(
            "topolet_containers_short_of_cpus",
            "Containers that have fewer CPUs of their own than the annotation of their pod, or the "
            "kubelet's checkpoint, names.",
            registry=registry,
        )
        self.differing_cpus = Gauge(
            "topolet_containers_with_other_cpus",
            "Running containers whose CPUs in the kernel's files, after the last pass, are not "
            "those that a source names: annotation (of the pod), checkpoint (of a static kubelet), "
            "decision (of the agent).",
            ["source"],
            registry=registry,
        )
        self.without_cpus = Gauge(
            "topolet_pods_without_allocated_cpus",
            "LSE and LSR pods to which no scheduler allocated CPUs: they share a pool.",
            registry=registry,
        )
        self.events = Counter(
            "topolet_events",
            "Events about pods, by result: written, failed, dropped (too many waited).",
            ["result"],
            registry=registry,
        )
        self.cgroup_writes = Counter(
            "topolet_cgroup_writes", "Cpusets written, by result.", ["result"], registry=registry
        )
        self.refused_limits = Gauge(
            "topolet_refused_limits",
            "Limits of extended-resource-spec that the cgroup of a container does not take, or of "
            "a pod if the container is empty: it uses more memory, or the group above allows less.",
            ["pod", "container", "file"],
            registry=registry,
        )
        self.containers_without_group = Gauge(
            "topolet_unplaced_containers",
            "Running containers whose cgroup can't be found.",
            registry=registry,
        )
        self.snapshot_generation = Gauge(
            "topolet_snapshot_generation", "Number of the last snapshot.", registry=registry
        )
        self.reports = Counter(
            "topolet_reports",
            "Reports to the cluster, by result: written, unchanged (equal to the stored one), "
            "failed.",
            ["result"],
            registry=registry,
        )
        self.cluster_problems = Gauge(
            "topolet_cluster_troubles",
            "Pods, Nodes and reports that can't be read or written now.",
            registry=registry,
        )
        self.source_problems = Gauge(
            "topolet_source_troubles",
            "Failures of an optional source; the log has the reasons.",
            ["source"],
            registry=registry,
        )
        self._decision = _DecisionMetrics()
        registry.register(self._decision)
        self.devices = DeviceMetrics()
        registry.register(self.devices)

    def decided(
        self,
        pools: Mapping[str, tuple[Pool, ...]],
        owners: tuple[Owner, ...],
        refusals: tuple[tuple[str, str, str], ...],
    ) -> None:
        """Exports a decision until the next. `pools` by their name; `refusals`: pod, annotation and
        cause of each refused claim, of a few causes: a label must not have the text of an
        annotation, which would make a new series with each value."""
        self._decision.decision = pools, owners, refusals

    def follow(self, ages_seconds: Callable[[], Mapping[str, float]]) -> None:
        """Exports on every page, by resource, the time since its watch last received something from
        the API server. To be called once."""
        self._registry.register(_Watches(ages_seconds))

    def render(self) -> str:
        return generate_latest(self._registry).decode()


class _Watches(Collector):
    def __init__(self, ages_seconds: Callable[[], Mapping[str, float]]) -> None:
        self._ages_seconds = ages_seconds

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "topolet_watch_age_seconds",
            "Time since a watch had an event, a bookmark or an answer of the API server, "
            "by resource.",
            labels=["resource"],
        )
        for resource, seconds in self._ages_seconds().items():
            family.add_metric([resource], seconds)
        return [family]


_Decision = tuple[
    Mapping[str, tuple[Pool, ...]], tuple[Owner, ...], tuple[tuple[str, str, str], ...]
]


class _DecisionMetrics(Collector):
    """Series that exist as long as their subject."""

    def __init__(self) -> None:
        self.decision: _Decision = ({}, (), ())

    def collect(self) -> Iterable[GaugeMetricFamily]:
        pools = GaugeMetricFamily(
            "topolet_pool_cpus", "CPUs in a shared pool.", labels=["pool", "node"]
        )
        owned = GaugeMetricFamily(
            "topolet_exclusive_cpus", "CPUs that a pod owns.", labels=["pod", "qos"]
        )
        vanished = GaugeMetricFamily(
            "topolet_owned_cpus_offline",
            "CPUs that a pod owns and that are offline now.",
            labels=["pod"],
        )
        refused = GaugeMetricFamily(
            "topolet_refused_claims",
            "Pods whose claim is refused now, by reason.",
            labels=["pod", "annotation", "reason"],
        )
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
        for labels, number in numbers.items():
            owned.add_metric(labels, number)
        for title, number in offline.items():
            if number:
                vanished.add_metric([title], number)
        for why, number in Counted(refusals).items():
            refused.add_metric(why, number)
        return [pools, owned, vanished, refused]
