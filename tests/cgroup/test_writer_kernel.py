"""Writes on the cpuset hierarchy of this machine, v1 or v2, whichever it has: needs root."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import CgroupError, GroupGone
from agent.cgroup.journal import Journal
from agent.cgroup.outcome import WriteState
from agent.cgroup.writer import apply, restore
from agent.host import kernel_events
from agent.host.kernel_events import Inotify, InotifyEvent
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.node.triggers import CgroupWatch
from tests.cgroup.machine import ALL, REAL

X, Y = (CpuSet([cpu]) for cpu in list(ALL)[:2])
BOTH = X | Y
V1 = REAL.version == 1


class Playground:
    """A cgroup of the test, with helpers that bypass the code under test."""

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
            above = os.path.dirname(group)
            for each in ("cpuset.mems", "cpuset.cpus"):
                self.path(group, each).write_text(self.path(above, each).read_text())
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
def play() -> Iterator[Playground]:
    playground = Playground()
    try:
        playground.make("")
        yield playground
    finally:
        playground.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def affinity(pid: int) -> CpuSet:
    return CpuSet(os.sched_getaffinity(pid))


def test_reads(play: Playground) -> None:
    group = play.make("/a", X)
    assert REAL.own_cpus(group) == REAL.effective_cpus(group) == X
    assert REAL.effective_mems(group) == REAL.effective_mems("/")
    assert REAL.children(play.top) == (group,)
    assert play.top in REAL.children("/")
    pid = play.sleeper(group)
    assert REAL.group_of(pid) == group
    process = play.sleepers[-1]
    process.kill()
    process.wait()
    assert REAL.group_of(pid) is None
    play.remove(group)
    with pytest.raises(GroupGone):
        REAL.write(group, X)
    with pytest.raises(GroupGone):
        REAL.own_cpus(group)


def test_a_recreated_group_is_read_anew(play: Playground) -> None:
    """Files stay open between calls, but not beyond the removal of their group."""
    group = play.make("/a", X)
    assert REAL.own_cpus(group) == X
    play.remove(group)
    assert not REAL.exists(group)
    play.make("/a", BOTH)
    assert REAL.own_cpus(group) == BOTH
    play.remove(group)
    play.make("/a", BOTH)
    REAL.write(group, Y)
    assert play.own(group) == REAL.own_cpus(group) == Y


def test_a_refused_write_names_the_reason(play: Playground) -> None:
    group = play.make("/a")
    beyond = CpuSet([60_000])
    with pytest.raises(CgroupError, match=rf"write '60000' to '.*{group}/cpuset\.cpus': "):
        REAL.write(group, beyond)


def test_an_exclusive_cpu_is_taken_and_restored(play: Playground, journal: Journal) -> None:
    """Two pods with a container each: one CPU moves from one to the other, then everything is
    restored."""
    pods = [play.make("/one"), play.make("/two")]
    one, two = (play.make(f"{pod}/c".removeprefix(play.top)) for pod in pods)
    pids = [play.sleeper(one), play.sleeper(two)]
    before = {group: play.own(group) for group in play.groups}

    outcome = apply(REAL, journal, {one: X, two: ALL - X})
    assert outcome.ok, outcome
    assert [(each.group, each.state) for each in outcome.changes] == [
        (one, WriteState.WRITTEN),
        (two, WriteState.WRITTEN),
    ]
    assert outcome.others == ()
    assert [affinity(pid) for pid in pids] == [X, ALL - X]
    assert (play.own(one), play.own(two)) == (X, ALL - X)

    swapped = apply(REAL, journal, {one: ALL - X, two: X})
    assert swapped.ok
    assert [affinity(pid) for pid in pids] == [ALL - X, X]

    back = restore(REAL, journal)
    assert back.ok, back
    # Some kernels with v2 (6.1) do not allow a group with processes to inherit again.
    allowed = {group: (own, own if V1 else own or ALL) for group, own in before.items()}
    assert all(play.own(group) in allowed[group] for group in play.groups)
    assert [affinity(pid) for pid in pids] == [ALL, ALL]
    assert Journal(journal.path).originals == {}


def test_ancestors_are_widened_and_descendants_are_narrowed(
    play: Playground, journal: Journal
) -> None:
    pod = play.make("/pod", X)
    container = play.make("/pod/c", X)
    pid = play.sleeper(container)
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
    assert affinity(pid) == play.own(pod) == play.own(container) == X


def test_disjoint_values_move_down_a_whole_branch(play: Playground, journal: Journal) -> None:
    pod = play.make("/pod", X)
    container = play.make("/pod/c", X)
    inner = play.make("/pod/c/inner", X)
    pid = play.sleeper(inner)
    outcome = apply(REAL, journal, {pod: Y, container: Y})
    assert outcome.ok
    assert play.own(pod) == play.own(container) == Y
    assert affinity(pid) == Y
    again = apply(REAL, journal, {pod: Y, container: Y})
    assert {each.state for each in again.changes} == {WriteState.RIGHT}


def test_a_removed_group_does_not_stop_the_others(play: Playground, journal: Journal) -> None:
    there = play.make("/there")
    gone = f"{play.top}/gone"
    outcome = apply(REAL, journal, {there: X, gone: X})
    assert [each.state for each in outcome.changes] == [WriteState.GONE, WriteState.WRITTEN]
    assert play.own(there) == X

    journalled = play.make("/short")
    assert apply(REAL, journal, {journalled: X}).ok
    play.remove(journalled)
    back = restore(REAL, journal)
    assert back.ok
    assert [each.group for each in back.having(WriteState.GONE)] == [journalled]
    assert journal.originals == {}


def test_original_values_survive_a_restart(play: Playground, journal: Journal) -> None:
    group = play.make("/a", BOTH)
    assert apply(REAL, journal, {group: X}).ok
    restarted = Journal(journal.path)
    assert apply(REAL, restarted, {group: Y}).ok
    assert restore(REAL, Journal(journal.path)).ok
    assert play.own(group) == BOTH


def test_a_value_without_a_journal_entry_is_restored_from_the_runtimes(
    play: Playground, journal: Journal
) -> None:
    group = play.make("/a", X)
    outcome = restore(REAL, journal, {group: BOTH})
    assert outcome.ok
    assert play.own(group) == BOTH


@pytest.mark.skipif(not V1, reason="cgroup v2 cuts by itself")
def test_v1_original_beyond_the_parent_is_narrowed(play: Playground, journal: Journal) -> None:
    pod = play.make("/pod", BOTH)
    container = play.make("/pod/c", BOTH)
    assert apply(REAL, journal, {container: X}).ok
    play.path(pod, "cpuset.cpus").write_text(str(X))
    (change,) = restore(REAL, journal).changes
    assert change.state is WriteState.RIGHT
    assert change.note == f"'{BOTH}' is not within the group above ('{X}')"
    assert play.own(container) == X


@pytest.mark.skipif(V1, reason="cgroup v1 can't inherit")
def test_v2_inheritance_is_restored(play: Playground, journal: Journal) -> None:
    group = play.make("/a")
    assert play.own(group) == EMPTY
    assert apply(REAL, journal, {group: X}).ok
    assert play.own(group) == X
    assert restore(REAL, journal).ok
    assert play.own(group) == EMPTY
    assert REAL.effective_cpus(group) == REAL.effective_cpus(play.top)


@pytest.mark.parametrize("read_each", [True, False])
def test_watches_of_removed_groups_end(play: Playground, read_each: bool) -> None:
    play.make("/kubepods")
    pods = [(f"/kubepods/pod{number}", f"/kubepods/pod{number}/c") for number in range(20)]
    tree = CgroupWatch(f"{REAL.path}{play.top}")
    try:
        at_rest = watches(tree)
        for pod in pods:
            groups = [play.make(name) for name in pod]
            if read_each:
                assert tree.read()
                assert watches(tree) == at_rest + len(pod)
            for group in reversed(groups):
                play.remove(group)
            if read_each:
                assert tree.read()
                assert watches(tree) == at_rest
        tree.read()
        assert watches(tree) == at_rest
    finally:
        tree.close()


@pytest.mark.parametrize("again", [True, False])
def test_watches_are_right_after_events_were_lost(
    play: Playground, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    play.make("/kubepods")
    pod = play.make("/kubepods/pod1")
    tree = CgroupWatch(f"{REAL.path}{play.top}")
    try:
        with_pod = watches(tree)
        play.remove(pod)
        if again:
            play.make("/kubepods/pod1")
        lost = InotifyEvent(-1, kernel_events.OVERFLOW, "")
        with monkeypatch.context() as patch:
            patch.setattr(Inotify, "read", lambda queue: [lost])
            assert tree.read()
        assert watches(tree) == with_pod - (not again)
        tree.read()
        assert watches(tree) == with_pod - (not again)
    finally:
        tree.close()


def watches(tree: CgroupWatch) -> int:
    """The number of watches that the kernel has."""
    lines = Path(f"/proc/self/fdinfo/{tree.fileno()}").read_text().splitlines()
    return sum(line.startswith("inotify wd:") for line in lines)
