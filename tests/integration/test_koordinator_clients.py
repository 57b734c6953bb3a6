"""koord-manager and koord-scheduler with the agent in koordlet's place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping

import pytest

from agent.kube.transport import FIELD_MANAGER
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.quantities import milli, whole
from agent.usage import OFFERED_FILE, STRATEGIES_FILE, batch_mid, offered, strategies
from agent.usage.batch_mid import ColocationStrategy, NodeLoad, PodLoad
from tests.discover import gpumachines
from tests.fixtures.pods import (
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
)
from tests.integration import koordcontrol
from tests.integration.apiserver import server
from tests.integration.apiserver.server import ApiServer
from tests.integration.gpunode import GpuNode
from tests.integration.harness import TestNode, built_or_skip, busy, kernel_group
from tests.integration.incluster import QOS, READ_RULES, STATUS, WRITE_RULES, ClusterNode
from tests.integration.koordcontrol import SECONDS, Object
from tests.integration.kubescheduler import objects
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SLO = "/apis/slo.koordinator.sh/v1alpha1"
RULES = [
    *READ_RULES,
    *WRITE_RULES,
    {"apiGroups": ["slo.koordinator.sh"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
CAPACITY = {"cpu": "1000", "memory": "8Ti", "pods": "110"}
NODE_LABEL = "topolet.io/test"
LITTLE = {"cpu": "100m", "memory": "64Mi"}
GPU_REQUEST = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    built_or_skip("koordinator")
    with server.running(tmp_path_factory.mktemp("koordinator")) as api_server:
        koordcontrol.install(api_server)
        yield api_server


class ManagedNode(ClusterNode):
    """A Ready node whose pods run as the API has them."""

    def __init__(self, api: ApiServer, node: TestNode, name: str) -> None:
        super().__init__(api, node, name, RULES)
        self.node = node
        self.path = f"/api/v1/nodes/{name}"
        api.default_account(name)
        condition = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        self.set_status(capacity=CAPACITY, allocatable=CAPACITY, conditions=[condition])
        labels = {NODE_LABEL: name}
        api.admin.merge(self.path, {"metadata": {"labels": labels}, "spec": {"taints": None}})

    def set_status(self, **fields: object) -> None:
        self.api.admin.merge(f"{self.path}/status", {"status": fields})

    def allocatable(self, *names: str) -> dict[str, int]:
        """These resources of the Node, as far as they are there."""
        listed = koordcontrol.stored(self.api, self.path)["status"]["allocatable"]
        return {name: whole(listed[name]) for name in names if name in listed}

    def writers(self, resource: str) -> set[str]:
        """The field managers of an allocatable resource."""
        fields = koordcontrol.stored(self.api, self.path)["metadata"].get("managedFields", ())
        return {
            entry["manager"]
            for entry in fields
            if f"f:{resource}" in entry["fieldsV1"].get("f:status", {}).get("f:allocatable", {})
        }

    def metric(self) -> Object:
        return koordcontrol.stored(self.api, f"{SLO}/nodemetrics/{self.name}")

    def interval(self) -> int:
        """The seconds between two reports, 0 without a policy."""
        policy = self.metric().get("spec", {}).get("metricCollectPolicy", {})
        return int(policy.get("reportIntervalSeconds", 0))

    def update_time(self) -> str:
        return str(self.metric().get("status", {}).get("updateTime", ""))

    def used_memory_bytes(self) -> int:
        """The used memory of the machine, 0 before it is reported."""
        status = self.metric().get("status", {}).get("nodeMetric", {})
        return amounts(status.get("nodeUsage", {})).get("memory", 0)

    def sums(self) -> dict[str, int]:
        """What the agent offers, before it is rounded to steps."""
        path = self.node.state / OFFERED_FILE
        with contextlib.suppress(FileNotFoundError):
            return {
                resource.name: resource.offer.amount
                for resource in offered.read(str(path)).resources
            }
        return {}

    def follows_thresholds(self) -> bool:
        """Whether the agent suppresses BE pods as the NodeSLO says."""
        with contextlib.suppress(FileNotFoundError):
            followed = strategies.read(str(self.node.state / STRATEGIES_FILE))
            thresholds = followed.slo.resource_used_threshold_with_be
            return thresholds.enable and thresholds.cpu_suppress_threshold_percent == 55
        return False

    def as_computed(self) -> bool:
        """Whether the Node has exactly what the agent's formulas make of the same objects."""
        pods = objects.pods(self.api, self.name).values()
        of_node = koordcontrol.stored(self.api, self.path)
        computed = batch_mid.offered(load(of_node, self.metric(), pods), ColocationStrategy(), {})
        sums = {resource.name: resource.offer.amount for resource in computed}
        return self.allocatable(*sums) == sums

    def has_both_reports(self) -> bool:
        """Whether the NodeResourceTopology has what koord-manager adds to its zones, and the
        attributes, which its version of the kind does not have."""
        report = self.reported() or {}
        resources = {resource["name"] for zone in report["zones"] for resource in zone["resources"]}
        return BATCH_CPU in resources and bool(report.get("attributes"))

    def add(self, name: str, qos: str, cpu: str, cpuset: str = "") -> str:
        """Creates a pod that is bound to the node; its uid."""
        pod = objects.pod_manifest(
            self.name,
            name,
            {"cpu": cpu, "memory": "1Gi"},
            scheduler="",
            labels={QOS: qos},
            annotations={STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {},
            nodeName=self.name,
        )
        return str(objects.create(self.api, pod)["metadata"]["uid"])

    def create(self, name: str, qos: str, requests: Mapping[str, str]) -> str:
        """Creates a pod for koord-scheduler; its path."""
        pod = objects.pod_manifest(
            self.name,
            name,
            requests,
            scheduler=koordcontrol.SCHEDULER,
            labels={QOS: qos},
            priorityClassName="koord-prod",
            nodeSelector={NODE_LABEL: self.name},
        )
        objects.create(self.api, pod)
        return f"/api/v1/namespaces/{self.name}/pods/{name}"

    def schedule(
        self, scheduler: koordcontrol.KoordProcess, name: str, qos: str, requests: Mapping[str, str]
    ) -> Object:
        """Creates a pod; the pod once koord-scheduler has placed it here."""
        path = self.create(name, qos, requests)
        scheduler.eventually(f"pod {name} is placed", lambda: self.has_pod(name))
        return koordcontrol.stored(self.api, path)

    def has_pod(self, name: str) -> bool:
        """Whether the pod is bound to this node."""
        return objects.node_of(self.api, self.name, name) == self.name

    def run_scheduled(self, pod: Object, **variables: str) -> tuple[str, str]:
        """Runs a pod with its labels and annotations; the ids of its sandbox and container."""
        metadata = pod["metadata"]
        spec = self.node.spec(
            metadata["name"],
            metadata["labels"][QOS],
            uid=metadata["uid"],
            namespace=self.name,
            annotations=metadata.get("annotations", {}),
        )
        sandbox = run_sandbox(self.node.proxied, spec)
        request = create_request(spec, sandbox, pod["spec"]["containers"][0]["name"])
        for key, value in variables.items():
            request.config.envs.add(key=key, value=value.encode())
        container = create_container(self.node.proxied, request)
        start_container(self.node.proxied, container)
        return sandbox, container

    def run(self, name: str, qos: str, uid: str, cpuset: str = "") -> str:
        """Runs a pod of the API; the id of its container."""
        spec = self.node.spec(name, qos, cpuset, uid=uid, namespace=self.name)
        return run_pod(self.node.direct, spec)[1]


def load(node: Object, metric: Object, pods: Iterable[Object]) -> NodeLoad:
    """A node as its objects describe it, with pods of the class koord-prod."""
    status = metric["status"]
    measured = {metric["name"]: amounts(metric["podUsage"]) for metric in status["podsMetric"]}
    capacity, allocatable = (
        amounts({"resources": node["status"][field]}) for field in ("capacity", "allocatable")
    )
    return NodeLoad(
        capacity,
        {name: capacity[name] - allocatable[name] for name in capacity},
        amounts(status["nodeMetric"]["systemUsage"]),
        amounts(status["nodeMetric"]["nodeUsage"]),
        amounts(status.get("prodReclaimableMetric", {}).get("resource", {})),
        tuple(
            PodLoad(
                "koord-prod",
                amounts({"resources": pod["spec"]["containers"][0]["resources"]["requests"]}),
                measured.get(pod["metadata"]["name"]),
                exclusive=pod["metadata"]["labels"][QOS] == "LSE",
            )
            for pod in pods
        ),
    )


def amounts(usage: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Milli-CPU and bytes of memory, as far as they are there."""
    resources, units = usage.get("resources", {}), {"cpu": milli, "memory": whole}
    return {name: unit(resources[name]) for name, unit in units.items() if name in resources}


def test_koord_manager_goes_on_where_the_agent_offered(api: ApiServer, node: TestNode) -> None:
    """The agent creates the NodeMetric and offers batch resources until koord-manager runs, whose
    amounts come from the agent's numbers, and whose NodeSLO the agent follows."""
    managed = ManagedNode(api, node, "managed")
    # More is reserved than any machine uses, so that only the pods' usage changes.
    managed.set_status(allocatable={**CAPACITY, "cpu": "700", "memory": "5Ti"})
    container = managed.run("busy", "LS", managed.add("busy", "LS", "10"))
    managed.run("owner", "LSE", managed.add("owner", "LSE", "1", "1"), "1")
    managed.add("waiting", "LS", "3")
    # Pods that are not measured, but for the waiting one, would count with more.
    least = {
        BATCH_CPU: 1000 * (1000 - 400 - 300 - 1 - 3) - batch_mid.STEPS["cpu"],
        BATCH_MEMORY: int(0.65 * (8 << 40)) - (3 << 40) - (1 << 30) - batch_mid.STEPS["memory"],
    }

    def measured() -> bool:
        sums = managed.sums()
        return all(sums.get(name, 0) > amount for name, amount in least.items())

    with busy(kernel_group(node.direct.container_status(container).pid, "cpuacct")):
        managed.start_agent(
            node,
            "--usage=true",
            "--node-metric=create",
            "--batch-resources=offer",
            "--node-slo=follow",
        )
        eventually("the usage of the pods counts", measured, SECONDS)
        sums = managed.sums()
        eventually("the agent offers", lambda: managed.writers(BATCH_CPU) == {FIELD_MANAGER})
        koordcontrol.configure(
            api,
            colocation_config={
                "enable": True,
                "metricReportIntervalSeconds": 5,
                "updateTimeThresholdSeconds": 1,
            },
            resource_threshold_config={
                "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 55}
            },
        )
        with koordcontrol.manager(api) as manager:
            manager.eventually("the NodeMetric has a policy", lambda: managed.interval() == 5)
            before = managed.update_time()
            manager.eventually("the agent reports", lambda: managed.update_time() > before)
            manager.eventually("the agent follows the NodeSLO", managed.follows_thresholds)
            manager.eventually("the agent offers nothing", lambda: not managed.sums())
            manager.eventually(
                "koord-manager alone writes the amounts",
                lambda: managed.writers(BATCH_CPU) == {koordcontrol.MANAGER},
            )
            for name, amount in managed.allocatable(BATCH_CPU, BATCH_MEMORY).items():
                step = batch_mid.STEPS[name.rpartition("-")[2]]
                assert abs(amount - sums[name]) <= step, name

            managed.set_status(allocatable=CAPACITY)
            manager.eventually("the system's usage counts as in ours", managed.as_computed)
            manager.eventually("both write the NodeResourceTopology", managed.has_both_reports)
    assert "was changed by" not in node.log("agent")


def test_koord_scheduler_places_pods_by_the_reports_and_the_agent_enforces_it(
    api: ApiServer, node: TestNode
) -> None:
    """koord-manager creates the NodeMetric, which the agent fills."""
    scheduled = ManagedNode(api, node, "scheduled")
    objects.priority_class(api, "koord-prod", 9500)
    koordcontrol.configure(
        api,
        colocation_config={
            "enable": True,
            "metricReportIntervalSeconds": 2,
            "metricAggregatePolicy": {"durations": ["40s"]},
        },
    )
    gpus = GpuNode(node, gpumachines.dgx1())
    scheduled.start_agent(node, *gpus.path_flags, "--usage=true", variables=gpus.environ)
    node.start_proxy()
    eventually("the node reports its CPUs and zones", scheduled.reported, SECONDS)
    eventually(
        "the node reports its GPUs",
        lambda: scheduled.allocatable(*GPU_REQUEST).keys() == GPU_REQUEST.keys(),
        SECONDS,
    )
    with koordcontrol.manager(api), koordcontrol.scheduler(api) as scheduler:
        shared = scheduled.schedule(scheduler, "shared", "LS", LITTLE)
        _, neighbour = scheduled.run_scheduled(shared)
        for qos in ("LSE", "LSR"):
            name = qos.lower()
            pod = scheduled.schedule(scheduler, name, qos, {**LITTLE, "cpu": "1"})
            cpuset = json.loads(pod["metadata"]["annotations"][STATUS])["cpuset"]
            sandbox, container = scheduled.run_scheduled(pod)
            assert node.cpus(container) == cpuset
            assert not CpuSet.parse(node.cpus(neighbour)) & CpuSet.parse(cpuset)
            remove_pod(node.direct, sandbox)
            objects.force_delete(api, scheduled.name, name)

        pod = scheduled.schedule(scheduler, "trainer", "LS", {**LITTLE, **GPU_REQUEST})
        allocated = json.loads(pod["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]
        (minor,) = (device["minor"] for device in allocated)
        uuids = {card.minor: card.uuid for card in gpus.machine.cards}
        allocated_uuid, other_uuid = uuids.pop(minor), next(iter(uuids.values()))
        _, container = scheduled.run_scheduled(pod, NVIDIA_VISIBLE_DEVICES=other_uuid)
        info = json.loads(node.containerd.ctr("containers", "info", container))
        assert f"NVIDIA_VISIBLE_DEVICES={allocated_uuid}" in info["Spec"]["process"]["env"]

        scheduler.eventually("the used memory is reported", scheduled.used_memory_bytes)
        twice = str(2 * scheduled.used_memory_bytes())
        scheduled.set_status(capacity={"memory": twice}, allocatable={"memory": twice})
        waits_for_less_load(scheduled, scheduler, "average", {})
        aggregation = {"usageAggregationType": "p95", "usageAggregatedDuration": "40s"}
        waits_for_less_load(scheduled, scheduler, "p95", aggregation)


def waits_for_less_load(
    scheduled: ManagedNode,
    scheduler: koordcontrol.KoordProcess,
    name: str,
    aggregation: Mapping[str, str],
) -> None:
    """A pod waits while the NodeMetric is above a threshold of the node. `aggregation`: the
    aggregated usage that counts, empty for the average."""

    def set_threshold(percent: int) -> None:
        thresholds: Object = {"usageThresholds": {"memory": percent}, **aggregation}
        value = json.dumps({"aggregatedUsage": thresholds} if aggregation else thresholds)
        annotations = {"scheduling.koordinator.sh/usage-thresholds": value}
        scheduled.api.admin.merge(scheduled.path, {"metadata": {"annotations": annotations}})

    set_threshold(30)
    path = scheduled.create(name, "LS", LITTLE)
    reason = "memory aggregated usage exceed" if aggregation else "memory usage exceed"

    def refused() -> bool:
        pod = koordcontrol.stored(scheduled.api, path)
        if "nodeName" in pod["spec"]:  # before koord-scheduler had read threshold or usage
            objects.force_delete(scheduled.api, scheduled.name, name)
            scheduled.create(name, "LS", LITTLE)
        messages = (
            condition.get("message", "") for condition in pod["status"].get("conditions", ())
        )
        return any(reason in message for message in messages)

    scheduler.eventually(f"pod {name} waits", refused)
    set_threshold(95)
    scheduler.eventually(f"pod {name} is placed", lambda: scheduled.has_pod(name))
