"""Writes on the cpuset hierarchy of this machine, v1 or v2. Needs root."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import CgroupError, GroupGone
from agent.cgroup.journal import Journal
from agent.cgroup.order import WriteState
from agent.cgroup.writer import apply, restore
from agent.host import kernel_events
from agent.host.kernel_events import Inotify, InotifyEvent
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.node.triggers import CgroupWatch
from tests.cgroup.machine import ALL, REAL

X, Y = (CpuSet([cpu]) for cpu in list(ALL)[:2])
BOTH = X | Y
V1 = REAL.version == 1


class Cgroups:
    """A cgroup of the test, with helpers that do not use the code under test."""

    def __init__(self) -> None:
        self.top = f"/topolet-test-{uuid.uuid4().hex[:8]}"
        self.groups: list[str] = []
        self.sleepers: list[subprocess.Popen[bytes]] = []

    def make(self, name: str, cpus: CpuSet | None = None) -> str:
        """A group with these CPUs: by default its parent's on v1, inheriting on v2."""
        group = self.top + name
        if not V1:
            control = self.path(os.path.dirname(group), "cgroup.subtree_control")
            control.write_text("+cpuset")
        os.mkdir(f"{REAL.path}{group}")
        self.groups.append(group)
        if V1:
            parent = os.path.dirname(group)
            for each in ("cpuset.mems", "cpuset.cpus"):
                self.path(group, each).write_text(self.path(parent, each).read_text())
        if cpus is not None:
            self.path(group, "cpuset.cpus").write_text(str(cpus))
        return group

    def sleeper(self, group: str) -> int:
        process = subprocess.Popen(["sleep", "1000"])
        self.sleepers.append(process)
        self.path(group, "cgroup.procs").write_text(str(process.pid))
        return process.pid

    def own(self, group: str) -> CpuSet:
        return CpuSet.parse(self.path(group, "cpuset.cpus").read_text())

    def path(self, group: str, name: str) -> Path:
        return Path(f"{REAL.path}{group}/{name}")

    def remove(self, group: str) -> None:
        os.rmdir(f"{REAL.path}{group}")
        self.groups.remove(group)

    def close(self) -> None:
        for each in self.sleepers:
            each.kill()
            each.wait()
        for group in reversed(list(self.groups)):
            self.remove(group)


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    cgroups = Cgroups()
    try:
        cgroups.make("")
        yield cgroups
    finally:
        cgroups.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def affinity(pid: int) -> CpuSet:
    return CpuSet(os.sched_getaffinity(pid))


def test_reads(cgroups: Cgroups) -> None:
    group = cgroups.make("/a", X)
    assert REAL.own_cpus(group) == REAL.effective_cpus(group) == X
    assert REAL.effective_mems(group) == REAL.effective_mems("/")
    assert REAL.children(cgroups.top) == (group,)
    assert cgroups.top in REAL.children("/")
    pid = cgroups.sleeper(group)
    assert REAL.group_of(pid) == group
    process = cgroups.sleepers[-1]
    process.kill()
    process.wait()
    assert REAL.group_of(pid) is None
    cgroups.remove(group)
    with pytest.raises(GroupGone):
        REAL.write(group, X)
    with pytest.raises(GroupGone):
        REAL.own_cpus(group)


def test_files_of_a_recreated_group_are_opened_again(cgroups: Cgroups) -> None:
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


def test_a_failed_write_names_the_reason(cgroups: Cgroups) -> None:
    group = cgroups.make("/a")
    missing = CpuSet([60_000])
    with pytest.raises(CgroupError, match=rf"write '60000' to '.*{group}/cpuset\.cpus': "):
        REAL.write(group, missing)


def test_an_exclusive_cpu_is_taken_and_restored(cgroups: Cgroups, journal: Journal) -> None:
    """Two pods with a container each: one CPU moves from one to the other, then everything is
    restored."""
    pods = [cgroups.make("/one"), cgroups.make("/two")]
    one, two = (cgroups.make(f"{pod}/c".removeprefix(cgroups.top)) for pod in pods)
    pids = [cgroups.sleeper(one), cgroups.sleeper(two)]
    before = {group: cgroups.own(group) for group in cgroups.groups}

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
    assert all(cgroups.own(group) in allowed[group] for group in cgroups.groups)
    assert [affinity(pid) for pid in pids] == [ALL, ALL]
    assert Journal(journal.path).originals == {}


