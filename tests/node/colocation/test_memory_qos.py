"""Memory of pods on trees of regular files, as cgroup v2 has them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from agent.allocate.colocation.memory_qos import RECLAIMED_BYTES
from agent.cgroup.hierarchy import Controllers, Handles
from agent.cgroup.limits import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, OOM_GROUP
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.node_slo import MemoryQos
from agent.model.pod.apiobjects import ApiContainer
from agent.model.pod.qos import QOS_LABEL
from agent.node.colocation.memory_qos import RECLAIM, PodMemoryQos
from agent.node.sources import SourceName
from agent.usage.strategies import Strategies
from tests.node.colocation.colocated import ColocatedNode, FileGroups, memory_qos

GIB: Final = 1 << 30
FILES: Final = {
    MEMORY_MIN: "0",
    MEMORY_LOW: "0",
    MEMORY_HIGH: "max",
    OOM_GROUP: "0",
    "memory.current": "0",
}
PROTECTED: Final = (MEMORY_MIN, MEMORY_LOW)
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
SERVICE: Final = (ApiContainer("main", {"memory": 2 * GIB}, {"memory": 4 * GIB}),)
BATCH: Final = (ApiContainer("main", {BATCH_MEMORY: GIB}, {BATCH_MEMORY: 2 * GIB}),)


class Kernel(Handles):
    """Files that stay as they are where the kernel would do something, and what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.reclaimed: list[str] = []
        self.error: int | None = None
        self.waits: Callable[[], None] = lambda: None

    def write(self, path: str, data: bytes) -> None:
        if not path.endswith(RECLAIM):
            super().write(path, data)
            return
        self.reclaimed.append(f"{Path(path).parents[1].name} {data.decode().strip()}")
        self.waits()
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))


class MemoryNode(ColocatedNode):
    """A node with cgroup v2."""

    def __init__(self, folder: Path) -> None:
        self.kernel = Kernel()
        groups = FileGroups(folder / "cgroup", FILES)
        super().__init__(folder, groups, Controllers(str(groups.root), self.kernel))

    def want(self, ls: MemoryQos | None = None, be: MemoryQos | None = None) -> None:
        self.strategies = memory_qos(ls, be)

    def run_batch(self, name: str, used_bytes: int) -> str:
        group = self.run(name, "besteffort", labels={QOS_LABEL: "BE"}, containers=BATCH)
        self.use_memory(group, used_bytes)
        return group

    def use_memory(self, pod: str, used_bytes: int) -> None:
        self.groups.path(f"{pod}/main", "memory.current").write_text(f"{used_bytes}\n")

    def values(self, group: str, *files: str) -> list[str]:
        return [self.value(group, file) for file in files]

    @property
    def problem(self) -> str:
        return self.colocation.state.wanted[PodMemoryQos.name].problem


@pytest.fixture
def v2(tmp_path: Path) -> MemoryNode:
    return MemoryNode(tmp_path)


HALF: Final = MemoryQos(enable=True, min_limit_percent=50, low_limit_percent=100, oom_kill_group=1)


