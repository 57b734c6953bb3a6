"""Values on the cgroups of this machine, v1 or v2 or both. Needs root."""

import os
import subprocess
import sys
import uuid
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
NO_LIMITS = LinuxResources(quota=NO_QUOTA, memory_limit_bytes=UNLIMITED)
MEMORY_USER = """
import sys
data = bytearray(64 << 20)
data[::4096] = bytes([1]) * (len(data) // 4096)
print("ready", flush=True)
sys.stdin.read()
"""


class Cgroups:
    """The cgroups of a pod and of a container, in every hierarchy."""

    def __init__(self) -> None:
        self.pod = f"/topolet-test-{uuid.uuid4().hex[:8]}"
        self.container = f"{self.pod}/container"
        self.processes: list[subprocess.Popen[str]] = []
        self.folders: list[Path] = []
        self.make(self.pod)
        self.make(self.container)

    def make(self, group: str) -> None:
        for controller, (version, path) in MOUNTS.items():
            folder = Path(path + group)
            if version == 2:
                (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
            if not folder.exists():
                folder.mkdir()
                self.folders.append(folder)
            if version == 1 and controller == "cpuset":
                for each in ("cpuset.mems", "cpuset.cpus"):
                    (folder / each).write_text((folder.parent / each).read_text())

    def remove(self, group: str) -> None:
        for folder in [each for each in self.folders if str(each).endswith(group)]:
            folder.rmdir()
            self.folders.remove(folder)

    def memory_user(self) -> subprocess.Popen[str]:
        """A process in the container's cgroup that uses 64 MiB."""
        start = "".join(
            f"echo $$ >{path}{self.container}/cgroup.procs && " for _, path in MOUNTS.values()
        )
        process = subprocess.Popen(
            ["sh", "-c", f'{start} exec "$0" -c "$1"', sys.executable, MEMORY_USER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def close(self) -> None:
        for each in self.processes:
            each.communicate()
        for folder in reversed(self.folders):
            folder.rmdir()


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
    folder = Path(MOUNTS["memory"][1] + cgroups.container)
    for file in (limit_files.MEMORY, limit_files.MEMORY_AND_SWAP):
        (folder / file).write_text(str(64 * MIB))
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


def test_a_period_is_kept(cgroups: Cgroups, journal: Journal) -> None:
    folder = Path(MOUNTS["cpu"][1] + cgroups.container)
    if V1_CPU:
        (folder / "cpu.cfs_period_us").write_text("20000")
    else:
        (folder / "cpu.max").write_text("max 20000")
    assert values.apply(
        REAL, journal, {cgroups.container: LinuxResources(quota=CpuQuota(50_000))}
    ).ok
    assert current_limits(REAL, cgroups.container).quota == CpuQuota(10_000, 20_000)
    if V1_CPU:
        assert (folder / "cpu.cfs_quota_us").read_text() == "10000\n"
        assert (folder / "cpu.cfs_period_us").read_text() == "20000\n"
    else:
        assert (folder / "cpu.max").read_text() == "10000 20000\n"
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


def test_the_limit_is_never_set_below_the_memory_in_use(cgroups: Cgroups, journal: Journal) -> None:
    memory_user = cgroups.memory_user()
    outcome = values.apply(
        REAL, journal, {cgroups.container: LinuxResources(memory_limit_bytes=16 * MIB)}
    )
    (failed,) = outcome.having(WriteState.FAILED)
    assert failed.note is not None
    assert f"uses more than {16 * MIB} bytes" in failed.note
    assert failed.refused
    assert current_limits(REAL, cgroups.container).memory_limit_bytes == UNLIMITED
    assert memory_user.poll() is None
    assert values.apply(
        REAL, journal, {cgroups.container: LinuxResources(memory_limit_bytes=256 * MIB)}
    ).ok


def test_a_recreated_group_does_not_get_the_old_values(cgroups: Cgroups, journal: Journal) -> None:
    assert values.apply(
        REAL,
        journal,
        {
            cgroups.container: LinuxResources(
                shares=512, quota=CpuQuota(50_000), memory_limit_bytes=16 * MIB
            )
        },
    ).ok
    cgroups.remove(cgroups.container)
    outcome = values.apply(REAL, journal, {cgroups.container: NO_LIMITS})
    assert len(outcome.having(WriteState.GONE)) == 2
    cgroups.make(cgroups.container)
    now = current_limits(REAL, cgroups.container)
    assert (now.quota, now.memory_limit_bytes) == (NO_QUOTA, UNLIMITED)
    assert values.apply(
        REAL, journal, {cgroups.container: LinuxResources(quota=CpuQuota(60_000))}
    ).ok
    assert current_limits(REAL, cgroups.container).quota == CpuQuota(60_000)


def test_restore_reports_a_removed_group(cgroups: Cgroups, journal: Journal) -> None:
    assert values.apply(
        REAL,
        journal,
        {
            cgroups.container: LinuxResources(quota=CpuQuota(50_000)),
            cgroups.pod: LinuxResources(quota=CpuQuota(60_000)),
        },
    ).ok
    cgroups.remove(cgroups.container)
    outcome = values.restore(REAL, journal)
    assert [(each.group, each.state) for each in outcome.changes] == [
        (cgroups.pod, WriteState.WRITTEN),
        (cgroups.container, WriteState.GONE),
    ]
    assert journal.values == {}


@pytest.mark.skipif(not V1_CPUSET, reason="cgroup v2 always migrates")
def test_migration_is_optional(cgroups: Cgroups, journal: Journal) -> None:
    wanted = {cgroups.container: LinuxResources(mems=str(ALL_NODES))}
    assert values.apply(REAL, journal, wanted).ok
    assert REAL.read(cgroups.container, limit_files.MIGRATE) == "0"
    assert values.apply(REAL, journal, wanted, migrate=True).ok
    assert REAL.read(cgroups.container, limit_files.MIGRATE) == "1"
    assert values.restore(REAL, journal).ok
    assert REAL.read(cgroups.container, limit_files.MIGRATE) == "0"


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
