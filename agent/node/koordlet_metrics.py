"""The metrics of koordlet whose numbers the agent has, under koordlet's names and labels
(Koordinator 1.8: pkg/koordlet/metrics), for dashboards and alerts that were made for koordlet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.model.pod.pods import Pod
from agent.model.pod.qos import PriorityClass, pool_cpus
from agent.node.usage import UsageView, sampled_pod
from agent.telemetry.exposition import Declarations, Labels, Metric, Series
from agent.usage.node_metric import CollectPolicy
from agent.usage.prediction import Peak
from agent.usage.sampler import Used

_KOORDLET: Final = Declarations("koordlet")
_NODE: Final = "node"
_AMOUNT: Final = ("resource", "unit")
_POD: Final = ("pod_uid", "pod_name", "pod_namespace")
_PSI: Final = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")
_NODE_CPU: Final = _KOORDLET.gauge("node_used_cpu_cores", "CPUs in use on the machine.", _NODE)
_NODE_MEMORY: Final = _KOORDLET.gauge(
    "node_used_memory_bytes", "Memory of the machine in use, without page cache.", _NODE
)
_NODE_USAGE: Final = _KOORDLET.gauge(
    "node_metric_node_usage", "Use of the machine over five minutes.", _NODE, *_AMOUNT
)
_SYSTEM_USAGE: Final = _KOORDLET.gauge(
    "node_metric_system_usage", "Use of the machine without its pods.", _NODE, *_AMOUNT
)
_NUMA_USAGE: Final = _KOORDLET.gauge(
    "node_metric_numa_node_usage", "Use of a NUMA node.", _NODE, "numa_node_id", *_AMOUNT
)
_RECLAIMABLE: Final = _KOORDLET.gauge(
    "node_predicted_resource_reclaimable",
    "Requests of production pods that these will not use.",
    *(_NODE, "predictor", *_AMOUNT),
)
_PREDICTED_PEAK: Final = _KOORDLET.gauge(
    "node_predicted_resource_peak",
    "What production pods and the system will use at most.",
    *(_NODE, "predictor", *_AMOUNT),
)
_PRIORITY_RECLAIMABLE: Final = _KOORDLET.gauge(
    "node_priority_resource_reclaimable",
    "Requests of the pods of a priority class that these will not use.",
    *(_NODE, "priority", *_AMOUNT),
)
_PRIORITY_STATUS: Final = _KOORDLET.gauge(
    "node_resource_priority_reclaimable_status",
    "0 while the reclaimable amounts are known, else 1.",
    *(_NODE, "priority"),
)
_POOLS: Final = {
    "ls": _KOORDLET.gauge("cpuset_share_pool_cpu_cores", "CPUs in the LS pool.", _NODE),
    "be": _KOORDLET.gauge("cpuset_be_share_pool_cpu_cores", "CPUs in the BE pool.", _NODE),
}
_BE_CPU: Final = _KOORDLET.gauge(
    "be_suppress_be_used_cpu_cores", "CPUs that BestEffort pods use.", _NODE
)
_LS_CPU: Final = _KOORDLET.gauge(
    "be_suppress_ls_used_cpu_cores", "CPUs that all other pods use.", _NODE
)
_POD_PSI: Final = _KOORDLET.gauge(
    "pod_psi", "Percentage of the time in which tasks of a pod waited.", _NODE, *_POD, *_PSI
)
_CONTAINER_PSI: Final = _KOORDLET.gauge(
    "container_psi",
    "Percentage of the time in which tasks of a container waited.",
    *(_NODE, "container_id", "container_name", *_POD, *_PSI),
)
_CACHE: Final = _KOORDLET.gauge(
    "resctrl_llc_occupancy",
    "Part of an L3 cache that holds data of a QoS class.",
    *(_NODE, "cache_id", "qos"),
)
_BANDWIDTH: Final = _KOORDLET.gauge(
    "resctrl_memory_bandwidth",
    "Bytes that a QoS class has moved between an L3 cache and memory, since its group exists.",
    *(_NODE, "cache_id", "qos", "mb_type"),
)
DECLARED: Final = _KOORDLET.all

_PREDICTOR: Final = "minPredictor"
_PSI_RESOURCES: Final = {"cpu": "cpu", "memory": "mem", "io": "io"}
"""The names of koordlet by those of the kernel."""
_PRECISIONS: Final = ("avg10", "avg60", "avg300")
_RESCTRL_GROUPS: Final = ("LSR", "LS", "BE")


class KoordletMetrics:
    """Reads the metrics for each scrape, from any thread.

    `controllers`: keeps no file open."""

    def __init__(self, node_name: str, view: UsageView, controllers: Controllers) -> None:
        self._node = node_name
        self._view = view
        self._controllers = controllers

    def read(self) -> Iterator[Metric]:
        yield from self._used()
        yield from self._predicted()
        pods, pools = self._view.followed()
        for name, series in _POOLS.items():
            yield self._of_node(series, len(pool_cpus(pools.get(name, ()))))
        yield from self._pressure(pods)
        yield from self._monitored()

    def _of_node(self, series: Series, value: float | None) -> Metric:
        return Metric(series, {} if value is None else {(self._node,): value})

    def _used(self) -> Iterator[Metric]:
        sampler, seconds = self._view.sampler, CollectPolicy().aggregate_seconds
        machine, of_pods, _ = sampler.last()
        yield self._of_node(_NODE_CPU, machine.cpus)
        yield self._of_node(_NODE_MEMORY, machine.memory_bytes)
        yield Metric(_NODE_USAGE, self._averages(sampler.node(seconds)))
        yield Metric(_SYSTEM_USAGE, self._averages(sampler.system(seconds)))
        of_nodes: dict[Labels, float] = {}
        for node, used in sampler.numa(seconds).items():
            of_nodes |= self._averages(used, str(node))
        yield Metric(_NUMA_USAGE, of_nodes)
        used_cpus = {_BE_CPU: 0.0, _LS_CPU: 0.0}
        pods, _ = self._view.followed()
        for uid, last in of_pods.items():
            besteffort = uid in pods and pods[uid].kube_class == "besteffort"
            used_cpus[_BE_CPU if besteffort else _LS_CPU] += last.cpus or 0.0
        for series, cpus in used_cpus.items():
            yield self._of_node(series, cpus)

    def _averages(self, used: Used, *labels: str) -> dict[Labels, float]:
        values: dict[Labels, float] = {}
        if used.cpus is not None:
            values[self._node, *labels, "cpu", "core"] = used.cpus.average
        if used.memory_bytes is not None:
            values[self._node, *labels, "memory", "byte"] = used.memory_bytes.average
        return values

    def _predicted(self) -> Iterator[Metric]:
        predicted = self._view.prediction()
        prod = PriorityClass.PROD.value
        status: dict[Labels, float] = {(self._node, prod): int(predicted is None)}
        yield Metric(_PRIORITY_STATUS, status)
        if predicted is not None:
            yield Metric(_RECLAIMABLE, self._amounts(predicted.reclaimable, _PREDICTOR))
            yield Metric(_PREDICTED_PEAK, self._amounts(predicted.peak, _PREDICTOR))
            yield Metric(_PRIORITY_RECLAIMABLE, self._amounts(predicted.reclaimable, prod))

    def _amounts(self, amounts: Peak, label: str) -> dict[Labels, float]:
        return {
            (self._node, label, "cpu", "core"): amounts.cpu_milli / 1000,
            (self._node, label, "memory", "byte"): amounts.memory_bytes,
        }

    def _pressure(self, pods: Mapping[str, Pod]) -> Iterable[Metric]:
        of_pods: dict[Labels, float] = {}
        of_containers: dict[Labels, float] = {}
        for uid, pod in pods.items():
            sampled = sampled_pod(pod)
            if sampled is None:
                continue
            labels = uid, pod.name, pod.namespace
            for of_psi, value in self._stalled(sampled.group):
                of_pods[self._node, *labels, *of_psi] = value
            for container in pod.containers:
                if (group := sampled.containers.get(container.name)) != container.group:
                    continue
                of_container = self._node, container.id, container.name, *labels
                for of_psi, value in self._stalled(group) if group else ():
                    of_containers[*of_container, *of_psi] = value
        return Metric(_POD_PSI, of_pods), Metric(_CONTAINER_PSI, of_containers)

    def _stalled(self, group: str) -> Iterator[tuple[Labels, float]]:
        """Yields each value with its labels of PSI."""
        for resource, named in _PSI_RESOURCES.items():
            try:
                text = self._controllers.read(group, f"{resource}.pressure") or ""
            except CgroupError:
                continue
            lines = dict(line.partition(" ")[::2] for line in text.splitlines())
            full = "true" if "full" in lines else "false"
            for degree in lines.keys() & {"some", "full"}:
                averages = dict(word.split("=", 1) for word in lines[degree].split() if "=" in word)
                for precision in _PRECISIONS:
                    if (value := _number(averages.get(precision, ""))) is not None:
                        yield (named, precision, degree, full), value

    def _monitored(self) -> Iterable[Metric]:
        occupied: dict[Labels, float] = {}
        moved: dict[Labels, float] = {}
        for (group, cache_id), monitored in self._view.sampler.counted().monitored.items():
            qos = group.removeprefix("/")
            if qos not in _RESCTRL_GROUPS:
                continue
            labels = self._node, cache_id, qos
            if monitored.occupied_bytes is not None:
                occupied[labels] = monitored.occupied_bytes
            for name, number in (
                ("mbm_local_bytes", monitored.local_bytes),
                ("mbm_total_bytes", monitored.total_bytes),
            ):
                if number is not None:
                    moved[*labels, name] = number
        return Metric(_CACHE, occupied), Metric(_BANDWIDTH, moved)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