def test_requests_are_protected_by_all_groups_above_and_come_back(v2: MemoryNode) -> None:
    service, batch = v2.run("api", "burstable", containers=SERVICE), v2.run_batch("batch", 0)
    guaranteed = v2.run("own", "guaranteed", containers=SERVICE)
    v2.groups.path(service, MEMORY_LOW).write_text("4096\n")
    before = {path: path.read_text() for path in Path(f"{v2.folder}/cgroup").rglob("memory.*")}
    v2.want(HALF, HALF)
    v2.colocation.step()
    half, whole = str(GIB), str(2 * GIB)
    for group in (service, f"{service}/main", guaranteed):
        assert v2.values(group, *PROTECTED, OOM_GROUP) == [half, whole, "1"]
    assert v2.values("/kubepods/burstable", *PROTECTED, OOM_GROUP) == [half, whole, "0"]
    assert v2.values("/kubepods/besteffort", *PROTECTED, OOM_GROUP) == [str(GIB // 2), half, "0"]
    assert v2.values("/kubepods", *PROTECTED, OOM_GROUP) == [str(5 * GIB // 2), str(5 * GIB), "0"]
    assert not v2.problem
    v2.pods = {name: pod for name, pod in v2.pods.items() if name != "own"}
    v2.colocation.step()
    assert v2.values("/kubepods", *PROTECTED) == [str(3 * GIB // 2), str(3 * GIB)]
    assert v2.values(guaranteed, *PROTECTED, OOM_GROUP) == ["0", "0", "0"]
    assert v2.values(batch, *PROTECTED) == [str(GIB // 2), half]
    v2.strategies = Strategies()
    v2.start().step()  # the agent was killed
    assert {path: path.read_text() for path in before} == before
    assert not v2.journal.values


def test_what_another_program_sets_while_no_agent_runs_stays(v2: MemoryNode) -> None:
    service = v2.run("api", "burstable", containers=SERVICE)
    v2.want(HALF)
    v2.colocation.step()
    v2.groups.path(service, MEMORY_LOW).write_text(f"{3 * GIB}\n")
    v2.strategies = Strategies()
    v2.start().step()
    assert v2.values(service, *PROTECTED) == ["0", str(3 * GIB)]
    assert not v2.journal.values


def test_high_falls_in_steps_and_comes_back(v2: MemoryNode) -> None:
    service = v2.run("api", "burstable", containers=SERVICE)
    more = RECLAIMED_BYTES // 2
    v2.use_memory(service, 3 * GIB + 3 * more)
    v2.want(MemoryQos(enable=True, throttling_percent=50))
    highs = []
    for _ in range(3):
        v2.colocation.step()
        highs.append(int(v2.value(f"{service}/main", MEMORY_HIGH)))
    assert highs == [3 * GIB + more, 3 * GIB, 3 * GIB]
    v2.strategies = Strategies()
    v2.colocation.step()
    assert v2.value(f"{service}/main", MEMORY_HIGH) == "max"


def test_batch_containers_above_their_mark_are_reclaimed_from_in_turns(v2: MemoryNode) -> None:
    v2.want(be=MemoryQos(enable=True, wmark_ratio=50))
    v2.run_batch("small", GIB)
    for place in range(12):
        v2.run_batch(f"batch{place}", 2 * GIB)
    v2.kernel.error = errno.EAGAIN
    for _ in range(12):
        v2.colocation.step()
    assert len(v2.kernel.reclaimed) == 12 * 8, "256 MiB a second"
    assert set(v2.kernel.reclaimed) == {f"podbatch{place} {32 << 20}" for place in range(12)}
    assert not v2.problem, "a kernel that could not reclaim all of it has done what it can"
    assert v2.memory_qos.above_mark_bytes > 0
    assert not v2.journal.values
    v2.start(acts=False).step()
    assert len(v2.kernel.reclaimed) == 12 * 8


def test_slow_swap_delays_passes_by_one_write_a_second(v2: MemoryNode) -> None:
    def wait() -> None:
        v2.now += 3.0

    v2.want(be=MemoryQos(enable=True, wmark_ratio=50))
    for place in range(4):
        v2.run_batch(f"batch{place}", 2 * GIB)
    v2.kernel.waits = wait
    for _ in range(4):
        v2.colocation.step()
    assert len(v2.kernel.reclaimed) == 4
    assert len(set(v2.kernel.reclaimed)) == 4, "in turns"


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (errno.ENOENT, "this kernel has no memory.reclaim, which Linux has since 5.19"),
        (errno.EINVAL, "Invalid argument"),
    ],
)
def test_a_refused_reclaim_is_a_problem(v2: MemoryNode, number: int, problem: str) -> None:
    v2.want(be=MemoryQos(enable=True, wmark_ratio=50))
    v2.run_batch("batch", 2 * GIB)
    v2.kernel.error = number
    v2.colocation.step()
    assert problem in v2.problem
    assert v2.problems[SourceName.COLOCATION.value] == 1


def test_nothing_is_written_against_the_kubelet(v2: MemoryNode) -> None:
    v2.want(msgspec.structs.replace(HALF, throttling_percent=50))
    service = v2.run("api", "burstable", containers=SERVICE)
    v2.kubelet = KubeletConfiguration("here", protects_memory=True)
    v2.colocation.step()
    assert v2.values(service, *PROTECTED, OOM_GROUP) == ["0", "0", "1"]
    assert "MemoryQoS" in v2.problem
    v2.kubelet = None
    v2.colocation.step()
    assert v2.values(service, *PROTECTED, OOM_GROUP) == ["0", "0", "0"]
    assert "the kubelet's configuration is not known" in v2.problem
    v2.kubelet = KubeletConfiguration("here", kills_single_process=True)
    v2.colocation.step()
    assert v2.values(service, *PROTECTED, OOM_GROUP) == [str(GIB), str(2 * GIB), "0"]


def test_more_than_the_node_has_is_cut_and_said(v2: MemoryNode) -> None:
    v2.want(HALF)
    v2.run("api", "burstable", containers=SERVICE)
    v2.allocatable_bytes = GIB
    v2.colocation.step()
    assert v2.values("/kubepods", *PROTECTED) == [str(GIB), str(GIB)]
    assert "each gets a part" in v2.problem
    v2.allocatable_bytes = None
    v2.colocation.step()
    assert v2.problem == "the allocatable memory of the node is not known"


def test_cgroup_v1_is_a_problem(node: ColocatedNode) -> None:
    if node.controllers.version("memory") == 2:
        pytest.skip("the memory controller of this machine is that of cgroup v2")
    node.strategies = memory_qos(HALF)
    node.run("api", "burstable", containers=SERVICE)
    node.colocation.step()
    wanted = node.colocation.state.wanted[PodMemoryQos.name]
    assert not wanted.files
    assert wanted.problem.startswith("the memory controller of cgroup v2 is needed")