def test_ancestors_are_widened_and_descendants_are_narrowed(
    cgroups: Cgroups, journal: Journal
) -> None:
    pod = cgroups.make("/pod", X)
    container = cgroups.make("/pod/c", X)
    pid = cgroups.sleeper(container)
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


def test_disjoint_values_of_a_pod_and_its_containers_are_applied(
    cgroups: Cgroups, journal: Journal
) -> None:
    pod = cgroups.make("/pod", X)
    container = cgroups.make("/pod/c", X)
    inner = cgroups.make("/pod/c/inner", X)
    pid = cgroups.sleeper(inner)
    outcome = apply(REAL, journal, {pod: Y, container: Y})
    assert outcome.ok
    assert cgroups.own(pod) == cgroups.own(container) == Y
    assert affinity(pid) == Y
    second = apply(REAL, journal, {pod: Y, container: Y})
    assert {each.state for each in second.changes} == {WriteState.RIGHT}


def test_a_removed_group_does_not_stop_the_others(cgroups: Cgroups, journal: Journal) -> None:
    existing = cgroups.make("/existing")
    removed = f"{cgroups.top}/removed"
    outcome = apply(REAL, journal, {existing: X, removed: X})
    assert [each.state for each in outcome.changes] == [WriteState.WRITTEN, WriteState.GONE]
    assert cgroups.own(existing) == X

    journalled = cgroups.make("/short")
    assert apply(REAL, journal, {journalled: X}).ok
    cgroups.remove(journalled)
    restored = restore(REAL, journal)
    assert restored.ok
    assert [each.group for each in restored.having(WriteState.GONE)] == [journalled]
    assert journal.originals == {}


def test_original_values_survive_a_restart(cgroups: Cgroups, journal: Journal) -> None:
    group = cgroups.make("/a", BOTH)
    assert apply(REAL, journal, {group: X}).ok
    restarted = Journal(journal.path)
    assert apply(REAL, restarted, {group: Y}).ok
    assert restore(REAL, Journal(journal.path)).ok
    assert cgroups.own(group) == BOTH


def test_a_value_without_a_journal_entry_is_restored_from_the_runtimes(
    cgroups: Cgroups, journal: Journal
) -> None:
    group = cgroups.make("/a", X)
    outcome = restore(REAL, journal, {group: BOTH})
    assert outcome.ok
    assert cgroups.own(group) == BOTH


@pytest.mark.skipif(not V1, reason="cgroup v2 limits the effective CPUs itself")
def test_v1_original_beyond_the_parent_is_narrowed(cgroups: Cgroups, journal: Journal) -> None:
    pod = cgroups.make("/pod", BOTH)
    container = cgroups.make("/pod/c", BOTH)
    assert apply(REAL, journal, {container: X}).ok
    cgroups.path(pod, "cpuset.cpus").write_text(str(X))
    (change,) = restore(REAL, journal).changes
    assert change.state is WriteState.RIGHT
    assert change.note == f"'{BOTH}' is not within the group above ('{X}')"
    assert cgroups.own(container) == X


@pytest.mark.skipif(V1, reason="cgroup v1 can't inherit")
def test_v2_inheritance_is_restored(cgroups: Cgroups, journal: Journal) -> None:
    group = cgroups.make("/a")
    assert cgroups.own(group) == EMPTY
    assert apply(REAL, journal, {group: X}).ok
    assert cgroups.own(group) == X
    assert restore(REAL, journal).ok
    assert cgroups.own(group) == EMPTY
    assert REAL.effective_cpus(group) == REAL.effective_cpus(cgroups.top)


@pytest.mark.parametrize("read_each", [True, False])
def test_watches_of_removed_groups_are_removed(cgroups: Cgroups, read_each: bool) -> None:
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
    cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch, recreated: bool
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
