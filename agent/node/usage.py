"""The use of CPU and memory: the agent's sampler, and the NodeMetric that it fills."""

from __future__ import annotations

import datetime
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent.allocate.colocation.be_suppress import NodeUse
from agent.allocate.colocation.cpu_burst import SharedUse
from agent.allocate.colocation.eviction import NodeAmounts
from agent.allocate.pools import Decision
from agent.allocate.present import in_api
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone
from agent.host.daemon import Periodic
from agent.host.files import Tree
from agent.host.log_once import Once, Problem
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import KubeError
from agent.kube.objects import NODE_METRIC
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.devices.gpus import GpuReading
from agent.model.node_slo import HostApplication
from agent.model.nrt.node_annotations import cpu_normalization_ratio, node_reservation
from agent.model.objects import ObjectError
from agent.model.pod.annotations import AnnotationError, resource_status
from agent.model.pod.apiobjects import ApiNode, ApiPod
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.pods import Container, Pod
from agent.model.pod.qos import POOLS, Pools, PriorityClass, QoS
from agent.model.pod.resource_request import pod_requests
from agent.node.cluster_view import ClusterState
from agent.node.node_resource_topology import zones
from agent.node.report import NO_GPUS, GpuMoment
from agent.telemetry.metrics import AgentMetrics, pod_labels
from agent.telemetry.usage_metrics import PodUse, UsageValues, follow_usage
from agent.usage import batch_mid, host_applications, node_metric, prediction
from agent.usage.batch_mid import NodeLoad, PodLoad
from agent.usage.contention import Party, PartyKind
from agent.usage.gpus import GpuSampler
from agent.usage.machine import GroupMemory, Machine, group_memory, machine_memory
from agent.usage.node_metric import (
    CollectPolicy,
    NodeMemoryPolicy,
    UsedApplication,
    UsedNode,
    UsedPod,
    priority_class_of_pod,
    qos_of_pod,
)
from agent.usage.past import OWN, PastHour
from agent.usage.prediction import Peak, PredictedPod, Prediction
from agent.usage.predictor import FILE, TRAIN_SECONDS, Predictor
from agent.usage.sampler import (
    MEMORY_SECONDS,
    SAMPLE_SECONDS,
    Counted,
    Last,
    SampledPod,
    UsageSampler,
    Used,
    kubepods,
)
from agent.usage.traffic import DiskTraffic, disks_of_v1, disks_of_v2
from agent.usage.waits import Stalls, Throttling, limits_reached, stalls, throttling

if TYPE_CHECKING:
    from agent.node.strategies import StrategiesView

log = logging.getLogger(__name__)
_STAT: Final = "memory.stat"
_DISKS_OF_V1: Final = (
    "blkio.throttle.io_service_bytes_recursive",
    "blkio.throttle.io_serviced_recursive",
)
"""With the groups below, whose operations are not in the files without the suffix."""


