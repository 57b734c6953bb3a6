"""Memory nodes, limits and offline CPUs on four NUMA nodes: set by proxy and agent, and all
restored."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import yaml

from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota
from agent.model.nrt.node_annotations import BIND_MEMORY, NUMA_MEMORY_POLICY
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC, RESOURCE_STATUS, SHARED_CONTAINERS
from tests.fixtures import image
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    run_pod,
    run_sandbox,
    update_container,
)
from tests.fixtures.pods import start_container as start
from tests.integration.harness import TestNode, fresh_node, kernel_group
from tests.waiting import eventually

OWN = "4-7"
LIMITS = ("cpu.max", "cpu.weight", "memory.max")
FILES = ("cpuset.cpus.effective", "cpuset.mems.effective", *LIMITS)
"""Effective CPUs: the kernel does not let a group with processes inherit its cpuset again, so a
restore gives it all CPUs of its parent."""
REPORTING = f"{image.BUSYBOX} grep _allowed_list /proc/self/status; exec {' '.join(image.SLEEP)}"
AMOUNTS = {
    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"},
    "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "128Mi"},
}


def topology(node: TestNode) -> dict[str, Any]:
    path = pathlib.Path(node.state, "objects/noderesourcetopology/node-a.yaml")
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def create(node: TestNode, spec: PodSpec, sandbox: str, name: str, quota: int = 0) -> str:
    request = create_request(spec, sandbox, name)
    if quota:
        request.config.linux.resources.cpu_quota = quota
        request.config.linux.resources.cpu_period = 100_000
    request.config.command[:] = [image.BUSYBOX, "sh", "-c", REPORTING]
    request.config.log_path = f"{name}.log"
    request.sandbox_config.log_directory = str(node.folder)
    container = create_container(node.proxied, request)
    start(node.proxied, container)
    return container


def group_of(node: TestNode, container: str) -> pathlib.Path:
    return kernel_group(node.direct.container_status(container).pid, "cpu")


def read(group: pathlib.Path, file: str) -> str:
    return (group / file).read_text().strip()


def values_of(group: pathlib.Path) -> dict[str, str]:
    return {file: read(group, file) for file in FILES}


def first_places(node: TestNode, name: str) -> dict[str, str]:
    """The first line of the container's log: the CPUs and memory nodes of its process."""
    log = pathlib.Path(node.folder, f"{name}.log")
    eventually(f"{name} reports", lambda: log.exists() and log.read_text().count("\n") == 2)
    lines = [line.split() for line in log.read_text().splitlines()]
    return {words[-2].partition("_")[0]: words[-1] for words in lines}


def set_online(cpus: str, on: str) -> None:
    for cpu in CpuSet.parse(cpus):
        pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(on)


def test_memory_and_limits_are_set_and_restored(containerd: Containerd) -> None:
    with fresh_node(containerd) as node:
        objects = pathlib.Path(node.state, "objects/node")
        objects.mkdir(parents=True)
        label = {"name": "node-a", "labels": {NUMA_MEMORY_POLICY: BIND_MEMORY}}
        about = {"apiVersion": "v1", "kind": "Node", "metadata": label}
        (objects / "node-a.yaml").write_text(yaml.safe_dump(about))

        amounts = json.dumps({"containers": {"main": AMOUNTS}})
        early_pod = node.spec("early", "BE", kube_class="besteffort")
        on_node_2 = [{"node": 2, "resources": {"kubernetes.io/batch-cpu": "500"}}]
        early_pod.annotations[RESOURCE_STATUS] = json.dumps({"numaNodeResources": on_node_2})
        early_pod.annotations[EXTENDED_RESOURCE_SPEC] = amounts
        _, early = run_pod(node.direct, early_pod)
        groups = [group_of(node, early), group_of(node, early).parent]
        before = {group: values_of(group) for group in groups}

        node.start_agent("--migrate-memory=true")
        node.start_proxy("--hold-seconds=30")
        eventually("the container is on its NUMA node", lambda: node.cpus(early) == "8-11")
        eventually(
            "its memory is on its NUMA node", lambda: value(node, early, "cpuset.mems") == "2"
        )
        expected_limits = "100000 100000", "20", str(128 << 20)
        eventually("its limits are set", lambda: limits(node, early) == expected_limits)

        owner = node.spec("owner", "LSE", OWN, annotations={SHARED_CONTAINERS: "envoy"})
        sandbox = run_sandbox(node.proxied, owner)
        app = create(node, owner, sandbox, "app", 50_000)
        envoy = create(node, owner, sandbox, "envoy", 60_000)
        pod_max = group_of(node, app).parent / "cpu.max"
        pod_max.write_text("80000 100000")

        batch = node.spec("batch", "BE", kube_class="besteffort")
        batch.annotations[EXTENDED_RESOURCE_SPEC] = amounts
        main = create(node, batch, run_sandbox(node.proxied, batch), "main")

        assert (node.cpus(app), value(node, app, "cpuset.mems")) == (OWN, "1")
        assert first_places(node, "app") == {"Cpus": OWN, "Mems": "1"}
        assert value(node, app, "cpu.max") == "max 100000"
        assert (node.cpus(envoy), value(node, envoy, "cpu.max")) == ("0-3,8-15", "60000 100000")
        assert first_places(node, "envoy") == {"Cpus": "0-3,8-15", "Mems": "0-3"}
        assert limits(node, main) == expected_limits
        pod_of_batch = group_of(node, main).parent
        eventually(
            "the pod's CPU weight is set",
            lambda: (pod_of_batch / "cpu.weight").read_text() == "20\n",
        )
        limit = f"{128 << 20}\n"
        eventually(
            "the pod's memory limit is set",
            lambda: (pod_of_batch / "memory.max").read_text() == limit,
        )
        update_container(node.proxied, app, cpu_shares=512)
        assert (value(node, app, "cpuset.mems"), value(node, app, "cpu.weight")) == ("1", "20")
        eventually("the pod has no quota", lambda: pod_max.read_text() == "max 100000\n")

        check_cpus_that_go_offline(
            node, app, envoy, [group_of(node, each) for each in (main, early)]
        )

        node.stop_agent()
        done = node.restore()
        assert done.returncode == 0, done.stderr
        assert {group: values_of(group) for group in groups} == before
        assert {node.cpus(each) for each in (app, envoy, main, early)} == {"0-15"}
        assert value(node, app, "cpu.max") == "50000 100000"
        assert pod_max.read_text() == "80000 100000\n"
        assert limits(node, main) == ("max 100000", "10", "max")
        mems = {value(node, each, "cpuset.mems.effective") for each in (app, early)}
        assert mems == {"0-3"}


