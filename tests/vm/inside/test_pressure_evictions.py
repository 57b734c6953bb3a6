"""Evictions by PSI of a real cgroup v2 kernel, whose pods wait for CPUs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.allocate.colocation.be_suppress import Suppression
from agent.allocate.pools import Decision
from agent.cgroup.hierarchy import Controllers
from agent.discover.cpus import TopologyView
from agent.kube.events import Regarding
from agent.kube.eviction import EvictionResult
from agent.model.node_slo import NodeSlo, ResourceThreshold
from agent.model.pod.apiobjects import ApiNode
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings.agent import AgentSettings
from agent.node.cluster_view import ClusterState
from agent.node.colocation.evictions import EvictionRequests, Evictions, rules
from agent.node.features import Feature
from agent.node.usage import UsageView
from agent.telemetry.metrics import AgentMetrics
from agent.usage import sampler
from agent.usage.strategies import Strategies
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ROOT, ColocatedNode
from tests.waiting import eventually

SPIN: Final = ("sh", "-c", "while :; do :; done")
READING_SECONDS: Final = 2.0
"""An agent reads the counters every 15 seconds."""
SETTINGS: Final = AgentSettings(
    evictions="CPUPressureEvict,MemoryPressureEvict",
    evict_cpu_pressure_percent=30,
    evict_cpu_pressure_lower_percent=10,
    evict_memory_pressure_percent=5,
    evict_memory_pressure_lower_percent=2,
    eviction_rounds=2,
)
THRESHOLDS: Final = {"cpu": 30, "memory": 5}


class PressedNode(ColocatedNode):
    """A node that evicts; an API server is told whom."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.real = groups
        self.asked: list[str] = []
        self.events: list[str] = []
        self.view = UsageView("/", str(folder), Controllers(ROOT), AgentMetrics())
        super().__init__(folder, groups)
        threshold = ResourceThreshold(enable=True)
        self.strategies = Strategies(NodeSlo(resource_used_threshold_with_be=threshold))

    def further_features(self) -> tuple[Feature, ...]:
        evictions = Evictions(
            rules(SETTINGS),
            self.view,
            dict,
            Suppression,
            EvictionRequests(self.evict),
            lambda _, reason, note: self.events.append(f"{reason} {note}"),
            str(self.folder / "evictions.json"),
            acts=True,
        )
        return (evictions,)

    def evict(self, pod: Regarding) -> EvictionResult:
        self.asked.append(pod.name)
        return EvictionResult.EVICTED

    def place(self, name: str, cpus: str, *commands: tuple[str, ...]) -> str:
        """The group of the container of a new pod on these CPUs. BE pods have a name with b."""
        if name.startswith("b"):
            group = f"{self.run(name, 'besteffort', labels={QOS_LABEL: 'BE'})}/main"
        else:
            group = f"{self.run(name, 'burstable')}/main"
        self.groups.path(group, "cpuset.cpus").write_text(cpus)
        for command in commands:
            self.real.process(group, *command)
        topology, pods = TopologyView("/").topology(), tuple(self.pods.values())
        amounts = {"cpu": 1000 * len(topology.cpus), "memory": 4 << 30}
        cluster = ClusterState(ApiNode("n", {}, {}, amounts, amounts), self.api_pods)
        self.view.follow(pods, cluster, topology, Decision((), {}, (), {}))
        return group

    def pass_second(self) -> None:
        self.view.sampler.sample()
        self.colocation.step()
        assert not self.colocation.state.failed
        time.sleep(1)

    def pass_readings(self, times: int) -> None:
        """Returns when the counters have been read so many times more."""
        for _ in range(times):
            at = self.view.counted().at
            while self.view.counted().at == at:
                self.pass_second()

    def waited(self, group: str, resource: str) -> float:
        """Seconds in which some task of the group has waited, without the code under test."""
        text = self.groups.path(group, f"{resource}.pressure").read_text()
        match = re.search(r"^some .*total=(\d+)", text)
        assert match is not None
        return int(match[1]) / 1e6


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PressedNode]:
    monkeypatch.setattr(sampler, "MEMORY_SECONDS", READING_SECONDS)
    groups = RealGroups(dict.fromkeys(("cpu", "cpuset", "memory"), (2, ROOT)))
    node = PressedNode(tmp_path, groups)
    yield node
    node.view.close()
    groups.close()


def assert_nobody_leaves(node: PressedNode, waiting: str, resource: str) -> None:
    """Although this group waits for longer than the threshold."""
    node.pass_readings(1)
    began, waited = time.monotonic(), node.waited(waiting, resource)
    node.pass_readings(3)
    percent = 100 * (node.waited(waiting, resource) - waited) / (time.monotonic() - began)
    assert percent > THRESHOLDS[resource]
    assert node.asked == []


def test_a_batch_pod_leaves_for_a_service_that_waits_for_cpus_and_not_for_its_quota(
    node: PressedNode,
) -> None:
    node.place("bidle", "3", ("sleep", "1000"))
    batch = node.place("batch", "1", SPIN, SPIN)
    limited = node.place("limited", "2", SPIN, SPIN)
    node.groups.path(limited, "cpu.max").write_text("20000 100000")
    assert_nobody_leaves(node, limited, "cpu")
    assert node.waited(batch, "cpu") > 1, "what BE pods wait for evicts nobody either"
    node.place("service", "1", SPIN)

    def batch_leaves() -> bool:
        node.pass_second()
        return bool(node.events)

    eventually("a pod leaves", batch_leaves)
    assert node.asked == ["batch"]
    pattern = r"EvictedFromNode CPUPressureEvict: Work waits for CPU [\d.]+ % of the time"
    assert re.match(pattern, node.events[0])