class CgroupUse:
    """Reads the counters of cgroups, from one thread. A group that is gone has none."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._absent = Once(log)

    def cpu_seconds(self, group: str) -> float | None:
        return self._controllers.cpu_seconds(group)

    def children(self, group: str) -> tuple[str, ...]:
        try:
            return self._controllers.children(group, "cpu.stat")
        except CgroupError:
            return ()

    def memory(self, group: str) -> GroupMemory | None:
        try:
            return group_memory(self._controllers.read(group, _STAT) or "")
        except CgroupError:
            return None

    def disks(self, group: str) -> Mapping[str, DiskTraffic]:
        if self._controllers.version("blkio") == 1:
            return disks_of_v1(*(self._text(group, file) for file in _DISKS_OF_V1))
        return disks_of_v2(self._text(group, "io.stat"))

    def throttling(self, group: str) -> Throttling | None:
        return throttling(self._text(group, "cpu.stat"))

    def stalls(self, group: str) -> Stalls:
        return stalls(lambda resource: self._text(group, f"{resource}.pressure"))

    def limits_reached(self, group: str) -> int | None:
        return limits_reached(self._text(group, "memory.events"))

    def _text(self, group: str, file: str) -> str:
        try:
            text = self._controllers.read(group, file)
        except GroupGone:
            return ""
        except CgroupError:
            text = None
        if text is None:
            self._absent.report(f"no {file} can be read in the cgroups of this machine")
        return text or ""


class UsageView:
    """Samples on a thread of its own, with files of its own that stay open, and predicts peaks on
    another.

    `strategies`: None if the agent follows none.
    `now`: seconds since 1970."""

    def __init__(
        self,
        root: str,
        state_dir: str,
        controllers: Controllers,
        metrics: AgentMetrics,
        strategies: StrategiesView | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.sampler = UsageSampler(Machine(root), CgroupUse(controllers))
        self._tree = Tree(root)
        self._predictor = Predictor(os.path.join(state_dir, FILE))
        self._controllers = controllers
        self._strategies = strategies
        self._gpus = GpuSampler()
        self._readings: tuple[GpuReading, ...] = ()
        self._applications: Mapping[str, HostApplication] = {}
        self._now = now
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._pools: Pools = {}
        self._decided: tuple[Topology, Decision] | None = None
        self._api_pods: Mapping[str, ApiPod] = {}
        self._classes: dict[str, str] = {}
        self._cluster = ClusterState()
        self._threads = (
            Periodic("usage", SAMPLE_SECONDS, self.sampler.sample),
            Periodic("predictions", TRAIN_SECONDS, self.train),
        )
        follow_usage(metrics, self._values)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for thread in self._threads:
            thread.stop()
        self._controllers.close()

    def follow(
        self,
        pods: Collection[Pod],
        cluster: ClusterState,
        topology: Topology,
        decision: Decision,
        gpus: GpuMoment = NO_GPUS,
    ) -> None:
        """From now on these pods of the runtime are sampled, and the applications of the host that
        the strategies name."""
        if gpus.readings is not self._readings:
            self._readings = gpus.readings
            self._gpus.add(*gpus, {pod.title for pod in pods})
        applications: tuple[HostApplication, ...] = ()
        if self._strategies is not None:
            self._strategies.follow(cluster)
            applications = self._strategies.now().slo.host_applications
        sampled = [of_pod for pod in pods if (of_pod := sampled_pod(pod)) is not None]
        root = next((root for pod in sampled if (root := kubepods(pod.group))), None)
        application_groups = host_applications.groups(applications, root)
        in_cluster = in_api(pods, cluster.pods.values())
        with self._lock:
            self._pods, self._api_pods = {pod.uid: pod for pod in pods}, in_cluster
            self._pools, self._decided = decision.pools, (topology, decision)
            self._cluster = cluster
            by_name = {application.name: application for application in reversed(applications)}
            self._applications = {name: by_name[name] for name in application_groups}
            # A pod that ends or is removed still has samples, and no class in the API.
            self._classes = {
                uid: priority_class_of_pod(in_cluster[uid])
                if uid in in_cluster
                else self._classes.get(uid, "")
                for uid in self._pods
            }
        node_of = {cpu.id: cpu.node for cpu in topology.cpus}
        self.sampler.follow(sampled, node_of, cpus_by_pool(decision, topology), application_groups)

    def node_use(self) -> NodeUse | None:
        """The newest use of CPU, for the suppression of BE pods; None while it is not known. Raises
        AnnotationError."""
        machine, of_pods, _ = self.sampler.last()
        with self._lock:
            node, in_api = self._cluster.node, self._api_pods
            applications = self._applications
        if node is None or machine.cpus is None or not node.capacity.get("cpu"):
            return None
        cores = {uid: last.cpus for uid, last in of_pods.items() if last.cpus is not None}
        of_be = sum(used for uid, used in cores.items() if uid in in_api and is_be(in_api[uid]))
        of_applications = {
            name: used.cpus.last
            for name, used in self.sampler.applications(_LAST_SECONDS).items()
            if used.cpus is not None
        }
        be_applications = sum(
            used
            for name, used in of_applications.items()
            if name in applications and host_applications.is_be(applications[name])
        )
        reservation = node_reservation(node.annotations)
        reserved = batch_mid.reserved(node.capacity, node.allocatable, reservation)
        all_pods, applications_cores = sum(cores.values()), sum(of_applications.values())
        return NodeUse(
            capacity_milli=node.capacity["cpu"],
            reserved_milli=reserved["cpu"],
            node_cores=machine.cpus,
            pods_cores=all_pods,
            other_pods_cores=all_pods - of_be,
            applications_cores=applications_cores,
            other_applications_cores=applications_cores - be_applications,
        )

    def eviction_amounts(self, window_seconds: float) -> NodeAmounts | None:
        """The node for evictions; None while it is not known, or if nothing has been sampled in the
        last seconds."""
        with self._lock:
            node = self._cluster.node
        if node is None or self.sampler.node(_FRESH_SECONDS).cpus is None:
            return None
        of_cpus = self.sampler.node(window_seconds).cpus
        enough = of_cpus is not None and of_cpus.count * SAMPLE_SECONDS >= window_seconds / 3
        memory = machine_memory(self._tree.text("proc/meminfo") or "")
        _, of_pods, _ = self.sampler.last()
        return NodeAmounts(
            node.capacity,
            node.allocatable | node.offered,
            int(1000 * of_cpus.average) if of_cpus is not None and enough else None,
            None if memory is None else memory.used,
            {uid: last.cpus for uid, last in of_pods.items() if last.cpus is not None},
        )

    def used_by_pods(self, window_seconds: float) -> dict[str, tuple[int | None, int | None]]:
        """By uid, the CPU that a pod uses on average of the window, in milli-CPU, and its memory in
        bytes without page cache; None for what has not been sampled lately."""
        of_pods = self.sampler.pods(window_seconds)
        lately = self.sampler.pods(_FRESH_MEMORY_SECONDS)
        used = {}
        for uid, of_pod in of_pods.items():
            memory = lately[uid].memory_bytes if uid in lately else None
            used[uid] = (
                None if of_pod.cpus is None else int(1000 * of_pod.cpus.average),
                None if memory is None else int(memory.last),
            )
        return used

    def counted(self) -> Counted:
        """The newest counters of the kernel."""
        return self.sampler.counted()

    def allocatable_bytes(self) -> int | None:
        """The node's allocatable memory; None while it is not known."""
        with self._lock:
            node = self._cluster.node
        return None if node is None else node.allocatable.get("memory")

    def shared_use(self) -> SharedUse | None:
        """The use of the CPUs that no pod owns, for CPU burst; None while it is not known. Raises
        AnnotationError."""
        of_node = self.sampler.node(_BURST_SECONDS).cpus
        of_pods = self.sampler.pods(_BURST_SECONDS)
        with self._lock:
            node, in_api, decided = self._cluster.node, self._api_pods, self._decided
        if node is None or decided is None:
            return None
        owned_milli, used_cores = 0, None if of_node is None else of_node.average
        for uid, pod in in_api.items():
            owns = qos_of_pod(pod) in (QoS.LSE, QoS.LSR)
            owned_milli += pod_requests(pod).get("cpu", 0) if owns else 0
            cores = of_pods[uid].cpus if uid in of_pods and (owns or is_be(pod)) else None
            if cores is not None and used_cores is not None:
                used_cores -= cores.average
        ratio = cpu_normalization_ratio(node.annotations)
        return SharedUse(len(decided[0].cpus), owned_milli, used_cores, ratio)

    def in_cluster(
        self, *, with_node: bool
    ) -> tuple[Mapping[str, Pod], Mapping[str, ApiPod]] | None:
        """The pods that are sampled, and their objects in the API, by uid. None until a pass has
        known all objects.

        `with_node`: the Node is one of these."""
        with self._lock:
            cluster = self._cluster
            is_whole = cluster.pods_listed and (cluster.node is not None or not with_node)
            return (self._pods, self._api_pods) if is_whole else None

    def followed(self) -> tuple[Mapping[str, Pod], Pools]:
        """The pods that are sampled, by uid, and the pools."""
        with self._lock:
            return self._pods, self._pools

    def requested_bytes(self) -> dict[Party, int]:
        """The memory that the pods of the API request."""
        with self._lock:
            pods, in_cluster = self._pods, self._api_pods
        return {
            party_of(pods[uid]): pod_requests(pod).get("memory", 0)
            for uid, pod in in_cluster.items()
            if uid in pods
        }

    def past(self) -> PastHour:
        """The load and pressure of the last hour."""
        return self.sampler.past(self._now())

    def used(self, policy: CollectPolicy) -> UsedNode:
        """What a NodeMetric with this policy reports."""
        sampler, seconds = self.sampler, policy.aggregate_seconds
        with_cache = policy.memory is NodeMemoryPolicy.WITH_PAGE_CACHE
        with self._lock:
            in_cluster, applications = self._api_pods, self._applications
        gpus_of_pods = self._gpus.pods(seconds)
        node = UsedNode(
            self._of_node(seconds, page_cache=with_cache),
            sampler.system(seconds),
            tuple(
                (each, self._of_node(each, page_cache=with_cache), sampler.system(each))
                for each in policy.durations
            ),
            sampler.numa(seconds),
            tuple(
                UsedPod(
                    pod.namespace,
                    pod.name,
                    priority_class_of_pod(pod),
                    qos_of_pod(pod).value,
                    msgspec.structs.replace(used, gpus=gpus_of_pods.get(pod.title, ())),
                )
                for uid, used in sampler.pods(seconds, page_cache=with_cache).items()
                if (pod := in_cluster.get(uid)) is not None
            ),
            self.prediction(),
            tuple(
                UsedApplication(name, application.priority, application.qos, used)
                for name, used in sampler.applications(seconds, page_cache=with_cache).items()
                if (application := applications.get(name)) is not None
            ),
        )
        return without_memory(node) if policy.memory is _HOT else node

    def _of_node(self, seconds: float, *, page_cache: bool) -> Used:
        used = self.sampler.node(seconds, page_cache=page_cache)
        return msgspec.structs.replace(used, gpus=self._gpus.cards(seconds))

    def load(self) -> tuple[ApiNode, NodeLoad] | None:
        """The Node and what runs on it, in the averages that a NodeMetric has by default; None
        while one of these is not known. Raises AnnotationError."""
        seconds = CollectPolicy().aggregate_seconds
        with self._lock:
            cluster, in_cluster, classes = self._cluster, self._api_pods, self._classes
            priorities = {
                name: application.priority for name, application in self._applications.items()
            }
            decided = self._decided
        system, node = _amounts(self.sampler.system(seconds)), cluster.node
        if node is None or not cluster.pods_listed or system.keys() != set(batch_mid.RESOURCES):
            return None
        if decided is None:
            return None
        topology, decision = decided
        measured = {
            uid: amounts
            for uid, used in self.sampler.pods(seconds).items()
            if (amounts := _amounts(used)).keys() == set(batch_mid.RESOURCES)
        }
        in_api_too = {
            pod.uid: measured.pop(uid) for uid, pod in in_cluster.items() if uid in measured
        }
        node_of = {cpu.id: cpu.node for cpu in topology.cpus}
        owned = {
            in_cluster[owner.uid].uid: frozenset(
                node_of[cpu] for cpu in owner.cpus if cpu in node_of
            )
            for owner in decision.owners
            if owner.uid in in_cluster
        }
        pods = [
            PodLoad(
                priority_class_of_pod(pod),
                pod_requests(pod),
                in_api_too.get(pod.uid),
                exclusive=qos_of_pod(pod) is QoS.LSE,
                numa_nodes=owned.get(pod.uid) or _bound_to(pod),
            )
            for pod in cluster.pods.values()
            if not pod.terminal
        ]
        pods += [
            PodLoad(classes.get(uid, ""), used=used, active=False) for uid, used in measured.items()
        ]
        predicted = self.prediction()
        reservation = node_reservation(node.annotations)
        return node, NodeLoad(
            node.capacity,
            batch_mid.reserved(node.capacity, node.allocatable, reservation),
            system,
            _amounts(self.sampler.node(seconds)),
            {} if predicted is None else predicted.reclaimable.amounts,
            tuple(pods),
            tuple(
                (priority.value, _amounts(used))
                for name, used in self.sampler.applications(seconds).items()
                if (priority := priorities.get(name)) is not None
            ),
            numa_capacity={
                zone.node: {name: zone.resources[name].capacity for name in batch_mid.RESOURCES}
                for zone in zones(topology)
            },
        )

    def train(self) -> None:
        """Adds the p90 of the last minute to the models of pods, of their classes together, and of
        the system."""
        with self._lock:
            in_cluster = self._api_pods
        used: dict[str, tuple[float, float]] = dict.fromkeys(_CLASSES, (0.0, 0.0))
        for uid, of_pod in self.sampler.pods(TRAIN_SECONDS).items():
            pod, sample = in_cluster.get(uid), _p90(of_pod)
            if pod is None or sample is None:
                continue
            name = class_model(priority_class_of_pod(pod))
            together = used[name]
            used[pod.uid] = sample
            used[name] = together[0] + sample[0], together[1] + sample[1]
        system = _p90(self.sampler.system(TRAIN_SECONDS))
        if system is not None:
            self._predictor.train({**used, prediction.SYSTEM: system}, self._now())

    def prediction(self) -> Prediction | None:
        """What production pods will use at most; None while it is not known."""
        with self._lock:
            cluster = self._cluster
        allocatable = cluster.node.allocatable if cluster.node is not None else {}
        if not allocatable or not cluster.pods_listed:
            return None
        peaks, now = self._predictor.peaks(), self._now()
        pods = (
            PredictedPod(
                Peak.of(pod_requests(pod)),
                peaks.get(pod.uid),
                now - pod.created_at / 1e9,
                ends=pod.deleted or pod.terminal,
            )
            for pod in cluster.pods.values()
            if priority_class_of_pod(pod) == PriorityClass.PROD
        )
        return prediction.predicted(Peak.of(allocatable), pods, peaks)

    def _values(self) -> UsageValues:
        machine, of_pods, of_containers = self.sampler.last()
        pods, _ = self.followed()
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
                uid: PodUse(pod_labels(pod.title), pod.qos.value, last.cpus, last.memory_bytes)
                for uid, pod in pods.items()
                for last in (of_pods.get(uid, Last()),)
            },
            of_containers,
            self.sampler.counted(),
            self.sampler.busy_cpus(),
        )


