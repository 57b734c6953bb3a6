"""The use of CPU and memory: the agent's sampler, and the NodeMetric that it fills."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from agent.allocate.present import in_api
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import KubeError
from agent.kube.objects import NODE_METRIC
from agent.model.cpu.topology import Topology
from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Container, Pod
from agent.model.pod.qos import PRIORITY_CLASS_LABEL, QOS_LABEL, QoS
from agent.model.pod.resource_request import priority_band
from agent.telemetry.metrics import AgentMetrics, UsageValues
from agent.usage import node_metric
from agent.usage.machine import Machine, pod_memory_bytes
from agent.usage.node_metric import CollectPolicy, NodeMemoryPolicy, UsedNode, UsedPod
from agent.usage.sampler import SAMPLE_SECONDS, SampledPod, UsageSampler, Used

log = logging.getLogger(__name__)
_STAT: Final = "memory.stat"


class CgroupUse:
    """Reads the counters of cgroups, from one thread. A group that is gone has none."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers

    def cpu_seconds(self, group: str) -> float | None:
        return self._controllers.cpu_seconds(group)

    def memory_bytes(self, group: str) -> tuple[int, int] | None:
        try:
            text = self._controllers.read(group, _STAT) or ""
        except CgroupError:
            return None
        used, with_cache = pod_memory_bytes(text), pod_memory_bytes(text, page_cache=True)
        return None if used is None or with_cache is None else (used, with_cache)


class UsageView:
    """Samples on a thread of its own, with files of its own that stay open."""

    def __init__(self, root: str, controllers: Controllers, metrics: AgentMetrics) -> None:
        self.sampler = UsageSampler(Machine(root), CgroupUse(controllers))
        self._controllers = controllers
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._api_pods: Mapping[str, ApiPod] = {}
        self._thread = Periodic("usage", SAMPLE_SECONDS, self.sampler.sample)
        metrics.follow_usage(self._values)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        self._controllers.close()

    def follow(self, pods: Collection[Pod], api_pods: Iterable[ApiPod], topology: Topology) -> None:
        """From now on these pods of the runtime are sampled."""
        in_cluster = in_api(pods, api_pods)
        with self._lock:
            self._pods, self._api_pods = {pod.uid: pod for pod in pods}, in_cluster
        sampled = (sampled_pod(pod) for pod in pods)
        node_of = {cpu.id: cpu.node for cpu in topology.cpus}
        self.sampler.follow((each for each in sampled if each is not None), node_of)

    def used(self, policy: CollectPolicy) -> UsedNode:
        """What a NodeMetric with this policy reports."""
        sampler, seconds = self.sampler, policy.aggregate_seconds
        with_cache = policy.memory is NodeMemoryPolicy.WITH_PAGE_CACHE
        with self._lock:
            pods, in_cluster = self._pods, self._api_pods
        used_by_uid = sampler.pods(seconds, page_cache=with_cache)
        used_pods = []
        for uid, used in used_by_uid.items():
            api_pod, pod = in_cluster.get(uid), pods.get(uid)
            if api_pod is not None and pod is not None:
                used_pods.append(_used_pod(pod, api_pod, used))
        node = UsedNode(
            sampler.node(seconds, page_cache=with_cache),
            sampler.system(seconds),
            tuple(
                (each, sampler.node(each, page_cache=with_cache), sampler.system(each))
                for each in policy.durations
            ),
            sampler.numa(seconds),
            tuple(used_pods),
        )
        return without_memory(node) if policy.memory is _HOT else node

    def _values(self) -> UsageValues:
        machine, of_pods, _ = self.sampler.last()
        with self._lock:
            titles = {uid: pod.title for uid, pod in self._pods.items()}
        numa = {
            node: (
                None if used.cpus is None else used.cpus.last,
                None if used.memory_bytes is None else used.memory_bytes.last,
            )
            for node, used in self.sampler.numa(_LAST_SECONDS).items()
        }
        return UsageValues(
            (machine.cpus, machine.memory_bytes),
            numa,
            {
                titles[uid]: (last.cpus, last.memory_bytes)
                for uid, last in of_pods.items()
                if uid in titles
            },
        )


_HOT: Final = NodeMemoryPolicy.WITH_HOT_PAGE_CACHE
_LAST_SECONDS: Final = 60.0


