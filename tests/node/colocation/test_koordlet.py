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
from agent.cgroup.limits import (
    BURST,
    IDLE,
    MAX,
    MAX_BURST,
    MEMORY,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    OOM_GROUP,
    QUOTA,
    SHARES,
    WEIGHT,
)
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota
from agent.model.node_slo import CpuBurst, NodeSlo, ResourceThreshold
from agent.model.pod.pods import Container
from agent.model.pod.qos import QoS
from agent.model.snapshot import NOTHING, PodWanted
from agent.model.verdict import Code
from agent.node.colocation.koordlet import ABSENT_SECONDS, SEARCH_SECONDS, KoordletTakeover
from agent.node.features import CHECK_SECONDS
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
MIB = 1 << 20
PROTECTED = {MEMORY_MIN: 4 * MIB, MEMORY_LOW: 8 * MIB, MEMORY_HIGH: 64 * MIB}


class KoordletNode:
    """A service with a limit of one CPU, and a batch pod, both with a process."""

    def __init__(self, node: ColocatedNode, groups: RealGroups, proc: str = "/proc") -> None:
        self.node = node
        self.hierarchy = Hierarchy(ROOT)
        self.v2 = self.hierarchy.version == 2
        self.quota, self.burst, self.weight, self.memory = (
            (MAX, MAX_BURST, WEIGHT, MEMORY_MAX) if self.v2 else (QUOTA, BURST, SHARES, MEMORY)
        )
        self.least_weight = "1" if self.v2 else "2"
        self.kubelet = KubeletConfiguration("here")
        self.requested = {"service main": CpuQuota(100_000)}
        self.fault: RpcError | None = None
        self.asked = 0
        self.service = node.run("service", "burstable", {"main": 1000})
        self.batch = node.run("batch", "besteffort")
        self.everyone = self.batch.rpartition("/")[0]
        for group in (self.service, self.batch):
            groups.process(f"{group}/main")
        self.cpus = self.cpus_of(self.everyone)
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
            self.set(group, self.quota, "300000")
            self.set(group, self.burst, "200000")
        for group in (self.everyone, self.batch, main):
            self.set(group, self.quota, "150000")
        self.set(main, self.weight, "1024")
        self.set(main, self.memory, str(64 * MIB))
        self.set(self.everyone, self.weight, self.least_weight)
        self.set(self.everyone, IDLE, "1")

    def set(self, group: str, file: str, text: str) -> None:
        self.node.groups.path(group, file).write_text(text)

    def values(self, group: str, *files: str) -> list[str]:
        return [self.node.groups.path(group, file).read_text().strip() for file in files]

    def quota_of(self, group: str) -> int | None:
        """In 100 milliseconds; None without one."""
        (text,) = self.values(group, self.quota)
        return None if text.startswith(("-1", "max")) else int(text.split()[0])

    def cpus_of(self, group: str) -> str:
        (text,) = self.values(group, "cpuset.cpus.effective" if self.v2 else CPUS)
        return text

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
        for each in ("cpu", "cpuset", "memory")
        if not os.geteuid() and (mount := mounted(ROOT, each))
    }
    if len(mounts) < 3:
        pytest.skip("no cgroups of cpu, cpuset and memory can be made here")
    groups = RealGroups(mounts)
    try:
        if not groups.path(groups.top, IDLE).exists():
            pytest.skip("this kernel has no cpu.idle")
        yield KoordletNode(ColocatedNode(tmp_path, groups), groups)
    finally:
        groups.close()


def assert_without_koordlet(left: KoordletNode) -> None:
    """But for the limits and the CPUs of the containers of BE pods."""
    everyone = left.everyone
    assert left.values(everyone, IDLE, left.weight) == ["0", left.least_weight]
    assert (left.quota_of(everyone), left.cpus_of(everyone)) == (None, left.cpus)
    for group in (left.service, f"{left.service}/main"):
        assert (left.quota_of(group), left.values(group, left.burst)) == (100_000, ["0"])
    assert left.cpus_of(left.batch) == left.cpus


def test_what_no_strategy_wants_has_the_values_of_the_kernel(left: KoordletNode) -> None:
    left.leave()
    left.step()
    assert_without_koordlet(left)
    assert left.node.passes, "passes write the limits and the CPUs of the containers of BE pods"
    left.restore()
    main = f"{left.batch}/main"
    assert left.values(main, left.weight) == [left.least_weight]
    assert (left.quota_of(main), left.cpus_of(main)) == (None, left.cpus)
    assert left.values(main, left.memory) == left.values(left.service, left.memory), "no limit"
    assert not Journal(left.node.folder / "journal").values


