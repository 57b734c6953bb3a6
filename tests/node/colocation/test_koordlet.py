"""A node that koordlet ran: values as it leaves them, in real cgroups."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.allocate.colocation.be_suppress import NodeUse
from agent.allocate.colocation.cpu_burst import SharedUse
from agent.allocate.pools import Decision
from agent.cgroup import limits, writer
from agent.cgroup.hierarchy import Controllers, Handles, Hierarchy, mounted
from agent.cgroup.journal import Journal
from agent.cgroup.limits import BURST, IDLE, QUOTA, SHARES
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota
from agent.model.node_slo import CpuBurst, NodeSlo, ResourceThreshold
from agent.model.pod.pods import Container
from agent.model.pod.qos import QoS
from agent.model.snapshot import NOTHING, PodWanted
from agent.model.verdict import Code
from agent.node.colocation.koordlet import ABSENT_SECONDS, SEARCH_SECONDS, KoordletTakeover
from agent.node.colocation.moment import CHECK_SECONDS
from agent.rpc.grpc import RpcError
from agent.usage.strategies import Strategies
from tests.builders import machine
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ROOT, ColocatedNode
from tests.waiting import eventually

CPUS = "cpuset.cpus"
BURSTS = Strategies(
    NodeSlo(cpu_burst_strategy=CpuBurst(policy="auto", cfs_quota_burst_percent=400))
)
IDLE_NODE = SharedUse(8, 0, 0.5)
TOPOLOGY = machine(2, 4)
SUPPRESSES = Strategies(
    NodeSlo(
        resource_used_threshold_with_be=ResourceThreshold(
            enable=True, cpu_suppress_threshold_percent=75, cpu_suppress_policy="cfsQuota"
        )
    )
)
IN_USE = NodeUse(
    capacity_milli=8000,
    reserved_milli=0,
    node_cores=4.0,
    pods_cores=4.0,
    other_pods_cores=3.5,
    applications_cores=0.0,
    other_applications_cores=0.0,
)
"""Of eight CPUs: it leaves 2.5 to batch."""


class KoordletNode:
    """A service with a limit of one CPU, and a batch pod."""

    def __init__(self, node: ColocatedNode, proc: str = "/proc") -> None:
        self.node = node
        self.hierarchy = Hierarchy(ROOT)
        self.kubelet = KubeletConfiguration("here")
        self.requested = {"service main": CpuQuota(100_000)}
        self.fault: RpcError | None = None
        self.asked = 0
        self.service = node.run("service", "burstable", {"main": 1000})
        self.batch = node.run("batch", "besteffort")
        self.everyone = self.batch.rpartition("/")[0]
        self.cpus = node.groups.path(self.everyone, CPUS).read_text().strip()
        node.takeover = lambda journal: KoordletTakeover(
            self.hierarchy,
            Controllers(ROOT, Handles(0)),
            journal,
            proc,
            lambda: self.kubelet,
            self._requested,
            clock=lambda: node.now,
        )
        node.strategies = Strategies()
        node.shared_use = IDLE_NODE
        self.start()

    def start(self) -> None:
        pods = {uid: PodWanted(uid, QoS.LS, NOTHING) for uid in self.node.pods}
        self.node.start().follow(TOPOLOGY, Decision((), {}, (), pods))

    def step(self) -> None:
        self.node.colocation.step()
        assert not self.node.colocation.state.failed

    def leave(self) -> None:
        """As koordlet leaves them with cpuSuppressPolicy cfsQuota, after cpuset, and cpuBurst."""
        first = str(CpuSet.parse(self.cpus)).partition("-")[0].partition(",")[0]
        main = f"{self.batch}/main"
        for group in (main, self.batch, self.everyone):
            self.set(group, CPUS, first)
        for group in (self.service, f"{self.service}/main"):
            self.set(group, QUOTA, "300000")
            self.set(group, BURST, "200000")
        for group in (self.everyone, self.batch, main):
            self.set(group, QUOTA, "150000")
        self.set(main, SHARES, "1024")
        self.set(self.everyone, SHARES, "2")
        self.set(self.everyone, IDLE, "1")

    def set(self, group: str, file: str, text: str) -> None:
        self.node.groups.path(group, file).write_text(text)

    def values(self, group: str, *files: str) -> list[str]:
        return [self.node.groups.path(group, file).read_text().strip() for file in files]

    def restore(self) -> None:
        """As `topolet restore`."""
        journal = Journal(self.node.folder / "journal")
        assert writer.restore(self.hierarchy, journal).ok
        assert limits.restore(self.node.controllers, journal).ok

    def _requested(self, container: Container) -> CpuQuota | None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self.requested.get(container.id)


@pytest.fixture
def left(tmp_path: Path) -> Iterator[KoordletNode]:
    mounts = {
        each: mount
        for each in ("cpu", "cpuset")
        if not os.geteuid() and (mount := mounted(ROOT, each))
    }
    if {version for version, _ in mounts.values()} != {1} or len(mounts) < 2:
        pytest.skip("no cgroups v1 of cpu and cpuset can be made here")
    groups = RealGroups(mounts)
    try:
        if not groups.path(groups.top, IDLE).exists():
            pytest.skip("this kernel has no cpu.idle")
        yield KoordletNode(ColocatedNode(tmp_path, groups))
    finally:
        groups.close()


def test_what_no_strategy_wants_has_the_values_of_the_kernel(left: KoordletNode) -> None:
    left.leave()
    left.step()
    assert left.values(left.everyone, IDLE, SHARES, QUOTA, CPUS) == ["0", "2", "-1", left.cpus]
    for group in (left.service, f"{left.service}/main"):
        assert left.values(group, QUOTA, BURST) == ["100000", "0"]
    assert left.values(left.batch, CPUS) == [left.cpus]
    assert left.node.passes, "passes write the limits and the CPUs of the containers of BE pods"
    left.restore()
    assert left.values(f"{left.batch}/main", QUOTA, SHARES, CPUS) == ["-1", "2", left.cpus]
    assert not Journal(left.node.folder / "journal").values


def test_burst_goes_on_with_the_quota_that_koordlet_has_scaled(left: KoordletNode) -> None:
    left.leave()
    left.node.strategies = BURSTS
    left.step()
    for group in (left.service, f"{left.service}/main"):
        assert left.values(group, QUOTA) == ["300000"], "a pod never has less than before"
        assert left.node.journal.values[group, QUOTA].value == "100000"
    left.node.strategies = Strategies()
    left.step()
    for group in (left.service, f"{left.service}/main"):
        assert left.values(group, QUOTA, BURST) == ["100000", "0"]


def test_suppression_writes_over_the_quota_of_koordlet(left: KoordletNode) -> None:
    left.leave()
    left.node.strategies, left.node.use = SUPPRESSES, IN_USE
    left.step()
    assert left.values(left.everyone, QUOTA) == ["250000"]
    left.restore()
    assert left.values(left.everyone, QUOTA, IDLE) == ["-1", "0"]


@pytest.mark.parametrize("journalled", [False, True])
def test_an_agent_that_was_killed_takes_over_at_its_next_start(
    left: KoordletNode, journalled: bool
) -> None:
    """It is killed before it writes anything, or between the journal and the first write."""
    left.leave()
    if journalled:
        journal = Journal(left.node.folder / "journal")
        assert left.node.takeover is not None
        left.node.takeover(journal).take(tuple(left.node.pods.values()))
        assert (f"{left.service}/main", QUOTA) in journal
    assert left.values(left.service, QUOTA) == ["300000"]
    left.start()
    left.step()
    left.restore()
    assert left.values(left.everyone, IDLE, SHARES, QUOTA, CPUS) == ["0", "2", "-1", left.cpus]
    for group in (left.service, f"{left.service}/main"):
        assert left.values(group, QUOTA, BURST) == ["100000", "0"]


def test_a_runtime_that_does_not_answer_is_asked_again_with_the_next_search(
    left: KoordletNode,
) -> None:
    left.leave()
    left.fault = RpcError(Code.UNAVAILABLE, "no connection")
    for _ in range(3):
        left.node.colocation.step()
        (failure,) = left.node.colocation.state.failed
        assert failure.startswith("what koordlet left is not known: ")
    assert left.asked == 1
    left.fault = None
    left.node.now += SEARCH_SECONDS
    left.step()
    assert left.values(f"{left.service}/main", QUOTA) == ["100000"]


def test_a_value_of_another_program_after_the_takeover_stays(left: KoordletNode) -> None:
    left.leave()
    left.step()
    left.set(left.service, QUOTA, "200000")
    left.node.now += 2 * CHECK_SECONDS
    left.step()
    assert left.values(left.service, QUOTA) == ["200000"]


def test_a_pod_that_the_agent_leaves_alone_keeps_what_koordlet_left(left: KoordletNode) -> None:
    left.leave()
    left.node.excluded = "service"
    left.step()
    assert left.values(left.service, QUOTA, BURST) == ["300000", "200000"]
    assert left.values(left.everyone, IDLE) == ["0"]


def test_cpus_of_containers_are_those_of_a_static_kubelet(left: KoordletNode) -> None:
    left.kubelet = KubeletConfiguration("here", cpu_manager_policy="static")
    left.leave()
    left.step()
    originals = left.node.journal.originals
    assert f"{left.batch}/main" not in originals
    assert left.values(left.batch, CPUS) == [left.cpus]


def test_nothing_is_written_while_a_koordlet_runs(left: KoordletNode, tmp_path: Path) -> None:
    program = tmp_path / "koordlet"
    shutil.copy(shutil.which("sleep") or "", program)
    left.leave()
    left.node.strategies, left.node.use = SUPPRESSES, IN_USE
    colocation = left.node.colocation
    with subprocess.Popen([program, "1000"]) as process:
        try:
            name = Path(f"/proc/{process.pid}/comm")
            eventually("it runs", lambda: name.read_text() == "koordlet\n")
            colocation.step()
        finally:
            process.kill()
    assert f"koordlet runs (process {process.pid})" in colocation.state.failed[0]
    left.node.now += SEARCH_SECONDS
    colocation.step()
    assert colocation.state.failed == ("koordlet has just ended, and may start again",)
    assert left.values(left.everyone, QUOTA, IDLE) == ["150000", "1"]
    left.node.now += ABSENT_SECONDS
    left.step()
    assert left.values(left.everyone, QUOTA, IDLE) == ["250000", "0"]