def cpus_by_pool(decision: Decision, topology: Topology) -> dict[tuple[str, int], CpuSet]:
    """The CPUs that pods own, as the kind `own`, and those of each pool that is not dedicated, by
    kind and NUMA node."""
    owned = union(owner.cpus for owner in decision.owners)
    by_pool = {(OWN, node.id): owned & node.cpus for node in topology.numa_nodes if node.cpus}
    for name, kind in POOLS.items():
        if not kind.dedicated:
            by_pool |= {(kind.title, pool.node): pool.cpus for pool in decision.pools.get(name, ())}
    return by_pool


def _amounts(used: Used) -> dict[str, int]:
    """The averages that are known: milli-CPU and bytes."""
    amounts = {}
    if used.cpus is not None:
        amounts["cpu"] = int(1000 * used.cpus.average)
    if used.memory_bytes is not None:
        amounts["memory"] = int(used.memory_bytes.average)
    return amounts


def _bound_to(pod: ApiPod) -> frozenset[int]:
    try:
        return frozenset(resource_status(pod.annotations).shared_numa_nodes())
    except AnnotationError:
        return frozenset()


def class_model(priority_class: str) -> str:
    """The name of the model of all pods of a class."""
    return f"__node-{priority_class}__"


_CLASSES: Final = (*(class_model(each.value) for each in PriorityClass), prediction.UNCLASSED)


