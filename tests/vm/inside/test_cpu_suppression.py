"""What BE pods get of a real cgroup v2 kernel while a service uses CPUs, as cpuset and as quota."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.cgroup import writer
from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.limits import MAX
from agent.discover.cpus import TopologyView
from agent.model.cpu.cpuset import CpuSet
from agent.model.node_slo import NodeSlo, ResourceThreshold
from agent.model.pod.apiobjects import ApiNode
from agent.node.cluster_view import ClusterState
from agent.node.enforcement import wanted_cpusets
from agent.node.usage import UsageView
from agent.telemetry.metrics import AgentMetrics
from agent.usage.strategies import Strategies
from tests.builders import pod
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ROOT, ColocatedNode
from tests.waiting import eventually

SPINS: Final = ("sh", "-c", "while :; do :; done")
SERVICES: Final = 6
"""So many CPUs the service uses."""
USABLE: Final = 16 * 65 / 100
"""Of the 16 CPUs."""


class MeasuredNode(ColocatedNode):
    """A node whose use is measured, with the passes that write cpusets."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.real = groups
        self.topology = TopologyView("/").topology()
        self.hierarchy = Hierarchy(ROOT)
        self.view = UsageView("/", str(folder), Controllers(ROOT), AgentMetrics())
        super().__init__(folder, groups)

    def close(self) -> None:
        self.view.close()
        self.hierarchy.close()
        self.real.close()

    def spinning(self, name: str, count: int) -> str:
        """The group of a new container that uses so many CPUs. BE pods have a name with b."""
        batch = name.startswith("b")
        group = self.run(name, "besteffort" if batch else "burstable")
        containers = self.pods[name].containers
        self.pods = {**self.pods, name: pod(name, "BE" if batch else "LS", containers=containers)}
        for _ in range(count):
            self.real.process(f"{group}/main", *SPINS)
        return f"{group}/main"

    def make_pass(self) -> None:
        pods = tuple(self.pods.values())
        rules = PoolRules(be_cpus=self.colocation.be_cpus())
        decision = decide(self.topology, pods, KubeletCpus(), {}, {}, rules)
        assert writer.apply(self.hierarchy, self.journal, wanted_cpusets(pods, decision)).ok
        amounts = {"cpu": 1000 * len(self.topology.cpus)}
        cluster = ClusterState(ApiNode("n", {}, {}, amounts, amounts), self.api_pods)
        self.view.follow(pods, cluster, self.topology, decision)
        self.colocation.follow(self.topology, decision)

    def pass_second(self, group: str) -> None:
        """Returns after what the agent does in a second, in which the group ran."""
        used = self.seconds_used(group)
        eventually("it runs", lambda: self.seconds_used(group) > used + 0.5)
        self.view.sampler.sample()
        self.use, self.now = self.view.node_use(), time.monotonic()
        passes = len(self.passes)
        self.colocation.step()
        assert not self.colocation.state.failed
        if len(self.passes) > passes:
            self.make_pass()

    def seconds_used(self, group: str) -> float:
        """Without the code under test."""
        return self.counter(group, "usage_usec") / 1e6

    def counter(self, group: str, key: str) -> int:
        match = re.search(rf"{key} (\d+)", self.real.path(group, "cpu.stat").read_text())
        assert match is not None
        return int(match[1])

    def runs_on(self, group: str) -> CpuSet:
        """Where the processes of the group run now."""
        pids = Path(ROOT + group, "cgroup.procs").read_text().split()
        last = (Path("/proc", pid, "stat").read_text().rpartition(")")[2].split() for pid in pids)
        return CpuSet(int(words[36]) for words in last)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MeasuredNode]:
    node = MeasuredNode(tmp_path, RealGroups(dict.fromkeys(("cpu", "cpuset"), (2, ROOT))))
    yield node
    node.close()


def suppressing(policy: Literal["cpuset", "cfsQuota"]) -> Strategies:
    threshold = ResourceThreshold(enable=True, cpu_suppress_policy=policy)
    return Strategies(NodeSlo(resource_used_threshold_with_be=threshold))


def test_be_pods_run_on_what_a_service_leaves(node: MeasuredNode) -> None:
    batch = node.spinning("batch", 12)
    node.strategies = suppressing("cpuset")
    node.make_pass()
    node.view.sampler.sample()
    node.pass_second(batch)
    alone = node.hierarchy.effective_cpus(batch)
    service = node.spinning("api", SERVICES)
    node.make_pass()
    node.pass_second(batch)
    node.pass_second(batch)
    beside = node.hierarchy.effective_cpus(batch)
    assert len(beside) <= len(alone) - SERVICES + 2
    assert beside == node.colocation.be_cpus()
    assert node.runs_on(batch) <= beside
    assert node.hierarchy.effective_cpus(service) == CpuSet.parse("0-15")
    node.strategies = Strategies()
    node.pass_second(batch)
    assert node.hierarchy.effective_cpus(batch) == CpuSet.parse("0-15")


def test_be_pods_get_the_quota_that_a_service_leaves(node: MeasuredNode) -> None:
    batch = node.spinning("batch", 12)
    everyone = batch.rpartition("/pod")[0]
    node.spinning("api", SERVICES)
    node.strategies = suppressing("cfsQuota")
    node.make_pass()
    node.view.sampler.sample()
    node.pass_second(batch)
    node.pass_second(batch)
    microseconds, period = map(int, node.value(everyone, MAX).split())
    quota = microseconds / period
    assert 1 < quota < USABLE - SERVICES + 2
    throttled = node.counter(everyone, "nr_throttled")
    used, began = node.seconds_used(batch), time.monotonic()
    eventually("it is throttled", lambda: node.counter(everyone, "nr_throttled") > throttled + 3)
    cores = (node.seconds_used(batch) - used) / (time.monotonic() - began)
    assert cores < 1.3 * quota
    node.strategies = Strategies()
    node.pass_second(batch)
    assert node.value(everyone, MAX) == "max 100000"
    assert not node.journal.values
