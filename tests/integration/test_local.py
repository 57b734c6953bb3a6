"""A node-local CPU policy on real containers: the kubelet's requests determine the owners."""

from __future__ import annotations

import json

import pytest

from agent.model.linux_resources import CpuQuota
from agent.model.snapshot import CpuPolicy
from agent.model.verdict import Code
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)
from tests.integration.harness import NO_FULL_PASS, TestNode
from tests.waiting import eventually

RESERVED = "--reserved-cpus=0"


def start_with_policy(node: TestNode, policy: CpuPolicy) -> TestNode:
    node.start_agent(f"--cpu-policy={policy}", RESERVED, NO_FULL_PASS)
    node.start_proxy()
    return node


def whole_cpus(spec: PodSpec, sandbox: str, cpus: int) -> pb.CreateContainerRequest:
    """The request with which a kubelet creates a container of a Guaranteed pod."""
    request = create_request(spec, sandbox)
    resources = request.config.linux.resources
    resources.cpu_shares = 1024 * cpus
    resources.cpu_period, resources.cpu_quota = 100_000, 100_000 * cpus
    return request


def run_guaranteed(node: TestNode, name: str, cpus: int) -> tuple[PodSpec, str, str]:
    spec = node.spec(name, kube_class="guaranteed")
    sandbox = run_sandbox(node.proxied, spec)
    container = create_container(node.proxied, whole_cpus(spec, sandbox, cpus))
    start_container(node.proxied, container)
    return spec, sandbox, container


def other_cpu(cpu: str) -> str:
    return {"0": "1", "1": "0"}[cpu]


def stop(node: TestNode, container: str) -> None:
    request = pb.StopContainerRequest(container_id=container)
    node.direct.call("StopContainer", request, pb.StopContainerResponse)


def test_whole_cpu_is_exclusive_until_the_pod_is_deleted(node: TestNode) -> None:
    start_with_policy(node, "static")
    _, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    assert node.cpus(ls) == "0-1"
    spec, sandbox, container = run_guaranteed(node, "g", 1)
    own = node.cpus(container)
    assert own in ("0", "1")
    assert node.cpus(ls) == other_cpu(own)
    assert node.kernel_value(container, "cpu", "cpu.cfs_quota_us") == "-1"
    assert node.metric("topolet_cpu_overlaps_total") == 0
    eventually(
        "the pause container has the shared CPUs",
        lambda: node.sandbox_cpus(sandbox) == other_cpu(own),
    )

    stop(node, container)
    again = whole_cpus(spec, sandbox, 1)
    again.config.metadata.attempt = 1
    container = create_container(node.proxied, again)
    start_container(node.proxied, container)
    assert node.cpus(container) == own, "an ended container keeps its CPU for its pod"
    assert node.cpus(ls) == other_cpu(own)

    remove_pod(node.proxied, sandbox)
    eventually("the pool has both CPUs", lambda: node.cpus(ls) == "0-1")


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_killed_agent_finds_the_owners_again(node: TestNode, with_snapshot: bool) -> None:
    start_with_policy(node, "static")
    shared, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    _, sandbox, container = run_guaranteed(node, "g", 1)
    own = node.cpus(container)
    pauses = lambda: {node.sandbox_cpus(shared), node.sandbox_cpus(sandbox)}  # noqa: E731
    eventually("the pause containers have the shared CPUs", lambda: pauses() == {other_cpu(own)})
    node.kill_agent()
    if not with_snapshot:
        (node.state / "snapshot.json").unlink()
    node.start_agent("--cpu-policy=static", RESERVED)
    assert (node.cpus(container), node.cpus(ls)) == (own, other_cpu(own))
    assert node.metric("topolet_cgroup_writes_total") == 0


def test_container_without_cpus_left_is_refused_with_the_reason(node: TestNode) -> None:
    start_with_policy(node, "static")
    _, _, first = run_guaranteed(node, "first", 1)
    spec = node.spec("second", kube_class="guaranteed")
    sandbox = run_sandbox(node.proxied, spec)
    with pytest.raises(RpcError) as raised:
        create_container(node.proxied, whole_cpus(spec, sandbox, 1))
    assert raised.value.code == Code.UNAVAILABLE
    assert "pod default/second: no CPUs after" in str(raised.value)
    assert "not enough CPUs are free: 1 requested, 0 available" in str(raised.value)
    assert node.cpus(first) in ("0", "1")


def test_resize_in_place_to_a_fraction_of_a_cpu_returns_to_the_pool(node: TestNode) -> None:
    start_with_policy(node, "static")
    _, _, container = run_guaranteed(node, "g", 1)
    resized: dict[str, int] = {"cpu_shares": 512, "cpu_period": 100_000, "cpu_quota": 50_000}
    update_container(node.proxied, container, **resized)
    eventually("the container has the shared CPUs", lambda: node.cpus(container) == "0-1")
    eventually(
        "its quota is in force",
        lambda: node.kernel_value(container, "cpu", "cpu.cfs_quota_us") == "50000",
    )
    # The agent's update of the runtime with the pool must not restore the quota before the resize,
    # or its absence, for longer than the notification of the resize takes.
    resources = lambda: node.direct.container_status(container).resources  # noqa: E731
    eventually(
        "the runtime has both",
        lambda: (resources().cpuset, resources().quota) == ("0-1", CpuQuota(50_000)),
    )
    assert node.kernel_value(container, "cpu", "cpu.cfs_quota_us") == "50000"


def test_dynamic_container_reads_its_cpus_in_a_file(node: TestNode) -> None:
    start_with_policy(node, "dynamic")
    _, _, container = run_guaranteed(node, "g", 1)
    pid = node.direct.container_status(container).pid
    with open(f"/proc/{pid}/root/run/topolet/cpus", encoding="ascii") as file:
        assert json.load(file) == {"cpus": node.cpus(container), "generation": 1}
    with open(f"/proc/{pid}/mountinfo", encoding="ascii") as file:
        (mount,) = [line.split() for line in file if " /run/topolet " in line]
    assert "ro" in mount[5].split(",")
    node.stop_agent()
    assert node.restore().returncode == 0
    with open(f"/proc/{pid}/root/run/topolet/cpus", encoding="ascii") as file:
        assert json.load(file) == {"cpus": "0-1", "generation": 2}
