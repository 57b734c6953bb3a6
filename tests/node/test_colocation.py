"""What strategies want of real cgroups, and how it is given back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from agent.allocate.colocation.be_suppress import NodeUse
from agent.allocate.pools import Decision, decide
from agent.allocate.reserved_cpus import DEFAULT_RULES, KubeletCpus, PoolRules
from agent.cgroup.hierarchy import Controllers, mounted
from agent.cgroup.journal import Journal
from agent.cgroup.limits import IDLE, QUOTA, weight_file
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.node_slo import CpuQos, NodeSlo, QosClass, ResourceQos, ResourceThreshold
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.colocation import GROW_SECONDS, PRIORITY, Colocation
from agent.node.sources import SourceName, Sources
from agent.usage.strategies import Strategies
from tests.builders import machine, pod
from tests.cgroup.real_groups import RealGroups

ROOT = "/sys/fs/cgroup"
BATCH_IDLES = Strategies(
    NodeSlo(
        resource_qos_strategy=ResourceQos(
            be_class=QosClass(cpu_qos=CpuQos(enable=True, group_identity=-1))
        )
    )
)


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    cpu = None if os.geteuid() else mounted(ROOT, "cpu")
    if cpu is None:
        pytest.skip("no cgroups of the cpu controller can be made here")
    real = RealGroups({"cpu": cpu})
    yield real
    real.close()


class Node:
    """Pods in real cgroups, below kubepods/CLASS as the kubelet places them."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.folder = folder
        self.groups = groups
        self.controllers = Controllers(ROOT)
        self.strategies = BATCH_IDLES
        self.excluded = ""
        self.use: NodeUse | None = None
        self.passes: list[CpuSet | None] = []
        self.now = 100.0
        self.problems: dict[str, int] = {}
        self.pods: dict[str, Pod] = {}
        self.api_pods: dict[str, ApiPod] = {}
        groups.make("/kubepods")
        self.start()

    def start(self, *, acts: bool = True) -> Colocation:
        self.journal = Journal(self.folder / "journal")
        self.colocation = Colocation(
            self.controllers,
            self.journal,
            lambda: (self.pods, self.api_pods),
            lambda: self.use,
            lambda: self.strategies,
            lambda pod: pod.name == self.excluded,
            Sources(self.problems.__setitem__),
            lambda: self.passes.append(self.colocation.be_cpus()),
            lambda: self.now,
            acts=acts,
        )
        return self.colocation

    def run(self, name: str, kube_class: str) -> str:
        """The group of a new pod."""
        self.groups.make(f"/kubepods/{kube_class}")
        group = self.groups.make(f"/kubepods/{kube_class}/pod{name}")
        main = Container("c", "main", ContainerState.RUNNING, f"{group}/main")
        self.groups.make(f"/kubepods/{kube_class}/pod{name}/main")
        self.pods = {**self.pods, name: pod(name, containers=(main,))}
        api_pod = ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, {}, kube_class, 1)
        self.api_pods = {**self.api_pods, name: api_pod}
        return group

    def value(self, group: str, file: str) -> str:
        return (self.controllers.read(group, file) or "").strip()


@pytest.fixture
def node(tmp_path: Path, groups: RealGroups) -> Node:
    node = Node(tmp_path, groups)
    group = groups.make("/probe")
    if not groups.path(group, IDLE).exists():
        pytest.skip("this kernel has no cpu.idle")
    return node


def test_be_pods_are_idle_while_the_strategy_wants_it(node: Node) -> None:
    weight = weight_file(node.controllers)
    batch, service = node.run("batch", "besteffort"), node.run("api", "burstable")
    node.groups.path(batch, weight).write_text("77")
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(service, IDLE)) == ("1", "0")
    assert node.value(batch.rpartition("/")[0], IDLE) == "0", "a kubelet could not start"
    assert set(node.colocation.holds()) == {(batch, IDLE), (batch, weight)}
    assert node.colocation.state.wanted == {PRIORITY: {(batch, IDLE): "1"}}
    assert node.problems.get(SourceName.COLOCATION.value, 0) == 0
    node.strategies = Strategies()
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(batch, weight)) == ("0", "77")
    assert not node.colocation.holds()
    assert not node.journal.values


def test_an_agent_that_was_killed_gives_back_what_it_had_changed(node: Node) -> None:
    weight = weight_file(node.controllers)
    batch = node.run("batch", "besteffort")
    node.groups.path(batch, weight).write_text("77")
    node.colocation.step()
    node.strategies = Strategies()
    node.start().step()
    assert (node.value(batch, IDLE), node.value(batch, weight)) == ("0", "77")


