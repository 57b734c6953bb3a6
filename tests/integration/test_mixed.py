"""A container with CPUs of its own that runs on the pool too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.model.pod.annotations import CRIO_SHARED, MIXED_CONTAINERS
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)
from tests.integration.harness import NO_FULL_PASS, TestNode
from tests.integration.nri_node import nri_node
from tests.waiting import eventually


def told(node: TestNode, container: str) -> dict[str, Any]:
    """What its process reads."""
    pid = node.direct.container_status(container).pid
    with open(f"/proc/{pid}/root/run/topolet/cpus", encoding="ascii") as file:
        read: dict[str, Any] = json.load(file)
        return read


def check_told(node: TestNode, container: str) -> None:
    """Its process has the variables, once it is the container's own and not the runtime's."""
    pid = node.direct.container_status(container).pid

    def has_them() -> bool:
        with open(f"/proc/{pid}/environ", encoding="ascii") as file:
            variables = set(file.read().split("\0"))
        return variables >= {"TOPOLET_OWN_CPUS=1", "TOPOLET_SHARED_CPUS=0"}

    eventually("the process has both variables", has_them)


@pytest.mark.parametrize(
    "annotations", [{MIXED_CONTAINERS: "main"}, {f"{CRIO_SHARED}main": "enable"}]
)
def test_a_mixed_container_follows_the_pool_and_is_told(
    node: TestNode, annotations: dict[str, str]
) -> None:
    node.start_agent(NO_FULL_PASS)
    node.start_proxy()
    _, mixed = run_pod(node.proxied, node.spec("mixed", "LSR", "1", annotations=annotations))
    check_told(node, mixed)
    assert node.cpus(mixed) == "0-1"
    assert node.kernel_value(mixed, "cpu", "cpu.cfs_quota_us") == "-1"
    whole = {"cpus": "0-1", "own": "1", "shared": "0"}
    assert told(node, mixed) == {**whole, "generation": 1}

    sandbox, owner = run_pod(node.proxied, node.spec("owner", "LSE", "0"))
    assert (node.cpus(mixed), node.cpus(owner)) == ("1", "0")
    # The second generation was the warning.
    less = {"cpus": "1", "own": "1", "shared": "", "generation": 3}
    assert told(node, mixed) == less

    node.kill_agent()
    node.start_agent(NO_FULL_PASS)
    assert (node.cpus(mixed), node.cpus(owner)) == ("1", "0")
    assert told(node, mixed) == less
    remove_pod(node.proxied, sandbox)
    eventually("the pool has its CPU again", lambda: node.cpus(mixed) == "0-1")
    eventually("it is told", lambda: told(node, mixed) == {**whole, "generation": 4})

    node.kill_agent()
    node.start_agent(NO_FULL_PASS)
    assert node.cpus(mixed) == "0-1"
    assert node.metric("topolet_cpu_overlaps_total") == 0
    assert told(node, mixed) == {**whole, "generation": 4}


def test_the_nri_plugin_creates_mixed_containers_and_its_guard_lets_them_pass(
    containerd2: Containerd,
) -> None:
    with nri_node(containerd2) as nri:
        node = nri.node
        node.start_agent(NO_FULL_PASS)
        nri.start_guard()
        nri.start_plugin()
        spec = node.spec("mixed", "LSR", "1", annotations={MIXED_CONTAINERS: "main"})
        _, mixed = run_pod(node.direct, spec)
        check_told(node, mixed)
        assert node.cpus(mixed) == "0-1"
        assert told(node, mixed)["shared"] == "0"
        sandbox, owner = run_pod(node.direct, node.spec("owner", "LSE", "0"))
        assert (node.cpus(mixed), node.cpus(owner)) == ("1", "0")
        remove_pod(node.direct, sandbox)
        eventually("the pool has its CPU again", lambda: node.cpus(mixed) == "0-1")
        assert node.metric("topolet_cpu_overlaps_total") == 0


def test_a_static_kubelets_container_is_mixed_whatever_the_kubelet_requests(
    node: TestNode,
) -> None:
    spec = node.spec("plain", kube_class="guaranteed", annotations={MIXED_CONTAINERS: "main"})
    checkpoint = {
        "policyName": "static",
        "defaultCpuSet": "0",
        "entries": {spec.uid: {"main": "1"}},
    }
    kubelet = node.folder / "kubelet"
    kubelet.mkdir()
    (kubelet / "cpu_manager_state").write_text(json.dumps(checkpoint))
    configuration = node.folder / "static.yaml"
    configuration.write_text(
        "{kind: KubeletConfiguration, apiVersion: kubelet.config.k8s.io/v1beta1, "
        "cpuManagerPolicy: static, reservedSystemCPUs: '0'}"
    )
    folder = f"--kubelet-dir={kubelet}"
    node.start_agent(NO_FULL_PASS, folder, f"--kubelet-config={configuration}")
    node.start_proxy()
    request = create_request(spec, run_sandbox(node.proxied, spec))
    resources = request.config.linux.resources
    resources.cpu_shares, resources.cpuset_cpus = 1024, "1"
    resources.cpu_period, resources.cpu_quota = 100_000, 100_000
    mixed = create_container(node.proxied, request)
    start_container(node.proxied, mixed)
    assert node.cpus(mixed) == "0-1"
    assert node.kernel_value(mixed, "cpu", "cpu.cfs_quota_us") == "-1"
    check_told(node, mixed)
    update_container(node.proxied, mixed, cpuset_cpus="1", cpu_quota=100_000)
    assert node.cpus(mixed) == "0-1"
    assert node.direct.container_status(mixed).resources.cpuset == "0-1"
    assert node.kernel_value(mixed, "cpu", "cpu.cfs_quota_us") == "-1"
