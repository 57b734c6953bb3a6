"""Memory QoS on a real cgroup v2 kernel, whose page cache and anonymous memory are under
pressure."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.allocate.colocation.memory_qos import RECLAIMED_BYTES
from agent.cgroup.hierarchy import Controllers, Handles
from agent.cgroup.limits import MEMORY_HIGH, MEMORY_LOW, MEMORY_MAX, MEMORY_MIN, OOM_GROUP
from agent.model.node_slo import MemoryQos
from agent.model.pod.apiobjects import ApiContainer
from agent.model.pod.qos import QOS_LABEL
from agent.node.colocation.memory_qos import PodMemoryQos
from agent.node.features import CHECK_SECONDS
from agent.usage.strategies import Strategies
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ROOT, ColocatedNode, memory_qos
from tests.vm.inside.loads import DISK, DISK_MB, GROW, MIB, grow, load_disk
from tests.waiting import eventually

BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
SHORT_SECONDS: Final = 2.0
"""The emulated machine reclaims a tenth as fast as a real one."""
_NOISE: Final = 2 * MIB
"""The kernel counts pages per CPU before it counts them in the group."""


class RecordedWrites(Handles):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, path: str, data: bytes) -> None:
        self.writes.append(f"{path} {data.decode()}")
        super().write(path, data)


class V2Node(ColocatedNode):
    """Pods whose processes use memory."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.recorded = RecordedWrites()
        self.real = groups
        super().__init__(folder, groups, Controllers(ROOT, self.recorded))

    def run_service(self, name: str, request: int, limit: int) -> str:
        containers = (ApiContainer("main", {"memory": request}, {"memory": limit}),)
        return self.run(name, "burstable", containers=containers)

    def run_batch(self, name: str, limit: int = 64 * MIB) -> str:
        amounts = {BATCH_MEMORY: limit}
        containers = (ApiContainer("main", {BATCH_MEMORY: 0}, amounts),)
        return self.run(name, "besteffort", labels={QOS_LABEL: "BE"}, containers=containers)

    def read_disk(self, group: str, first_mb: int, mb: int) -> None:
        """Fills page cache of the group."""
        words = ("dd", f"if={DISK}", "of=/dev/null", "bs=1M", f"skip={first_mb}", f"count={mb}")
        assert self.real.process(group, *words).wait() == 0

    def grower(self, group: str) -> subprocess.Popen[str]:
        return self.real.process(group, sys.executable, "-IS", "-c", GROW)

    def number(self, group: str, file: str, key: str = "") -> int:
        """A number of the kernel's, without the code under test."""
        words = self.groups.path(group, file).read_text().split()
        return int(words[words.index(key) + 1 if key else 0])

    def limit(self, group: str, limit: int) -> None:
        self.groups.path(group, MEMORY_MAX).write_text(str(limit))

    def step(self) -> float:
        """Returns its seconds. Nothing may fail."""
        begin = time.monotonic()
        self.colocation.step()
        seconds = time.monotonic() - begin
        state = self.colocation.state
        assert not state.failed
        assert not state.wanted[PodMemoryQos.name].problem
        return seconds


@pytest.fixture(scope="module", autouse=True)
def disk() -> None:
    load_disk()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[V2Node]:
    # Without a process that has it open, a disk has no page cache.
    kept_open = os.open(DISK, os.O_RDONLY)
    groups = RealGroups(dict.fromkeys(("cpu", "memory"), (2, ROOT)))
    yield V2Node(tmp_path, groups)
    groups.close()
    os.close(kept_open)


MIN: Final = MemoryQos(enable=True, min_limit_percent=100)
LOW: Final = MemoryQos(enable=True, low_limit_percent=100)
OFF: Final = MemoryQos()


@pytest.mark.parametrize("neighbour", ["a pod", "a unit"])
@pytest.mark.parametrize(("qos", "keeps"), [(OFF, False), (MIN, True), (LOW, True)])
def test_a_service_keeps_its_page_cache_beside_a_neighbour_that_grows(
    node: V2Node, qos: MemoryQos, keeps: bool, neighbour: str
) -> None:
    service = node.run_service("api", 48 * MIB, 96 * MIB)
    node.strategies = memory_qos(qos)
    node.step()
    unit = node.groups.make("/backup.service")
    hog = f"{node.run_batch('batch')}/main" if neighbour == "a pod" else unit
    node.limit(node.real.top, 160 * MIB)
    node.read_disk(f"{service}/main", 0, 40)
    cached = node.number(service, "memory.stat", "file")
    assert cached >= 40 * MIB
    grow(node.grower(hog), 64)
    for _ in range(2):
        node.read_disk(hog, 40, DISK_MB - 40)
    left = node.number(service, "memory.stat", "file")
    assert node.number(hog, "memory.stat", "anon") >= 64 * MIB, "the neighbour has its memory too"
    assert (left >= cached - _NOISE) == keeps