def check_cpus_that_go_offline(
    node: TestNode, app: str, envoy: str, others: list[pathlib.Path]
) -> None:
    """First one CPU of the owner and one of the pool go offline, then all of the owner."""
    others = [group_of(node, envoy), *others]
    own, owned = group_of(node, app), CpuSet.parse(OWN)

    def eventually_isolated(what: str, check: Callable[[], object]) -> None:
        def isolated_and() -> object:
            for group in others:
                cpus = CpuSet.parse(read(group, "cpuset.cpus"))
                assert cpus, f"{group} inherits its CPUs"
                assert not cpus & owned, f"{group} got CPUs of the owner: {cpus}"
            return check()

        eventually(what, isolated_and)

    try:
        set_online("5,12", "0")
        eventually_isolated(
            "the owner keeps its other CPUs", lambda: read(own, "cpuset.cpus") == "4,6-7"
        )
        eventually_isolated(
            "the pool keeps its other CPUs",
            lambda: read(others[0], "cpuset.cpus") == "0-3,8-11,13-15",
        )
        eventually_isolated(
            "it is logged", lambda: "CPUs 5 of its own are offline" in node.log("agent")
        )
        eventually_isolated("counted", lambda: node.metric("topolet_exclusive_cpus_offline") == 1)
        eventually_isolated(
            "reported", lambda: [cpus_of_node(node, each) for each in (1, 3)] == ["3", "3"]
        )
        eventually_isolated(
            "the pool of the NUMA node is reported", lambda: pool_of_node_3(node) == "13-15"
        )
        eventually_isolated("readiness does not change", lambda: node.get("/readyz")[0] == 200)
        restart_agent(node)
        eventually_isolated(
            "the restarted agent counts it",
            lambda: node.metric("topolet_exclusive_cpus_offline") == 1,
        )
        assert read(own, "cpuset.cpus") == "4,6-7"
        assert read(others[0], "cpuset.cpus") == "0-3,8-11,13-15"
        set_online("12", "1")
        set_online("4,6-7", "0")
        eventually_isolated("the owner shares", lambda: read(own, "cpuset.cpus") == "0-3,8-15")
        eventually_isolated(
            "it is logged", lambda: "CPUs 4-7 of its own are offline" in node.log("agent")
        )
        eventually_isolated("counted", lambda: node.metric("topolet_exclusive_cpus_offline") == 4)
        eventually_isolated("its quota is restored", lambda: read(own, "cpu.max") == "50000 100000")
        eventually_isolated(
            "the runtime has the values",
            lambda: runtime_values(node, app) == (CpuQuota(50_000), "0-3,8-15"),
        )
        assert read(own, "cpu.max") == "50000 100000"
        restart_agent(node)
        eventually_isolated(
            "the restarted agent counts it",
            lambda: node.metric("topolet_exclusive_cpus_offline") == 4,
        )
        assert read(own, "cpuset.cpus") == "0-3,8-15"
    finally:
        set_online("4-7,12", "1")
    eventually_isolated("the owner has them again", lambda: read(own, "cpuset.cpus") == OWN)
    eventually_isolated("without a quota", lambda: read(own, "cpu.max") == "max 100000")
    eventually_isolated("with its memory", lambda: read(own, "cpuset.mems") == "1")
    eventually_isolated(
        "the pool has them again", lambda: read(others[0], "cpuset.cpus") == "0-3,8-15"
    )
    eventually_isolated(
        "reported again", lambda: [cpus_of_node(node, each) for each in (1, 3)] == ["4", "4"]
    )
    eventually_isolated(
        "it is not counted any more", lambda: node.metric("topolet_exclusive_cpus_offline") == 0
    )
    assert node.metric("topolet_cpu_overlaps_total") == 0


def restart_agent(node: TestNode) -> None:
    """Restarts the agent while CPUs are offline."""
    node.kill_agent()
    node.start_agent("--migrate-memory=true")


def runtime_values(node: TestNode, container: str) -> tuple[CpuQuota | None, str | None]:
    """The quota and the cpuset of the runtime."""
    resources = node.direct.container_status(container).resources
    return resources.quota, resources.cpuset


def value(node: TestNode, container: str, file: str) -> str:
    return node.kernel_value(container, file.partition(".")[0], file)


def limits(node: TestNode, container: str) -> tuple[str, ...]:
    return tuple(value(node, container, file) for file in LIMITS)


def cpus_of_node(node: TestNode, number: int) -> str:
    resources = topology(node)["zones"][number]["resources"]
    return next(each["capacity"] for each in resources if each["name"] == "cpu")


def pool_of_node_3(node: TestNode) -> str:
    pools = json.loads(
        topology(node)["metadata"]["annotations"]["node.koordinator.sh/cpu-shared-pools"]
    )
    return next(each["cpuset"] for each in pools if each["node"] == 3)