def _p90(used: Used) -> tuple[float, float] | None:
    if used.cpus is None or used.memory_bytes is None:
        return None
    return used.cpus.p90, used.memory_bytes.p90


_HOT: Final = NodeMemoryPolicy.WITH_HOT_PAGE_CACHE
_LAST_SECONDS: Final = 60.0
_BURST_SECONDS: Final = 5.0
_FRESH_SECONDS: Final = 5.0
_FRESH_MEMORY_SECONDS: Final = 3 * MEMORY_SECONDS


def is_be(pod: ApiPod) -> bool:
    """Whether suppression counts the pod as BE: it is in the cgroup of all BE pods."""
    return (pod.kube_class or kube_class_of(pod)) == "besteffort"


def party_of(pod: Pod) -> Party:
    """The pod where it waits for others, or others for it."""
    return Party(PartyKind.POD, pod.title, pod.qos.value)


def sampled_pod(pod: Pod) -> SampledPod | None:
    """The cgroups of a pod; None while it has none, and for a pod in a virtual machine."""
    containers = {each.name: each.group for each in pod.containers if _has_group(each)}
    of_pod = [each.group for each in (*pod.containers, *pod.sandboxes) if _has_group(each)]
    if not of_pod or of_pod[0] is None:
        return None
    group = of_pod[0].rpartition("/")[0]
    named = {name: group for name, group in containers.items() if group is not None}
    # The pause container lives as long as the network namespace.
    processes = ((part.id, part.pid) for part in (*pod.sandboxes, *pod.containers) if part.pid)
    return SampledPod(pod.uid, group, named, next(processes, None)) if group else None


