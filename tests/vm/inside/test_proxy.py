"""Proxy and agent together on four NUMA nodes; every test leaves the seven pods as they were."""

import json
import pathlib
from collections.abc import Iterator

import msgspec
import pytest
import yaml

from agent.proto import cri_pb2 as pb
from demo import image
from demo.containerd import Containerd
from demo.pods import (
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
)
from tests.integration.harness import TestNode, eventually, fresh_node
from tests.vm.inside.pods import BE_POOLS, LS_POOLS, RUNS_ON, owners, sharers

HOLD = "--hold-seconds=30"
"""The guest is slow: the agent's answer must not come too late for its slowness alone."""


LS_WITHOUT_NODE_3 = {"ls": "0-3,10-11", "unlabelled-ls": "0-3,10-11"}
BE_WITHOUT_NODE_3 = {"be": "0-3,8-11", "unlabelled-be": "0-3,8-11"}


class Settled(msgspec.Struct):
    """The node with its pods: container ids by pod name."""

    node: TestNode
    ids: dict[str, str]

    def cpus(self) -> dict[str, str]:
        return {name: self.node.cpus(container) for name, container in self.ids.items()}


@pytest.fixture(scope="module")
def settled(containerd: Containerd) -> Iterator[Settled]:
    """Sharers first, so that pools must shrink when the owners come."""
    with fresh_node(containerd) as node:
        node.start_agent()
        node.start_proxy(HOLD)
        it = Settled(node, {})
        for spec in sharers(node):
            _, it.ids[spec.name] = run_pod(node.proxied, spec)
        on_all = {name: "8-11" if name == "on-node-2" else "0-15" for name in it.ids}
        assert it.cpus() == on_all
        for spec in owners(node):
            _, it.ids[spec.name] = run_pod(node.proxied, spec)
        yield it


def test_every_pod_runs_where_it_belongs(settled: Settled) -> None:
    assert settled.cpus() == RUNS_ON
    assert settled.node.metric("topolet_cpu_overlaps_total") == 0


@pytest.mark.parametrize(
    ("qos", "cpuset", "first", "others"),
    [
        ("LSE", "12-15", "12-15", LS_WITHOUT_NODE_3 | BE_WITHOUT_NODE_3),
        ("LSR", "12-15", "12-15", LS_WITHOUT_NODE_3),
        ("LS", "", RUNS_ON["ls"], {}),
        ("BE", "", RUNS_ON["be"], {}),
    ],
)
def test_first_step_is_on_the_right_cpus_and_the_last_gives_them_back(
    settled: Settled, qos: str, cpuset: str, first: str, others: dict[str, str]
) -> None:
    """The container itself writes down where its first process may run."""
    node = settled.node
    spec = node.spec("witness", qos, cpuset)
    sandbox = run_sandbox(node.proxied, spec)
    request = create_request(spec, sandbox)
    report = f"{image.BUSYBOX} grep Cpus_allowed_list /proc/self/status"
    request.config.command[:] = [
        image.BUSYBOX,
        "sh",
        "-c",
        f"{report}; exec {' '.join(image.SLEEP)}",
    ]
    request.config.log_path = "witness.log"
    request.sandbox_config.log_directory = str(node.folder)
    container = create_container(node.proxied, request)
    assert settled.cpus() == RUNS_ON | others, "before it is started"
    start_container(node.proxied, container)
    log = node.folder / "witness.log"
    eventually("the container reports", lambda: log.exists() and "allowed" in log.read_text())
    assert log.read_text().split()[-1] == first
    log.unlink()
    assert node.cpus(container) == first
    remove_pod(node.proxied, sandbox)
    eventually("all as before", lambda: settled.cpus() == RUNS_ON)
    assert node.metric("topolet_cpu_overlaps_total") == 0


def test_pools_are_told_by_numa_node(settled: Settled) -> None:
    path = pathlib.Path(settled.node.state, "objects/noderesourcetopology/node-a.yaml")
    topology = yaml.safe_load(path.read_text())
    told = topology["metadata"]["annotations"]
    assert json.loads(told["node.koordinator.sh/cpu-shared-pools"]) == LS_POOLS
    assert json.loads(told["node.koordinator.sh/be-cpu-shared-pools"]) == BE_POOLS
    available = [
        next(each["available"] for each in zone["resources"] if each["name"] == "cpu")
        for zone in topology["zones"]
    ]
    assert available == ["4", "0", "2", "4"]
    costs = [[each["value"] for each in zone["costs"]] for zone in topology["zones"]]
    assert costs[0] == [10, 12, 21, 21]


def test_update_changes_every_field_but_the_cpus(settled: Settled) -> None:
    node, lse = settled.node, settled.ids["lse"]
    linux = pb.LinuxContainerResources(
        cpuset_cpus="0-3",
        cpu_shares=512,
        cpu_period=100_000,
        cpu_quota=150_000,
        memory_limit_in_bytes=64 << 20,
    )
    request = pb.UpdateContainerResourcesRequest(container_id=lse, linux=linux)
    node.proxied.call("UpdateContainerResources", request, pb.UpdateContainerResourcesResponse)
    assert settled.cpus() == RUNS_ON
    assert node.kernel_value(lse, "", "cpuset.cpus") == "4-7"
    assert node.kernel_value(lse, "", "cpu.weight") == "20"
    assert node.kernel_value(lse, "", "cpu.max") == "150000 100000"
    assert node.kernel_value(lse, "", "memory.max") == str(64 << 20)


def test_kill_of_agent_and_proxy_changes_nothing(settled: Settled) -> None:
    node = settled.node
    node.kill_agent()
    node.kill_proxy()
    assert settled.cpus() == RUNS_ON
    node.start_proxy(HOLD)
    node.start_agent()
    assert settled.cpus() == RUNS_ON
    assert node.metric("topolet_cgroup_writes_total") == 0
    assert node.metric("topolet_cpu_overlaps_total") == 0


def test_container_made_behind_the_proxy_below_slices_is_corrected(settled: Settled) -> None:
    node = settled.node
    spec = node.spec("behind", kube_class="besteffort", slices=True)
    sandbox, container = run_pod(node.direct, spec)
    eventually("corrected", lambda: node.cpus(container) == RUNS_ON["unlabelled-be"])
    assert settled.cpus() == RUNS_ON
    remove_pod(node.direct, sandbox)