def test_a_pod_that_the_agent_leaves_alone_keeps_its_values(node: Node) -> None:
    batch, other = node.run("batch", "besteffort"), node.run("other", "besteffort")
    node.excluded = "other"
    node.colocation.step()
    assert (node.value(batch, IDLE), node.value(other, IDLE)) == ("1", "0")
    node.pods = {"batch": node.pods["batch"]}
    node.colocation.step()
    assert node.value(batch, IDLE) == "1"
    node.pods = {}
    node.colocation.step()
    assert node.value(batch, IDLE) == "0"
    assert not node.journal.values
    assert not node.colocation.state.failed


def test_observing_writes_nothing(node: Node) -> None:
    batch = node.run("batch", "besteffort")
    observing = node.start(acts=False)
    observing.step()
    assert node.value(batch, IDLE) == "0"
    assert observing.state.wanted == {PRIORITY: {(batch, IDLE): "1"}}
    assert not observing.holds()


def test_what_the_kernel_does_not_have_is_a_problem_with_a_name(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("batch", "besteffort")
    monkeypatch.setattr(Controllers, "read", lambda *_: None)
    node.colocation.step()
    assert node.colocation.state.unsupported == {
        PRIORITY: "this kernel has neither cpu.bvt_warp_ns nor cpu.idle"
    }
    assert node.problems.get(SourceName.COLOCATION.value, 0) == 1


def used(of_pods: float) -> NodeUse:
    """Of eight CPUs."""
    return NodeUse(
        capacity_milli=8000,
        reserved_milli=0,
        node_cores=of_pods + 0.5,
        pods_cores=of_pods + 0.5,
        other_pods_cores=of_pods,
        applications_cores=0.0,
        other_applications_cores=0.0,
    )


def suppressing(policy: Literal["cpuset", "cfsQuota"]) -> Strategies:
    threshold = ResourceThreshold(
        enable=True, cpu_suppress_threshold_percent=75, cpu_suppress_policy=policy
    )
    return Strategies(NodeSlo(resource_used_threshold_with_be=threshold))


def decided(machine: Topology, rules: PoolRules = DEFAULT_RULES) -> Decision:
    return decide(machine, (), KubeletCpus(), {}, {}, rules)


def test_be_pods_lose_cpus_at_once_and_get_them_back_later(node: Node) -> None:
    topology = machine(2, 4)
    node.strategies = suppressing("cpuset")
    node.colocation.follow(topology, decided(topology))
    node.use = used(1.0)
    node.colocation.step()
    assert node.passes == [CpuSet.parse("0-2,4-5")], "75 % of 8 CPUs without one that is used"
    node.use = used(3.5)
    node.colocation.step()
    left = node.passes[-1]
    assert left == CpuSet.parse("0-1,4"), "two CPUs and a half"
    pools = decided(topology, PoolRules(be_cpus=left)).pools
    assert [str(pool.cpus) for pool in pools["be"]] == ["0-1", "4"]
    assert [len(pool.cpus) for pool in pools["ls"]] == [4, 4]
    node.use = used(1.0)
    node.colocation.step()
    node.now += GROW_SECONDS
    node.colocation.step()
    assert [len(cpus or ()) for cpus in node.passes] == [5, 3, 4]
    node.strategies = Strategies()
    node.colocation.step()
    assert node.passes[-1] is None
    assert not node.colocation.holds()


def test_the_quota_of_all_be_pods_is_never_below_that_of_one_of_them(node: Node) -> None:
    if node.controllers.version("cpu") != 1:
        pytest.skip("v2 allows any quota below another")
    topology = machine(2, 4)
    node.strategies = suppressing("cfsQuota")
    batch, other = node.run("batch", "besteffort"), node.run("other", "besteffort")
    node.groups.path(batch, QUOTA).write_text("400000")
    node.groups.path(f"{batch}/main", QUOTA).write_text("300000")
    node.groups.path(other, QUOTA).write_text("50000")
    everyone = batch.rpartition("/")[0]
    node.colocation.follow(topology, decided(topology))
    node.use = used(3.5)
    node.colocation.step()
    groups = (everyone, batch, f"{batch}/main", other)
    assert [node.value(group, QUOTA) for group in groups] == ["250000"] * 3 + ["50000"]
    assert node.colocation.be_cpus() is None
    node.use = used(5.0)
    node.colocation.step()
    assert [node.value(group, QUOTA) for group in groups] == ["100000"] * 3 + ["50000"]
    node.strategies = Strategies()
    node.colocation.step()
    assert [node.value(group, QUOTA) for group in groups] == ["-1", "400000", "300000", "50000"]
    assert not node.journal.values