def test_high_falls_in_steps_whose_writes_return_soon(node: V2Node) -> None:
    main = f"{node.run_service('api', 16 * MIB, 32 * MIB)}/main"
    high = 24 * MIB
    node.read_disk(main, 0, 112)
    node.strategies = memory_qos(MemoryQos(enable=True, throttling_percent=50))
    used = node.number(main, "memory.current")
    assert used >= 112 * MIB
    while node.groups.path(main, MEMORY_HIGH).read_text() != f"{high}\n":
        seconds = node.step()
        written, now = node.number(main, MEMORY_HIGH), node.number(main, "memory.current")
        assert written == max(high, used - RECLAIMED_BYTES)
        assert now <= written + _NOISE
        assert seconds < SHORT_SECONDS
        used = now
    assert node.step() < SHORT_SECONDS
    node.strategies = Strategies()
    node.step()
    assert node.value(main, MEMORY_HIGH) == "max"


def test_high_below_memory_that_cannot_be_reclaimed_kills_and_delays_nobody(node: V2Node) -> None:
    """This machine has no swap, so the kernel has nothing to reclaim from anonymous memory."""
    main = f"{node.run_service('api', 16 * MIB, 32 * MIB)}/main"
    growing = node.grower(main)
    grow(growing, 96)
    node.strategies = memory_qos(MemoryQos(enable=True, throttling_percent=50))
    highs = []
    for _ in range(6):
        seconds = node.step()
        highs.append(node.number(main, MEMORY_HIGH))
        assert seconds < SHORT_SECONDS
    assert highs[-1] == 24 * MIB
    assert all(low >= high - RECLAIMED_BYTES for high, low in itertools.pairwise(highs))
    assert growing.poll() is None
    assert node.number(main, "memory.events", "oom_kill") == 0
    assert node.number(main, "memory.stat", "anon") >= 96 * MIB


def test_batch_memory_is_reclaimed_down_to_its_mark(node: V2Node) -> None:
    group = node.run_batch("batch", 64 * MIB)
    main = f"{group}/main"
    node.read_disk(main, 0, 112)
    node.strategies = memory_qos(be=MemoryQos(enable=True, wmark_ratio=50))
    used = [node.number(main, "memory.current")]
    for _ in range(4):
        seconds = node.step()
        used.append(node.number(main, "memory.current"))
        assert seconds < SHORT_SECONDS
        assert used[-2] - used[-1] <= 2 * RECLAIMED_BYTES, "Linux 6.1 reclaims half as much again"
    assert 16 * MIB <= used[-1] <= 32 * MIB + _NOISE


def test_memory_that_cannot_be_reclaimed_is_no_problem(node: V2Node) -> None:
    """The kernel answers EAGAIN."""
    main = f"{node.run_batch('batch', 64 * MIB)}/main"
    growing = node.grower(main)
    grow(growing, 64)
    node.strategies = memory_qos(be=MemoryQos(enable=True, wmark_ratio=50))
    with pytest.raises(BlockingIOError):
        node.groups.path(main, "memory.reclaim").write_text(str(32 * MIB))
    for _ in range(3):
        seconds = node.step()
        assert seconds < SHORT_SECONDS
    assert growing.poll() is None
    assert [each for each in node.recorded.writes if "memory.reclaim" in each]


def test_amounts_between_pages_are_written_once(node: V2Node) -> None:
    service = node.run_service("api", 10_000_001, 33_333_333)
    node.strategies = memory_qos(
        MemoryQos(enable=True, min_limit_percent=33, low_limit_percent=77, throttling_percent=51)
    )
    node.step()
    main = f"{service}/main"
    written = len(node.recorded.writes)
    values = [node.number(main, file) for file in (MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH)]
    assert values == [3_300_000 // 4096 * 4096, 7_700_000 // 4096 * 4096, 21_897_216]
    for _ in range(3):
        node.now += CHECK_SECONDS
        node.step()
    assert len(node.recorded.writes) == written


@pytest.mark.parametrize("limited", ["the container", "all pods"])
def test_a_kill_for_want_of_memory_ends_one_container_or_one_pod(
    node: V2Node, limited: str
) -> None:
    containers = tuple(ApiContainer(name) for name in ("main", "side"))
    two = {"main": 0, "side": 0}
    hog = node.run("hog", "burstable", two, containers=containers)
    other = node.run("other", "burstable", two, containers=containers)
    node.strategies = memory_qos(MemoryQos(enable=True, oom_kill_group=1))
    node.step()
    assert [node.value(group, OOM_GROUP) for group in (hog, f"{hog}/main")] == ["1", "1"]
    growing = node.grower(f"{hog}/main")
    grow(growing, 16)
    beside, of_side, of_other = (
        node.real.process(group) for group in (f"{hog}/main", f"{hog}/side", f"{other}/main")
    )
    node.limit(
        f"{hog}/main" if limited == "the container" else node.real.top + "/kubepods", 64 * MIB
    )
    assert growing.stdin is not None
    growing.stdin.write("128\n")
    growing.stdin.flush()
    eventually("the process is killed", lambda: growing.poll() is not None)
    eventually("the one beside it too", lambda: beside.poll() is not None)
    killed = limited == "all pods"
    if killed:
        eventually("and the rest of its pod", lambda: of_side.poll() is not None)
    assert (of_side.poll() is not None, of_other.poll()) == (killed, None)