def _has_group(container: Container) -> bool:
    return container.group is not None and not container.virtual


def without_memory(used: UsedNode) -> UsedNode:
    """The values without the memory of the machine, of pods and of applications, under a policy
    that this kernel can not follow."""

    def others(of_part: Used) -> Used:
        return msgspec.structs.replace(of_part, memory_bytes=None)

    return msgspec.structs.replace(
        used,
        node=others(used.node),
        aggregated=tuple(
            (seconds, others(node), system) for seconds, node, system in used.aggregated
        ),
        pods=tuple(msgspec.structs.replace(pod, used=others(pod.used)) for pod in used.pods),
        applications=tuple(
            msgspec.structs.replace(application, used=others(application.used))
            for application in used.applications
        ),
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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._node_name = node_name
        self._used = used
        self._create = create
        self._now, self._monotonic = now, monotonic
        self._policy = CollectPolicy()
        self._due: float | None = None
        self._problem = Problem(log, f"NodeMetric {node_name}: ")
        self._thread = Periodic("node-metric", _PERIOD_SECONDS, self.step)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_seconds: float | None = None) -> None:
        self._thread.stop(wait_seconds)

    def step(self) -> None:
        """Reports if the interval has passed. Never raises."""
        begin = self._monotonic()
        if self._due is not None and begin < self._due:
            return
        try:
            self._report(begin)
        except ObjectError as error:
            self._problem.report(f"{error}; the last policy stays in force")
            self._due = begin + self._policy.interval_seconds
        except (KubeError, AccessError) as error:
            self._problem.report(str(error))

    def _report(self, begin: float) -> None:
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
        update_time = self._now().replace(microsecond=0).isoformat().replace("+00:00", "Z")
        status = node_metric.status(self._used(self._policy), update_time)
        self._cluster.merge_status(
            NODE_METRIC, self._node_name, {"status": changes(stored.get("status"), status)}
        )
        self._due = begin + self._policy.interval_seconds
        if problem is not None:
            raise problem
        self._problem.clear()


_PERIOD_SECONDS: Final = 5.0


def changes(stored: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes the fields of `wanted` of the stored object, and leaves its other
    fields."""
    return _patch(stored if isinstance(stored, dict) else {}, wanted)


def _patch(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    patch = {}
    for name, value in wanted.items():
        if isinstance(value, dict) and isinstance(before.get(name), dict):
            gone = dict.fromkeys(before[name].keys() - value.keys())
            if inner := _patch(before[name], value) | gone:
                patch[name] = inner
        elif before.get(name) != value:
            patch[name] = value
    return patch
