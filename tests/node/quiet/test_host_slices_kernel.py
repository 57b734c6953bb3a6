"""Daemons in real cgroups, v1 on most machines and v2 in the guest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup import limits
from agent.cgroup.hierarchy import CPUS, Controllers, Hierarchy, mounted
from agent.cgroup.host_slices import SliceCpus
from agent.cgroup.limits import PARTITION
from agent.model.cpu.cpuset import CpuSet
from agent.node.quiet.host_slices import HostSlices
from tests.cgroup.real_groups import RealGroups
from tests.node.quiet.quiet_host import QuietHost
from tests.waiting import eventually

ROOT: Final = "/sys/fs/cgroup"
SPINNING: Final = ("sh", "-c", "while :; do :; done")


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    mount = None if os.geteuid() else mounted(ROOT, "cpuset")
    cpus = os.sched_getaffinity(0)
    if mount is None or len(cpus) < 2:
        pytest.skip("needs root, two CPUs and the cpuset controller")
    real = RealGroups({"cpuset": mount})
    yield real
    real.close()
    # The kernel (as 6.1) frees the CPUs of a partition a moment after its end.
    eventually("the CPUs are free", lambda: os.sched_getaffinity(0) == cpus)


@pytest.fixture
def hierarchy(tmp_path: Path, groups: RealGroups) -> Iterator[Hierarchy]:
    """Its group `/` is the first one of the test."""
    mount = mounted(ROOT, "cpuset")
    assert mount is not None
    root = tmp_path / "cgroup"
    if mount[0] == 1:
        root.mkdir()
    (root / "cpuset" if mount[0] == 1 else root).symlink_to(mount[1] + groups.top)
    hierarchy = Hierarchy(str(root))
    yield hierarchy
    hierarchy.close()


@pytest.fixture
def host(tmp_path: Path, hierarchy: Hierarchy) -> QuietHost:
    others = {"slice": lambda: SliceCpus(hierarchy)}
    controllers = Controllers(str(tmp_path / "cgroup"), hierarchy.handles, others)
    host = QuietHost(
        tmp_path, controllers, lambda journal: HostSlices(controllers, hierarchy, journal)
    )
    host.cpus = CpuSet(os.sched_getaffinity(0))
    return host


def test_a_busy_daemon_leaves_the_cpus_of_an_owner_and_comes_back(
    groups: RealGroups, host: QuietHost
) -> None:
    groups.make("/system.slice")
    group = groups.make("/system.slice/a.service")
    daemon = groups.process(group, *SPINNING).pid
    first = CpuSet([0])
    host.own(host.cpus - first)
    host.step()
    assert not host.quiet.state.failed
    assert CpuSet(os.sched_getaffinity(daemon)) == first
    processor = Path(f"/proc/{daemon}/stat")
    eventually("it runs on CPU 0", lambda: processor.read_text().split()[38] == "0")
    host.start()
    assert limits.restore(host.controllers, host.journal).ok
    assert CpuSet(os.sched_getaffinity(daemon)) == host.cpus


def test_daemons_end_no_partition_of_pods(groups: RealGroups, host: QuietHost) -> None:
    """As the one of `/kubepods` on kernels in which only partitions have partitions in them."""
    kubepods = groups.make("/kubepods", host.cpus - CpuSet([0, 1]))
    partition = groups.path(kubepods, PARTITION)
    if not partition.exists():
        pytest.skip("needs cgroup v2")
    groups.path(groups.top, CPUS).write_text(str(host.cpus - CpuSet([0])))
    groups.path(groups.top, PARTITION).write_text("root")
    partition.write_text("root")
    assert partition.read_text() == "root\n"
    groups.process(groups.make("/system.slice"))
    host.own(CpuSet([max(host.cpus)]))
    host.step()
    assert not host.quiet.state.failed
    assert partition.read_text() == "root\n"
    assert groups.own(f"{groups.top}/system.slice") == CpuSet([0, 1])


def test_processes_in_the_group_of_all_are_told_to_stay(
    host: QuietHost, hierarchy: Hierarchy, tmp_path: Path
) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("3:cpuset:/\n0::/\n")
    hierarchy.proc = str(tmp_path / "proc")
    host.own(host.cpus - CpuSet([0]))
    host.step()
    text = "the processes in the group / of cgroup v{} stay on all CPUs"
    assert host.shown().problem == text.format(hierarchy.version)