def sampled_pod(pod: Pod) -> SampledPod | None:
    """The cgroups of a pod; None while it has none, and for a pod in a virtual machine."""
    containers = {each.name: each.group for each in pod.containers if _has_group(each)}
    of_pod = [each.group for each in (*pod.containers, *pod.sandboxes) if _has_group(each)]
    if not of_pod or of_pod[0] is None:
        return None
    group = of_pod[0].rpartition("/")[0]
    named = {name: group for name, group in containers.items() if group is not None}
    return SampledPod(pod.uid, group, named) if group else None


def _has_group(container: Container) -> bool:
    return container.group is not None and not container.virtual


def _used_pod(pod: Pod, api_pod: ApiPod, used: Used) -> UsedPod:
    """koordlet's defaults: see `node_metric.qos_with_default`; SYSTEM, LSE, LSR and LS pods without
    a priority class are prod, BE pods batch."""
    of_label = QoS(text) if (text := api_pod.labels.get(QOS_LABEL, "")) in tuple(QoS) else None
    qos = node_metric.qos_with_default(of_label, api_pod.kube_class or pod.kube_class)
    band = priority_band(api_pod.priority, api_pod.labels.get(PRIORITY_CLASS_LABEL, ""))
    default = "koord-batch" if qos is QoS.BE else "koord-prod"
    return UsedPod(pod.namespace, pod.name, band or default, qos.value, used)


def without_memory(used: UsedNode) -> UsedNode:
    """The values without the memory of the machine and of pods, under a policy that this kernel can
    not follow."""

    def cpus(one: Used) -> Used:
        return Used(one.cpus)

    return msgspec.structs.replace(
        used,
        node=cpus(used.node),
        aggregated=tuple((each, cpus(node), system) for each, node, system in used.aggregated),
        pods=tuple(msgspec.structs.replace(pod, used=cpus(pod.used)) for pod in used.pods),
    )


class NodeMetricReporter:
    """Fills the status of the node's NodeMetric at the interval of its spec, on a thread.

    `create`: it also creates the object, as no manager does."""

    def __init__(
        self,
        cluster: Cluster,
        node_name: str,
        used: Callable[[CollectPolicy], UsedNode],
        *,
        create: bool,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._cluster = cluster
        self._node_name = node_name
        self._used = used
        self._create = create
        self._now = now
        self._policy = CollectPolicy()
        self._due: datetime.datetime | None = None
        self._problem = Problem(log, f"NodeMetric {node_name}: ")
        self._thread = Periodic("node-metric", _PERIOD_SECONDS, self.step)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_seconds: float | None = None) -> None:
        self._thread.stop(wait_seconds)

    def step(self) -> None:
        """Reports if the interval has passed. Never raises."""
        now = self._now()
        if self._due is not None and now < self._due:
            return
        try:
            self._report(now)
        except ObjectError as error:
            self._problem.report(f"{error}; the last policy stays in force")
            self._due = now + datetime.timedelta(seconds=self._policy.interval_seconds)
        except (KubeError, AccessError) as error:
            self._problem.report(str(error))

    def _report(self, now: datetime.datetime) -> None:
        stored = self._cluster.get(NODE_METRIC.name, self._node_name, cached=True)
        if stored is None:
            if self._create and self._cluster.version(NODE_METRIC.name) is not None:
                self._cluster.apply(
                    {
                        "apiVersion": f"{NODE_METRIC.group}/{NODE_METRIC.versions[0]}",
                        "kind": NODE_METRIC.name,
                        "metadata": {"name": self._node_name},
                    }
                )
                log.info("NodeMetric %s is created", self._node_name)
            return
        problem: ObjectError | None = None
        try:
            self._policy = node_metric.collect_policy(stored)
        except ObjectError as error:
            problem = error
        time = now.replace(microsecond=0).isoformat().replace("+00:00", "Z")
        status = node_metric.status(self._used(self._policy), time)
        self._cluster.merge_status(
            NODE_METRIC, self._node_name, {"status": changes(stored.get("status"), status)}
        )
        self._due = now + datetime.timedelta(seconds=self._policy.interval_seconds)
        if problem is not None:
            raise problem
        self._problem.clear()


_PERIOD_SECONDS: Final = 5.0


def changes(stored: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes the fields of `wanted` of the stored object."""
    before = stored if isinstance(stored, dict) else {}
    patch = {}
    for name, value in wanted.items():
        if isinstance(value, dict) and isinstance(before.get(name), dict):
            if inner := changes(before[name], value):
                patch[name] = inner
        elif before.get(name) != value:
            patch[name] = value
    return patch
