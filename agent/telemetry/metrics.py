"""Every metric of the agent, declared in one place (base units)."""

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

from agent.allocate.pools import Decision
from agent.model.cpuset import CpuSet
from agent.telemetry.devicemetrics import DeviceMetrics
from agent.telemetry.watchmetrics import watch_ages


class AgentMetrics:
    """`render` gives the text format."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.looks = Counter(
            "topolet_looks",
            "Rounds of listing the runtime and setting cgroups right, by result.",
            ["result"],
            registry=registry,
        )
        self.look_seconds = Histogram(
            "topolet_look_seconds",
            "Time of one round.",
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
        )
        self.wakes = Counter(
            "topolet_wakes",
            "What rounds began on: ring, tree, runtime, kubelet, cluster, hotplug, clock.",
            ["source"],
            registry=registry,
        )
        self.pause_seconds = Gauge(
            "topolet_pause_seconds",
            "How long after the last round the next is due if nothing happens.",
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
        self.events = Counter(
            "topolet_events",
            "Events about pods, by result: written, failed, dropped (too many waited).",
            ["result"],
            registry=registry,
        )
        self.cgroup_writes = Counter(
            "topolet_cgroup_writes", "Cpusets written, by result.", ["result"], registry=registry
        )
        self.unplaced = Gauge(
            "topolet_unplaced_containers",
            "Running containers whose cgroup can't be found.",
            registry=registry,
        )
        self.snapshot_generation = Gauge(
            "topolet_snapshot_generation", "Number of the last snapshot.", registry=registry
        )
        self.reports = Counter(
            "topolet_reports",
            "Reports to the cluster, by result: written, unchanged (as it was stored already), "
            "failed.",
            ["result"],
            registry=registry,
        )
        self.cluster_troubles = Gauge(
            "topolet_cluster_troubles",
            "What the cluster can't be asked or told at present: pods, Node, reports.",
            registry=registry,
        )
        self.source_troubles = Gauge(
            "topolet_source_troubles",
            "Faults of a source that the agent can do without; the log has the reasons.",
            ["source"],
            registry=registry,
        )
        self._decision: Decision | None = None
        registry.register(_Decided(lambda: self._decision))
        self.devices = DeviceMetrics()
        registry.register(self.devices)

    def decided(self, decision: Decision) -> None:
        """Pools, owners and refusals are reported from this decision until the next."""
        self._decision = decision

    def follow(self, ages_seconds: Callable[[], Mapping[str, float]]) -> None:
        """Shows these ages on every page: by resource, since its watch was in touch with the API
        server last. To be called once."""
        self._registry.register(_Watches(ages_seconds))

    def render(self) -> str:
        return generate_latest(self._registry).decode()


class _Watches(Collector):
    def __init__(self, ages_seconds: Callable[[], Mapping[str, float]]) -> None:
        self._ages_seconds = ages_seconds

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return [watch_ages("topolet_watch_age_seconds", self._ages_seconds())]


class _Decided(Collector):
    """Series that exist as long as what they speak of."""

    def __init__(self, decision: Callable[[], Decision | None]) -> None:
        self._decision = decision

    def collect(self) -> Iterable[GaugeMetricFamily]:
        pools = GaugeMetricFamily(
            "topolet_pool_cpus", "CPUs in a shared pool.", labels=["pool", "node"]
        )
        owned = GaugeMetricFamily(
            "topolet_exclusive_cpus", "CPUs that a pod owns.", labels=["pod", "qos"]
        )
        vanished = GaugeMetricFamily(
            "topolet_owned_cpus_offline",
            "CPUs that a pod owns and that do not run now.",
            labels=["pod"],
        )
        refused = GaugeMetricFamily(
            "topolet_refused_claims",
            "Pods whose claim is refused now, and why.",
            labels=["pod", "annotation", "reason"],
        )
        decision = self._decision()
        if decision is not None:
            for name, of_kind in (("ls", decision.ls_pools), ("be", decision.be_pools)):
                for pool in of_kind:
                    pools.add_metric([name, str(pool.node)], len(pool.cpus))
            # Two pods may bear one name while one of them ends; a series must not come twice.
            numbers: Counted[tuple[str, str]] = Counted()
            for owner in decision.owners:
                numbers[owner.title, owner.qos.value] += len(owner.cpus)
            for labels, number in numbers.items():
                owned.add_metric(labels, number)
            offline: Counted[str] = Counted()
            for owner in decision.owners:
                offline[owner.title] += len(CpuSet.parse(owner.offline))
            for title, number in offline.items():
                if number:
                    vanished.add_metric([title], number)
            refusals = Counted((each.title, each.key, each.reason) for each in decision.refusals)
            for why, number in refusals.items():
                refused.add_metric(why, number)
        return [pools, owned, vanished, refused]
