"""Values on the cgroups of this machine, v1 or v2 or both. Needs root."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from agent.cgroup import limits as limit_files
from agent.cgroup import limits as values
from agent.cgroup.hierarchy import MEMS, CgroupError, Controllers, mounted
from agent.cgroup.journal import Journal
from agent.cgroup.order import WriteState
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA, UNLIMITED, CpuQuota, LinuxResources
from tests.cgroup.current_limits import current_limits
from tests.cgroup.real_groups import RealGroups

if os.geteuid() != 0:
    pytest.skip("limits can't be written without root", allow_module_level=True)
ROOT = os.environ.get("TOPOLET_CGROUP_ROOT", "/sys/fs/cgroup")
try:
    FOUND = {each: mounted(ROOT, each) for each in ("cpu", "cpuset", "memory")}
except CgroupError as error:
    pytest.skip(str(error), allow_module_level=True)
MOUNTS = {name: found for name, found in FOUND.items() if found is not None}
if len(MOUNTS) < len(FOUND):
    pytest.skip(f"has only {sorted(MOUNTS)}", allow_module_level=True)
V1_CPU, V1_MEMORY, V1_CPUSET = (MOUNTS[each][0] == 1 for each in ("cpu", "memory", "cpuset"))
V1_SWAP = V1_MEMORY and Path(MOUNTS["memory"][1], limit_files.MEMORY_AND_SWAP).exists()
REAL = Controllers(ROOT)
ALL_NODES = CpuSet.parse(
    Path(MOUNTS["cpuset"][1], "cpuset.mems" if V1_CPUSET else "cpuset.mems.effective").read_text()
)
MIB = 1 << 20
MEMORY_USER = """
import sys
data = bytearray(64 << 20)
data[::4096] = bytes([1]) * (len(data) // 4096)
print("ready", flush=True)
sys.stdin.read()
"""


class Cgroups(RealGroups):
    """The cgroups of a pod and of a container, in every hierarchy."""

    def __init__(self) -> None:
        super().__init__(MOUNTS)
        self.pod = self.top
        self.container = self.make("/container")

    def memory_user(self) -> subprocess.Popen[str]:
        """A process in the container's cgroup that uses 64 MiB."""
        process = self.process(self.container, sys.executable, "-c", MEMORY_USER)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    cgroups = Cgroups()
    try:
        yield cgroups
    finally:
        cgroups.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def test_all_limits_are_set_and_restored(cgroups: Cgroups, journal: Journal) -> None:
    before = {each: current_limits(REAL, each) for each in (cgroups.pod, cgroups.container)}
    assert before[cgroups.container].quota == NO_QUOTA
    assert before[cgroups.container].memory_limit_bytes == UNLIMITED
    cgroups.memory_user()
    wanted = {
        cgroups.pod: LinuxResources(
            mems=str(ALL_NODES), shares=1536, quota=CpuQuota(300_000), memory_limit_bytes=512 * MIB
        ),
        cgroups.container: LinuxResources(
            mems=str(ALL_NODES),
            shares=512,
            quota=CpuQuota(150_000),
            memory_limit_bytes=256 * MIB + 1,
        ),
    }
    outcome = values.apply(REAL, journal, wanted)
    assert outcome.ok, outcome
    now = current_limits(REAL, cgroups.container)
    assert now.quota == CpuQuota(150_000)
    assert now.memory_limit_bytes == 256 * MIB, "whole pages"
    assert now.mems == str(ALL_NODES)
    again = values.apply(REAL, journal, wanted)
    assert {each.state for each in again.changes} == {WriteState.RIGHT}
    # As after a kill of the agent: the journal is on disk.
    restored = values.restore(REAL, Journal(journal.path))
    assert restored.ok, restored
    if V1_CPUSET:
        assert {each: current_limits(REAL, each) for each in before} == before
    assert Journal(journal.path).values == {}


def test_every_change_of_nested_quotas_and_memory_is_legal(
    cgroups: Cgroups, journal: Journal
) -> None:
    """v1 always refuses a quota beyond the parent's."""
    steps = (1_000, 50_000, UNLIMITED)
    legal = [
        (pod, container)
        for pod, container in product(steps, steps)
        if pod == UNLIMITED or UNLIMITED < container <= pod
    ]
    for pair in (each for pairs in product(legal, legal) for each in pairs):
        pod, container = (
            LinuxResources(
                quota=NO_QUOTA if each == UNLIMITED else CpuQuota(each),
                memory_limit_bytes=each if each == UNLIMITED else each * 4096,
            )
            for each in pair
        )
        outcome = values.apply(REAL, journal, {cgroups.pod: pod, cgroups.container: container})
        assert outcome.ok, outcome
        for group, limits in ((cgroups.pod, pod), (cgroups.container, container)):
            now = current_limits(REAL, group)
            assert now.quota == limits.quota
            assert now.memory_limit_bytes == limits.memory_limit_bytes
        if pair == legal[0]:
            assert values.restore(REAL, journal).ok


@pytest.mark.skipif(not V1_SWAP, reason="v2 limits swap by itself, v1 only with swap accounting")
def test_memory_without_swap_grows_and_is_restored(cgroups: Cgroups, journal: Journal) -> None:
    """A runtime sets the limit of memory and swap to the limit of memory, to disable swap."""
    for file in (limit_files.MEMORY, limit_files.MEMORY_AND_SWAP):
        cgroups.path(cgroups.container, file).write_text(str(64 * MIB))
    for memory_bytes in (128 * MIB, 32 * MIB, 96 * MIB, UNLIMITED, 16 * MIB):
        wanted = {cgroups.container: LinuxResources(memory_limit_bytes=memory_bytes)}
        outcome = values.apply(REAL, journal, wanted)
        assert outcome.ok, outcome
        assert current_limits(REAL, cgroups.container).memory_limit_bytes == memory_bytes
    assert values.restore(REAL, journal).ok
    assert current_limits(REAL, cgroups.container).memory_limit_bytes == 64 * MIB


@pytest.mark.skipif(not V1_CPU, reason="cgroup v2 accepts any quota")
def test_a_quota_beyond_the_pods_is_refused_and_reported(
    cgroups: Cgroups, journal: Journal
) -> None:
    assert values.apply(REAL, journal, {cgroups.pod: LinuxResources(quota=CpuQuota(10_000))}).ok
    outcome = values.apply(
        REAL, journal, {cgroups.container: LinuxResources(shares=512, quota=CpuQuota(20_000))}
    )
    (failed,) = outcome.having(WriteState.FAILED)
    assert failed.note is not None
    assert "write '20000' to" in failed.note
    assert "Invalid argument" in failed.note
    assert failed.refused
    assert [each.file for each in outcome.having(WriteState.WRITTEN)] == [limit_files.SHARES]
    assert values.restore(REAL, journal).ok


@pytest.mark.parametrize("shares", [2, 3, 1023, 1024, 262_144])
def test_shares_are_read_back_as_the_kernel_rounds_them(
    cgroups: Cgroups, journal: Journal, shares: int
) -> None:
    wanted = {cgroups.container: LinuxResources(shares=shares)}
    assert values.apply(REAL, journal, wanted).ok
    assert values.apply(REAL, journal, wanted).having(WriteState.RIGHT)
    now = current_limits(REAL, cgroups.container).shares
    assert now is not None
    assert (now == shares) if V1_CPU else limit_files.weight(now) == limit_files.weight(shares)


@pytest.mark.skipif(len(ALL_NODES) < 2, reason="needs two NUMA nodes")
def test_memory_nodes_of_a_pod_and_its_container_change_together(
    cgroups: Cgroups, journal: Journal
) -> None:
    memory_user = cgroups.memory_user()
    first, second = (CpuSet([node]) for node in list(ALL_NODES)[:2])
    before = {each: current_limits(REAL, each).mems for each in (cgroups.pod, cgroups.container)}
    for nodes in (first, second, first | second, second, first):
        wanted = {
            each: LinuxResources(mems=str(nodes)) for each in (cgroups.pod, cgroups.container)
        }
        outcome = values.apply(REAL, journal, wanted, migrate=True)
        assert outcome.ok, outcome
        assert memory_nodes(memory_user.pid) == nodes
    restored = values.restore(REAL, journal)
    assert restored.ok, restored
    assert memory_nodes(memory_user.pid) == ALL_NODES
    for each in restored.changes:
        if each.file == MEMS:
            inherits = before[each.group] == "" and each.note is None
            assert each.new == ("" if inherits else str(ALL_NODES))


def memory_nodes(pid: int) -> CpuSet:
    """The memory nodes that the kernel allows to a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":\t")
        if name == "Mems_allowed_list":
            return CpuSet.parse(value)
    raise AssertionError("this kernel has no NUMA")
