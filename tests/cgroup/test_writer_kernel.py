"""Writes on the cpuset hierarchy of this machine, v1 or v2. Needs root."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import CgroupError, GroupGone
from agent.cgroup.journal import Journal
from agent.cgroup.order import WriteState
from agent.cgroup.writer import apply, restore
from agent.host import kernel_events
from agent.host.kernel_events import Inotify, InotifyEvent
from agent.model.cpu.cpuset import CpuSet
from agent.node.triggers import CgroupWatch
from tests.cgroup.machine import ALL, REAL
from tests.cgroup.real_groups import RealGroups

X, Y = (CpuSet([cpu]) for cpu in list(ALL)[:2])
BOTH = X | Y
V1 = REAL.version == 1


@pytest.fixture
def cgroups() -> Iterator[RealGroups]:
    cgroups = RealGroups({"cpuset": (REAL.version, REAL.path)})
    try:
        yield cgroups
    finally:
        cgroups.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def affinity(pid: int) -> CpuSet:
    return CpuSet(os.sched_getaffinity(pid))


def test_reads(cgroups: RealGroups) -> None:
    group = cgroups.make("/a", X)
    assert REAL.own_cpus(group) == REAL.effective_cpus(group) == X
    assert REAL.effective_mems(group) == REAL.effective_mems("/")
    assert REAL.children(cgroups.top) == (group,)
    assert cgroups.top in REAL.children("/")
    process = cgroups.process(group)
    assert REAL.group_of(process.pid) == group
    process.kill()
    process.wait()
    assert REAL.group_of(process.pid) is None
    cgroups.remove(group)
    with pytest.raises(GroupGone):
        REAL.write(group, X)
    with pytest.raises(GroupGone):
        REAL.own_cpus(group)


def test_files_of_a_recreated_group_are_opened_again(cgroups: RealGroups) -> None:
    """Files stay open between calls, until their group is removed."""
    group = cgroups.make("/a", X)
    assert REAL.own_cpus(group) == X
    cgroups.remove(group)
    assert not REAL.exists(group)
    cgroups.make("/a", BOTH)
    assert REAL.own_cpus(group) == BOTH
    cgroups.remove(group)
    cgroups.make("/a", BOTH)
    REAL.write(group, Y)
    assert cgroups.own(group) == REAL.own_cpus(group) == Y


def test_a_failed_write_names_the_reason(cgroups: RealGroups) -> None:
    group = cgroups.make("/a")
    missing = CpuSet([8_000])
    with pytest.raises(CgroupError, match=rf"write '8000' to '.*{group}/cpuset\.cpus': "):
        REAL.write(group, missing)


def test_an_exclusive_cpu_is_taken_and_restored(cgroups: RealGroups, journal: Journal) -> None:
    """Two pods with a container each: one CPU moves from one to the other, then everything is
    restored."""
    pods = [cgroups.make("/one"), cgroups.make("/two")]
    one, two = (cgroups.make(f"{pod}/c".removeprefix(cgroups.top)) for pod in pods)
    pids = [cgroups.process(group).pid for group in (one, two)]
    before = {group: cgroups.own(group) for group in (*pods, one, two)}

    outcome = apply(REAL, journal, {one: X, two: ALL - X})
    assert outcome.ok, outcome
    assert [(each.group, each.state) for each in outcome.changes] == [
        (one, WriteState.WRITTEN),
        (two, WriteState.WRITTEN),
    ]
    assert outcome.others == ()
    assert [affinity(pid) for pid in pids] == [X, ALL - X]
    assert (cgroups.own(one), cgroups.own(two)) == (X, ALL - X)

    swapped = apply(REAL, journal, {one: ALL - X, two: X})
    assert swapped.ok
    assert [affinity(pid) for pid in pids] == [ALL - X, X]

    restored = restore(REAL, journal)
    assert restored.ok, restored
    # Some kernels with v2 (6.1) do not allow a group with processes to inherit again.
    allowed = {group: (own, own if V1 else own or ALL) for group, own in before.items()}
    assert all(cgroups.own(group) in allowed[group] for group in before)
    assert [affinity(pid) for pid in pids] == [ALL, ALL]
    assert Journal(journal.path).originals == {}


def test_ancestors_are_widened_and_descendants_are_narrowed(
    cgroups: RealGroups, journal: Journal
) -> None:
    pod = cgroups.make("/pod", X)
    container = cgroups.make("/pod/c", X)
    pid = cgroups.process(container).pid
    outcome = apply(REAL, journal, {container: BOTH})
    assert outcome.ok
    assert [(each.group, each.old, each.new) for each in outcome.others] == [(pod, X, BOTH)]
    assert affinity(pid) == BOTH

    outcome = apply(REAL, journal, {pod: Y})
    assert outcome.ok
    assert affinity(pid) == Y
    assert REAL.effective_cpus(container) == Y
    # The journal keeps the values before the first write.
    assert {group: each.cpus for group, each in journal.originals.items()} == {
        pod: str(X),
        container: str(X),
    }
    assert restore(REAL, journal).ok
    assert affinity(pid) == cgroups.own(pod) == cgroups.own(container) == X


@pytest.mark.parametrize("read_each", [True, False])
def test_watches_of_removed_groups_are_removed(cgroups: RealGroups, read_each: bool) -> None:
    cgroups.make("/kubepods")
    pods = [(f"/kubepods/pod{number}", f"/kubepods/pod{number}/c") for number in range(20)]
    tree = CgroupWatch(f"{REAL.path}{cgroups.top}")
    try:
        initial = watches(tree)
        for pod in pods:
            groups = [cgroups.make(name) for name in pod]
            if read_each:
                assert tree.read()
                assert watches(tree) == initial + len(pod)
            for group in reversed(groups):
                cgroups.remove(group)
            if read_each:
                assert tree.read()
                assert watches(tree) == initial
        tree.read()
        assert watches(tree) == initial
    finally:
        tree.close()


@pytest.mark.parametrize("recreated", [True, False])
def test_watches_are_correct_after_an_overflow(
    cgroups: RealGroups, monkeypatch: pytest.MonkeyPatch, recreated: bool
) -> None:
    cgroups.make("/kubepods")
    pod = cgroups.make("/kubepods/pod1")
    tree = CgroupWatch(f"{REAL.path}{cgroups.top}")
    try:
        with_pod = watches(tree)
        cgroups.remove(pod)
        if recreated:
            cgroups.make("/kubepods/pod1")
        overflow = InotifyEvent(-1, kernel_events.OVERFLOW, "")
        with monkeypatch.context() as patch:
            patch.setattr(Inotify, "read", lambda queue: [overflow])
            assert tree.read()
        assert watches(tree) == with_pod - (not recreated)
        tree.read()
        assert watches(tree) == with_pod - (not recreated)
    finally:
        tree.close()


def watches(tree: CgroupWatch) -> int:
    """The number of watches that the kernel has."""
    lines = Path(f"/proc/self/fdinfo/{tree.fileno()}").read_text().splitlines()
    return sum(line.startswith("inotify wd:") for line in lines)
