"""Memory nodes, limits and a CPU that goes away, on four NUMA nodes: set by proxy and agent, and
all given back."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import yaml

from agent.model.annotations import EXTENDED_RESOURCE_SPEC, RESOURCE_STATUS, SHARED_CONTAINERS
from agent.model.node_annotations import NUMA_MEMORY_POLICY
from agent.proto import cri_pb2 as pb
from demo.containerd import Containerd
from demo.pods import PodSpec, create_container, create_request, run_pod, run_sandbox
from demo.pods import start_container as start
from tests.integration.harness import TestNode, fresh_node, kernel_group
from tests.waiting import eventually

CPU_5 = pathlib.Path("/sys/devices/system/cpu/cpu5/online")
AMOUNTS = {
    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"},
    "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "128Mi"},
}


def topology(node: TestNode) -> dict[str, Any]:
    path = pathlib.Path(node.state, "objects/noderesourcetopology/node-a.yaml")
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def created(node: TestNode, spec: PodSpec, sandbox: str, name: str, quota: int = 0) -> str:
    request = create_request(spec, sandbox, name)
    if quota:
        request.config.linux.resources.cpu_quota = quota
        request.config.linux.resources.cpu_period = 100_000
    container = create_container(node.proxied, request)
    start(node.proxied, container)
    return container


def test_memory_and_limits_are_set_and_given_back(containerd: Containerd) -> None:
    with fresh_node(containerd) as node:
        objects = pathlib.Path(node.state, "objects/node")
        objects.mkdir(parents=True)
        label = {"name": "node-a", "labels": {NUMA_MEMORY_POLICY: ""}}
        about = {"apiVersion": "v1", "kind": "Node", "metadata": label}
        (objects / "node-a.yaml").write_text(yaml.safe_dump(about))

        bound = json.dumps({"numaNodeResources": [{"node": 2, "resources": {"cpu": "2"}}]})
        _, early = run_pod(node.direct, node.spec("early", annotations={RESOURCE_STATUS: bound}))
        node.start_agent("--migrate-memory=true")
        node.start_proxy("--hold-seconds=30")
        eventually("bound", lambda: node.cpus(early) == "8-11")
        eventually("memory bound", lambda: value(node, early, "cpuset.mems") == "2")

        owner = node.spec("owner", "LSE", "4-7", annotations={SHARED_CONTAINERS: "envoy"})
        sandbox = run_sandbox(node.proxied, owner)
        app = created(node, owner, sandbox, "app", 50_000)
        envoy = created(node, owner, sandbox, "envoy", 60_000)
        pod_max = kernel_group(node.direct.container_placement(app).pid, "cpu").parent / "cpu.max"
        pod_max.write_text("80000 100000")

        batch = node.spec("batch", "BE", kube_class="besteffort")
        batch.annotations[EXTENDED_RESOURCE_SPEC] = json.dumps({"containers": {"main": AMOUNTS}})
        batch_sandbox = run_sandbox(node.proxied, batch)
        main = created(node, batch, batch_sandbox, "main")

        assert (node.cpus(app), value(node, app, "cpuset.mems")) == ("4-7", "1")
        assert value(node, app, "cpu.max") == "max 100000"
        assert (node.cpus(envoy), value(node, envoy, "cpu.max")) == ("0-3,8-15", "60000 100000")
        assert limits(node, main) == ("100000 100000", "20", str(128 << 20))
        pod_of_batch = kernel_group(node.direct.container_placement(main).pid, "cpu").parent
        eventually("pod held", lambda: (pod_of_batch / "cpu.weight").read_text() == "20\n")
        assert (pod_of_batch / "memory.max").read_text() == f"{128 << 20}\n"
        linux = pb.LinuxContainerResources(cpu_shares=512)
        request = pb.UpdateContainerResourcesRequest(container_id=app, linux=linux)
        node.proxied.call("UpdateContainerResources", request, pb.UpdateContainerResourcesResponse)
        assert (value(node, app, "cpuset.mems"), value(node, app, "cpu.weight")) == ("1", "20")
        eventually("pod not limited", lambda: pod_max.read_text() == "max 100000\n")

        CPU_5.write_text("0")
        try:
            eventually("the owner keeps the others", lambda: node.cpus(app) == "4,6-7")
            vanished = "CPUs 5 of its own are offline"
            eventually("told", lambda: vanished in node.log("agent"))
            assert node.metric("topolet_owned_cpus_offline") == 1
            eventually("reported", lambda: cpus_of_node_1(node) == "3")
        finally:
            CPU_5.write_text("1")
        eventually("the owner has it back", lambda: node.cpus(app) == "4-7")
        assert node.cpus(envoy) == "0-3,8-15"
        eventually("reported again", lambda: cpus_of_node_1(node) == "4")
        assert node.metric("topolet_cpu_overlaps_total") == 0

        node.stop_agent()
        socket = f"--runtime-endpoint=unix://{containerd.socket}"
        done = node.run_cli("restore", f"--state-dir={node.state}", socket)
        assert done.returncode == 0, done.stderr
        assert {node.cpus(each) for each in (app, envoy, main, early)} == {"0-15"}
        assert value(node, app, "cpu.max") == "50000 100000"
        assert pod_max.read_text() == "80000 100000\n"
        assert limits(node, main) == ("max 100000", "10", "max")
        mems = {value(node, each, "cpuset.mems.effective") for each in (app, early)}
        assert mems == {"0-3"}


def value(node: TestNode, container: str, file: str) -> str:
    return node.kernel_value(container, file.partition(".")[0], file)


def limits(node: TestNode, container: str) -> tuple[str, ...]:
    files = ("cpu.max", "cpu.weight", "memory.max")
    return tuple(value(node, container, file) for file in files)


def cpus_of_node_1(node: TestNode) -> str:
    resources = topology(node)["zones"][1]["resources"]
    return next(each["capacity"] for each in resources if each["name"] == "cpu")