def test_no_file_has_another_value_between_that_of_koordlet_and_its_own(
    left: KoordletNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no pod has, at any moment, less than before and less than it should."""
    writes: list[str] = []
    write = Handles.write

    def recorded(handles: Handles, path: str, content: bytes) -> None:
        write(handles, path, content)
        writes.append(path)

    left.leave()
    monkeypatch.setattr(Handles, "write", recorded)
    left.step()
    assert len(writes) >= len((IDLE, left.weight, left.quota, CPUS)) + 4
    assert len(set(writes)) == len(writes)


@pytest.mark.parametrize("protects", [False, True])
def test_memory_is_protected_and_throttled_by_nobody_else_than_the_kubelet(
    left: KoordletNode, *, protects: bool
) -> None:
    """One kill must not end all pods of a class, whoever protects memory."""
    if not left.v2:
        pytest.skip("a koordlet writes these files on cgroup v2")
    left.kubelet = KubeletConfiguration("here", protects_memory=protects)
    services, main = left.service.rpartition("/")[0], f"{left.service}/main"
    root = services.rpartition("/")[0]
    protected = (root, services, left.service, main)
    for group in protected:
        for file, amount in PROTECTED.items():
            left.set(group, file, str(amount))
    grouped = (root, left.everyone, left.batch, left.service)
    for group in grouped:
        left.set(group, OOM_GROUP, "1")
    left.step()
    assert [left.values(group, OOM_GROUP) for group in grouped] == [["0"]] * 4
    kept = [str(amount) for amount in PROTECTED.values()]
    right = kept if protects else ["0", "0", "max"]
    assert [left.values(group, *PROTECTED) for group in protected] == [right] * 4
    left.restore()
    assert [left.values(group, *PROTECTED) for group in protected] == [right] * 4


def test_burst_goes_on_with_the_quota_that_koordlet_has_scaled(left: KoordletNode) -> None:
    left.leave()
    left.node.strategies = BURSTS
    left.step()
    for group in (left.service, f"{left.service}/main"):
        assert left.quota_of(group) == 300_000, "a pod never has less than before"
        assert left.node.journal.values[group, left.quota].value.split()[0] == "100000"
    left.node.strategies = Strategies()
    left.step()
    assert_without_koordlet(left)


def test_suppression_writes_over_the_quota_of_koordlet(left: KoordletNode) -> None:
    left.leave()
    left.node.strategies, left.node.use = SUPPRESSES, IN_USE
    left.step()
    assert left.quota_of(left.everyone) == 2_500_000, "in a period of 1 s"
    left.restore()
    assert_without_koordlet(left)


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
        assert (f"{left.service}/main", left.quota) in journal
    assert left.quota_of(left.service) == 300_000
    left.start()
    left.step()
    left.restore()
    assert_without_koordlet(left)


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
    assert left.quota_of(f"{left.service}/main") == 100_000


def test_a_value_of_another_program_after_the_takeover_stays(left: KoordletNode) -> None:
    left.leave()
    left.step()
    left.set(left.service, left.quota, "200000")
    left.node.now += 2 * CHECK_SECONDS
    left.step()
    assert left.quota_of(left.service) == 200_000


def test_a_pod_that_the_agent_leaves_alone_keeps_what_koordlet_left(left: KoordletNode) -> None:
    left.leave()
    left.node.excluded = "service"
    left.step()
    assert left.quota_of(left.service) == 300_000
    assert left.values(left.service, left.burst) == ["200000"]
    assert left.values(left.everyone, IDLE) == ["0"]


def test_cpus_of_containers_are_those_of_a_static_kubelet(left: KoordletNode) -> None:
    left.kubelet = KubeletConfiguration("here", cpu_manager_policy="static")
    left.leave()
    left.step()
    originals = left.node.journal.originals
    assert f"{left.batch}/main" not in originals
    assert left.cpus_of(left.batch) == left.cpus
    assert left.cpus_of(f"{left.batch}/main") != left.cpus or len(CpuSet.parse(left.cpus)) == 1


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
    assert (left.quota_of(left.everyone), left.values(left.everyone, IDLE)) == (150_000, ["1"])
    left.node.now += ABSENT_SECONDS
    left.step()
    assert (left.quota_of(left.everyone), left.values(left.everyone, IDLE)) == (2_500_000, ["0"])
