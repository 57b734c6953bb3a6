"""Proxy and agent together on four NUMA nodes, with five pods that no test changes."""

import json
import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import yaml

from tests.fixtures import image
from tests.fixtures.cgroups import make_cgroup
from tests.fixtures.constants import SANDBOX_HOLD
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_sandbox,
    start_container,
)
from tests.integration.harness import TestNode, fresh_node
from tests.vm.inside.pods import BE_POOLS, LS_POOLS, RUNS_ON, specs
from tests.waiting import eventually

HOLD = "--hold-seconds=30"
"""The agent responds slowly on an emulated machine."""

EFFECTIVE = "cpuset.cpus.effective"
REPORTING = (
    f"{image.BUSYBOX} grep Cpus_allowed_list /proc/self/status; exec {' '.join(image.SLEEP)}"
)


class SettledNode(msgspec.Struct):
    """The node and the container ids of its pods, by pod name."""

    node: TestNode
    ids: dict[str, str] = {}

    def cpus(self) -> dict[str, str]:
        return {name: self.node.cpus(container) for name, container in self.ids.items()}

    def create(self, spec: PodSpec) -> tuple[str, str]:
        """A container that first logs the CPUs of its process."""
        sandbox = run_sandbox(self.node.proxied, spec)
        request = create_request(spec, sandbox)
        request.config.command[:] = [image.BUSYBOX, "sh", "-c", REPORTING]
        request.config.log_path = f"{spec.name}.log"
        request.sandbox_config.log_directory = str(self.node.folder)
        return sandbox, create_container(self.node.proxied, request)

    def first_cpus(self, name: str) -> str:
        """The CPUs that the container has logged."""
        log = self.node.folder / f"{name}.log"
        eventually(f"{name} reports", lambda: log.exists() and log.read_text().endswith("\n"))
        return log.read_text().split()[-1]


@pytest.fixture(scope="module")
def settled(containerd: Containerd) -> Iterator[SettledNode]:
    """The owners are created when LS runs and has logged its CPUs, the others after the owners."""
    with fresh_node(containerd) as node:
        node.start_agent()
        node.constants["proxy"] = {SANDBOX_HOLD: 30.0}
        node.start_proxy(HOLD)
        it = SettledNode(node)
        for name, spec in specs(node).items():
            _, it.ids[name] = it.create(spec)
            start_container(node.proxied, it.ids[name])
            it.first_cpus(name)
        yield it


def test_every_pod_runs_on_its_cpus(settled: SettledNode) -> None:
    assert settled.cpus() == RUNS_ON
    assert settled.node.metric("topolet_cpu_overlaps_total") == 0


def test_every_pod_ran_on_its_cpus_from_its_creation(settled: SettledNode) -> None:
    first = {name: settled.first_cpus(name) for name in RUNS_ON}
    assert first == RUNS_ON | {"ls": "0-15"}, "no owner existed when LS was created"


def test_sandbox_begins_without_the_cpus_of_other_pods(settled: SettledNode) -> None:
    """Afterwards the pod's cgroup has all CPUs again, by inheritance."""
    for spec, cpus in (
        (settled.node.spec("new", "LS"), RUNS_ON["ls"]),
        (settled.node.spec("own", "LSE", "12-13"), "12-13"),
    ):
        make_cgroup(spec.cgroup_parent())
        pod = pathlib.Path(f"/sys/fs/cgroup{spec.cgroup_parent()}")
        all_cpus = (pod / EFFECTIVE).read_text()
        with ThreadPoolExecutor(1) as executor:
            running = executor.submit(run_sandbox, settled.node.proxied, spec)
            seen = set()
            while not running.done():
                seen |= {each.read_text().strip() for each in pod.glob(f"*/{EFFECTIVE}")}
        assert seen == {RUNS_ON["ls"]}
        eventually("the pod has every CPU", lambda: (pod / EFFECTIVE).read_text() == all_cpus)  # noqa: B023
        assert settled.node.sandbox_cpus(running.result()) == cpus
        remove_pod(settled.node.proxied, running.result())
    eventually("all pods are on their CPUs again", lambda: settled.cpus() == RUNS_ON)


def test_pools_shrink_before_an_owner_starts_and_grow_when_it_ends(settled: SettledNode) -> None:
    node = settled.node
    sandbox, container = settled.create(node.spec("late", "LSE", "12-15"))
    without = {"ls": "0-3,10-11", "be": "0-3,8-11"}
    assert settled.cpus() == RUNS_ON | without, "before its start"
    start_container(node.proxied, container)
    assert settled.first_cpus("late") == "12-15"
    remove_pod(node.proxied, sandbox)
    eventually("all pods are on their CPUs again", lambda: settled.cpus() == RUNS_ON)
    assert node.metric("topolet_cpu_overlaps_total") == 0


def test_pools_are_reported_by_numa_node(settled: SettledNode) -> None:
    path = pathlib.Path(settled.node.state, "objects/noderesourcetopology/node-a.yaml")
    topology: dict[str, Any] = {}

    def ls_pools() -> object:
        nonlocal topology
        topology = yaml.safe_load(path.read_text())
        annotations = topology["metadata"]["annotations"]
        return json.loads(annotations["node.koordinator.sh/cpu-shared-pools"])

    # The agent writes cgroups before the report.
    eventually("reported", lambda: ls_pools() == LS_POOLS)
    annotations = topology["metadata"]["annotations"]
    assert json.loads(annotations["node.koordinator.sh/be-cpu-shared-pools"]) == BE_POOLS
    available = [
        next(each["available"] for each in zone["resources"] if each["name"] == "cpu")
        for zone in topology["zones"]
    ]
    assert available == ["4", "0", "2", "4"]
    assert [each["value"] for each in topology["zones"][0]["costs"]] == [10, 12, 21, 21]


def test_kill_of_agent_and_proxy_changes_nothing(settled: SettledNode) -> None:
    node = settled.node

    def pauses() -> dict[str, str]:
        return {each.name: node.sandbox_cpus(each.id) for each in node.direct.sandboxes()}

    eventually("pause containers follow", lambda: pauses() == RUNS_ON)
    node.kill_agent()
    node.kill_proxy()
    assert settled.cpus() == RUNS_ON
    node.constants["proxy"] = {SANDBOX_HOLD: 30.0}
    node.start_proxy(HOLD)
    node.start_agent()
    assert settled.cpus() == RUNS_ON
    assert node.metric("topolet_cgroup_writes_total") == 0
    assert node.metric("topolet_cpu_overlaps_total") == 0
