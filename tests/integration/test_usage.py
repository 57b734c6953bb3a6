"""The use of CPU and memory of real pods, in the NodeMetric of a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.__main__ import main
from agent.kube.errors import KubeError
from agent.model.quantities import milli, whole
from agent.node.batch_resources import ORIGIN, THIRD_PARTY
from agent.usage import OFFERED_FILE
from tests.deploy.manifests import objects
from tests.fixtures.pods import run_pod
from tests.integration.apiserver.definitions import NODE_METRIC_DEFINITION, definition
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode, busy, kernel_group
from tests.integration.incluster import READ_RULES, WRITE_RULES, ClusterNode
from tests.waiting import eventually

TIMEOUT_SECONDS = 60.0
NODE_METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
_POLICY = {"reportIntervalSeconds": 1, "nodeAggregatePolicy": {"durations": ["4s", "30m"]}}
DEFINITION = definition(
    "NodeMetric", "slo.koordinator.sh", default={"metricCollectPolicy": _POLICY}
)
"""A manager would write the policy."""
OF_SLO = {"apiGroups": ["slo.koordinator.sh"], "resources": ["*"], "verbs": ["*"]}


@pytest.fixture
def definitions(apiserver: ApiServer) -> ApiServer:
    for each in (*objects("crds"), DEFINITION):
        apiserver.apply(each)
    return apiserver


def test_the_use_of_a_busy_pod_is_in_the_node_metric_that_the_agent_creates(
    definitions: ApiServer, node: TestNode
) -> None:
    cluster_node = ClusterNode(definitions, node, "used", [*READ_RULES, *WRITE_RULES, OF_SLO])
    uid = cluster_node.pod("busy", "LS", "")
    spec = node.spec("busy", "LS", uid=uid, namespace="used")
    _, container = run_pod(node.direct, spec)
    group = kernel_group(node.direct.container_status(container).pid, "cpuacct")
    cluster_node.start_agent(
        node, "--usage=true", "--node-metric=create", "--koordlet-metrics=true"
    )

    def status() -> dict[str, Any]:
        try:
            body = json.loads(definitions.admin.get(f"{NODE_METRICS}/used"))
        except KubeError:
            return {}
        return dict(body.get("status", {}))

    def of_pod() -> dict[str, Any]:
        pods = status().get("podsMetric", ())
        return next((dict(each) for each in pods if each["name"] == "busy"), {})

    def used_by_pod() -> bool:
        """Whether also the samples of the machine span half of the shorter duration."""
        resources = of_pod().get("podUsage", {}).get("resources", {})
        recent = status().get("nodeMetric", {}).get("aggregatedNodeUsages", ({},))[0]
        return (
            milli(resources.get("cpu", 0)) > 50
            and "memory" in resources
            and bool(recent.get("usage"))
        )

    with busy(group):
        eventually("its CPU and memory are reported", used_by_pod, TIMEOUT_SECONDS)
    reported, pod = status(), of_pod()
    assert (pod["namespace"], pod["priority"], pod["qos"]) == ("used", "koord-prod", "LS")
    assert whole(pod["podUsage"]["resources"]["memory"]) > 0
    of_node = reported["nodeMetric"]
    usage, of_system = of_node["nodeUsage"]["resources"], of_node["systemUsage"]["resources"]
    assert milli(usage["cpu"]) >= milli(of_system["cpu"])
    assert whole(usage["memory"]) >= whole(of_system["memory"]) > 0
    assert milli(of_node["numaUsages"][0]["nodeUsage"]["resources"]["cpu"]) > 0
    recent, long = of_node["aggregatedNodeUsages"]
    assert milli(recent["usage"]["p99"]["resources"]["cpu"]) > 0
    assert long == {"usage": {}, "duration": "30m0s"}
    assert node.metric('topolet_pod_used_cpus{namespace="used",pod="busy"}') >= 0
    assert node.metric("topolet_node_used_memory_bytes") > 0
    assert node.metric('koordlet_node_used_memory_bytes{node="used"}') > 0
    assert node.metric("topolet_kernel_threads_cpu_seconds_total") > 0


def test_an_agent_that_offers_nothing_forgets_what_was_offered(node: TestNode) -> None:
    path = node.folder / "state" / OFFERED_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    node.start_agent()
    assert not path.exists()


def test_batch_resources_are_on_the_node_until_a_manager_gives_a_policy(
    apiserver: ApiServer, node: TestNode
) -> None:
    for kind_definition in (*objects("crds"), NODE_METRIC_DEFINITION):
        apiserver.apply(kind_definition)
    cluster_node = ClusterNode(apiserver, node, "offers", [*READ_RULES, *WRITE_RULES, OF_SLO])
    amounts = {"cpu": "64", "memory": "1Ti"}
    status = {"capacity": amounts, "allocatable": amounts}
    apiserver.admin.merge("/api/v1/nodes/offers/status", {"status": status})
    yarn = {"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "1250"}}
    text = json.dumps({"allocations": [yarn]})
    metadata = {"annotations": {THIRD_PARTY: text}}
    apiserver.admin.merge("/api/v1/nodes/offers", {"metadata": metadata})

    def offered() -> set[str]:
        allocatable = json.loads(apiserver.admin.get("/api/v1/nodes/offers"))["status"]
        return {name for name in allocatable["allocatable"] if name.startswith("kubernetes.io/")}

    flags = ("--usage=true", "--node-metric=create", "--batch-resources=offer")
    cluster_node.start_agent(node, *flags)
    batch_cpu = "kubernetes.io/batch-cpu"
    names = {batch_cpu, "kubernetes.io/batch-memory", "kubernetes.io/mid-cpu"}
    eventually("the Node has batch resources", lambda: names <= offered(), TIMEOUT_SECONDS)
    shared = json.loads(apiserver.admin.get("/api/v1/nodes/offers"))
    origin = json.loads(shared["metadata"]["annotations"][ORIGIN])["resources"][batch_cpu]
    report = cluster_node.reported()
    assert report is not None
    zones = [
        {resource["name"]: resource for resource in zone["resources"]} for zone in report["zones"]
    ]
    assert zones[0][batch_cpu]["available"] == zones[0][batch_cpu]["allocatable"]
    assert int(origin) - whole(shared["status"]["allocatable"][batch_cpu]) == 1250
    code = main(["explain", f"--state-dir={node.folder / 'state'}", "node", "batch-cpu"])
    assert code == 0
    node.kill_agent()
    policy = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}}
    apiserver.admin.merge(f"{NODE_METRICS}/offers", policy)
    cluster_node.start_agent(node, *flags)
    eventually("they are withdrawn", lambda: not offered(), TIMEOUT_SECONDS)
