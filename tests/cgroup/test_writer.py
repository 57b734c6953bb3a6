import errno
import os
import posixpath
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cgroup.hierarchy import Populated
from agent.cgroup.journal import Journal
from agent.cgroup.order import WriteOutcome, WriteState
from agent.cgroup.writer import apply, restore
from agent.model.cpu.cpuset import EMPTY, CpuSet
from tests.cgroup.kernel import Kernel, ModelFiles, ModelHierarchy, related

ROOT = CpuSet(range(4))


class FailingFiles(ModelFiles):
    """Writes that fail as configured: a test cannot cause such errors in a real kernel. A write
    that the rules of the kernel forbid is a bug of Topolet, except one that v1 refuses because of
    groups above or below: Topolet reads them then, and a second refusal of a group is a bug."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.failing: set[str] = set()
        self.vanishing: set[str] = set()
        self.ignores_writes = False
        self.before_write: Callable[[str], object] = lambda group: None
        self.log: list[str] = []
        self.refused: set[str] = set()

    def write(self, path: str, data: bytes) -> None:
        group = posixpath.dirname(path) or "/"
        self.before_write(group)
        groups = self.kernel.cpus
        if group in self.vanishing:
            for each in [one for one in groups if f"{one}/".startswith(f"{group}/")]:
                del groups[each]
        if group in self.failing:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if self.ignores_writes:
            return
        try:
            super().write(path, data)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EBUSY) and group not in self.refused:
                self.refused.add(group)
                raise
            raise AssertionError(f"{path}: {error}") from error
        self.refused.discard(group)
        self.log.append(f"{group}={data.decode().strip()}")


class Machine(ModelHierarchy):
    """`reads`: the groups that were read."""

    def __init__(self, version: int, groups: Mapping[str, str | CpuSet]) -> None:
        parsed = {
            group: CpuSet.parse(cpus) if isinstance(cpus, str) else cpus
            for group, cpus in groups.items()
        }
        super().__init__(Kernel(version, {"/": ROOT} | parsed))
        self.files = FailingFiles(self.kernel)
        self.handles = self.files
        self.groups = self.kernel.cpus
        self.reads: list[str] = []

    def own_cpus(self, group: str) -> CpuSet:
        self.reads.append(group)
        return super().own_cpus(group)

    def effective_cpus(self, group: str) -> CpuSet:
        self.reads.append(group)
        return super().effective_cpus(group)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "j")


def cpusets(**texts: str) -> dict[str, CpuSet]:
    return {"/" + name.replace("_", "/"): CpuSet.parse(text) for name, text in texts.items()}


def states(outcome: WriteOutcome) -> dict[str, tuple[WriteState, str | None]]:
    return {each.group: (each.state, each.note) for each in (*outcome.changes, *outcome.others)}


@pytest.mark.parametrize(("version", "reads"), [(1, 1), (2, 2)])
def test_unchanged_values_need_few_reads(journal: Journal, version: int, reads: int) -> None:
    machine = Machine(version, {"/a": "0-1", "/a/b": "0", "/c": "2"})
    outcome = apply(machine, journal, cpusets(a="0-1", c="2"))
    assert {each.state for each in outcome.changes} == {WriteState.RIGHT}
    assert sorted(machine.reads) == sorted(["/a", "/c"] * reads)
    assert machine.files.log == []
    assert not journal.path.exists()


@pytest.mark.parametrize(
    ("groups", "cpuset", "others"),
    [
        ({"/a": "0-1", "/a/b": "0-1"}, "0", []),
        ({"/a": "0-1", "/a/b": "0"}, "0-1", []),
        ({"/a": "0", "/a/b": "0"}, "0-1", ["/a"]),
        ({"/a": "0-1", "/a/b": "0-1", "/a/b/c": "0-1"}, "0", ["/a", "/a/b/c"]),
    ],
    ids=["shrinks", "grows", "beyond the parent", "without CPUs of a child"],
)
def test_v1_groups_above_and_below_are_read_only_after_a_refusal(
    journal: Journal, groups: dict[str, str], cpuset: str, others: list[str]
) -> None:
    machine = Machine(1, groups)
    assert apply(machine, journal, cpusets(a_b=cpuset)).ok
    assert set(machine.reads) == {"/", "/a/b", *others}
    assert machine.groups["/a/b"] == CpuSet.parse(cpuset)


def test_an_original_is_on_disk_before_the_first_write_to_its_group(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-3", "/a/b": "0-3", "/c": "0", "/c/d": "0"})
    on_disk: list[bool] = []
    machine.files.before_write = lambda group: on_disk.append(group in Journal(journal.path))
    outcome = apply(machine, journal, cpusets(a="0-1", c_d="2"))
    assert outcome.ok
    assert all(on_disk)
    originals = {"/a": "0-3", "/a/b": "0-3", "/c": "0", "/c/d": "0"}
    apply(machine, journal, cpusets(a="0", c_d="3"))
    assert {group: each.cpus for group, each in journal.originals.items()} == originals


def test_removed_groups_are_removed_from_the_journal_with_the_next_entry(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-3", "/b": "0-3"})
    apply(machine, journal, cpusets(a="0"))
    del machine.groups["/a"]
    apply(machine, journal, cpusets(b="0"))
    assert list(journal.originals) == ["/b"]


def test_without_a_journal_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file/j")
    machine = Machine(1, {"/a": "0-3", "/b": "1"})
    outcome = apply(machine, journal, cpusets(a="0", b="1"))
    assert machine.files.log == []
    state, note = states(outcome)["/a"]
    assert state is WriteState.FAILED
    assert "file/j" in (note or "")
    assert states(outcome)["/b"] == (WriteState.RIGHT, None)


@pytest.mark.parametrize(
    ("wanted", "group", "reason"),
    [
        ({"/a": EMPTY}, "/a", "'/a' can't get the cpuset ''"),
        ({"/": CpuSet([0])}, "/", "'/' can't get the cpuset '0'"),
        ({"/a": CpuSet([3, 7])}, "/a", "CPUs '7' are not among the machine's '0-3'"),
        ({"/a": CpuSet([0]), "/a/b": CpuSet([1])}, "/a/b", "'1' is beyond '0', which '/a' is to g"),
    ],
)
def test_an_impossible_value_is_reported(
    journal: Journal, wanted: dict[str, CpuSet], group: str, reason: str
) -> None:
    machine = Machine(1, {"/a": "0-3", "/a/b": "0-3", "/c": "0-3"})
    outcome = apply(machine, journal, wanted | cpusets(c="2"))
    assert states(outcome)["/c"] == (WriteState.WRITTEN, None)
    state, note = states(outcome)[group]
    assert state is WriteState.FAILED
    assert reason in (note or "")


def test_a_cpu_of_a_group_with_a_failed_write_is_not_assigned_to_others(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-1", "/b": "2", "/c": "1-2"})
    machine.files.failing = {"/a"}
    outcome = apply(machine, journal, cpusets(a="0", b="1-2", c="1-3"))
    assert states(outcome) == {
        "/a": (WriteState.FAILED, "cannot write '0' to '/a/cpuset.cpus': Device or resource busy"),
        "/b": (WriteState.FAILED, "not written: '/a' failed to give up CPUs '1'"),
        "/c": (WriteState.WRITTEN, None),
    }
    assert machine.files.log == ["/c=1-3"]


def test_a_write_that_depends_on_a_failed_ancestor_is_skipped(journal: Journal) -> None:
    for version in (1, 2):
        machine = Machine(version, {"/a": "0", "/a/b": "0", "/c": "0-1"})
        machine.files.failing = {"/a"}
        outcome = apply(machine, journal, cpusets(a_b="1", c="0"))
        assert states(outcome)["/a"][0] is WriteState.FAILED
        assert states(outcome)["/a/b"] == (WriteState.FAILED, "not written: '/a' has only CPUs '0'")
        assert states(outcome)["/c"][0] is WriteState.WRITTEN


def test_an_ancestor_keeps_the_cpus_of_a_child_with_a_failed_write(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-1", "/a/b": "0-1"})
    machine.files.failing = {"/a/b"}
    outcome = apply(machine, journal, cpusets(a="0"))
    assert states(outcome)["/a"] == (
        WriteState.FAILED,
        "not written: '/a/b' still holds CPUs '0-1'",
    )


def test_a_group_that_is_removed_during_the_writes_frees_its_cpus(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-1", "/a/x": "0-1", "/b": "2"})
    machine.files.vanishing = {"/a/x"}
    outcome = apply(machine, journal, cpusets(a="0", a_x="0", b="1-2"))
    assert {group: state for group, (state, _) in states(outcome).items()} == {
        "/a": WriteState.WRITTEN,
        "/a/x": WriteState.GONE,
        "/b": WriteState.WRITTEN,
    }


def test_a_value_that_differs_when_read_again_is_reported(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-1"})
    machine.files.ignores_writes = True
    outcome = apply(machine, journal, cpusets(a="0"))
    note = "'0' was written, '0-1' read back ('0-1' effective)"
    assert states(outcome) == {"/a": (WriteState.FAILED, note)}


def test_v2_restore(journal: Journal) -> None:
    initial = {"/a": "", "/a/b": "", "/c": "0-1", "/d": "3"}
    machine = Machine(2, initial)
    assert apply(machine, journal, cpusets(a_b="1", c="2")).ok
    machine.files.log.clear()
    outcome = restore(machine, journal, cpusets(d=""))
    assert outcome.ok
    assert machine.files.log == ["/c=0-1", "/d=", "/a/b="]
    assert (machine.groups["/d"], machine.groups["/a/b"]) == (EMPTY, EMPTY)
    assert journal.originals == {}


def test_v2_group_with_processes_that_cannot_inherit_gets_its_parents_cpus(
    journal: Journal,
) -> None:
    machine = Machine(2, {"/a": "0-2", "/a/b": ""})
    assert apply(machine, journal, cpusets(a_b="1")).ok

    def refuse(group: str) -> None:
        raise Populated(f"cannot write '' to {group!r}: No space left on device")

    machine.inherit = refuse  # type: ignore[method-assign]
    outcome = restore(machine, journal)
    assert outcome.ok
    assert machine.groups["/a/b"] == CpuSet.parse("0-2")
    assert states(outcome)["/a/b"] == (WriteState.WRITTEN, "is used, so it got every CPU of '/a'")
    assert journal.originals == {}


def test_values_that_could_not_be_restored_stay_in_the_journal(journal: Journal) -> None:
    for version in (1, 2):
        machine = Machine(version, {"/a": "0-1", "/b": "0-1"})
        assert apply(machine, journal, cpusets(a="0", b="1")).ok
        machine.files.failing = {"/a"}
        outcome = restore(machine, journal)
        assert not outcome.ok
        assert list(journal.originals) == ["/a"]
        machine.files.failing = set()
        assert restore(machine, journal).ok
        assert machine.groups["/a"] == machine.groups["/b"] == CpuSet([0, 1])


def test_v1_original_beyond_the_parent_is_narrowed(journal: Journal) -> None:
    machine = Machine(1, {"/a": "0-1", "/a/b": "0-1"})
    assert apply(machine, journal, cpusets(a_b="0")).ok
    machine.groups["/a"] = CpuSet([0])
    outcome = restore(machine, journal)
    note = "'0-1' is not within the group above ('0')"
    assert states(outcome)["/a/b"] == (WriteState.RIGHT, note)
    assert machine.groups["/a/b"] == CpuSet([0])


def test_v1_restore_keeps_a_group_that_was_empty(journal: Journal) -> None:
    machine = Machine(1, {"/a": "", "/a/b": ""})
    assert apply(machine, journal, cpusets(a_b="1")).ok
    outcome = restore(machine, journal)
    assert states(outcome)["/a"] == (WriteState.RIGHT, "was empty: its value stays")
    assert machine.groups["/a"] == machine.groups["/a/b"] == CpuSet([1])
    assert journal.originals == {}


@st.composite
def machines(draw: st.DrawFn) -> tuple[Machine, list[dict[str, CpuSet]]]:
    def some(of: CpuSet, least: int = 1) -> CpuSet:
        return CpuSet(draw(st.sets(st.sampled_from(list(of)), min_size=least)))

    version = draw(st.sampled_from([1, 2]))
    groups = {"/": ROOT}
    for name in "abcdefg"[: draw(st.integers(1, 7))]:
        parent = draw(st.sampled_from(list(groups)))
        cpus = some(groups[parent]) if version == 1 else some(ROOT, least=0)
        groups[posixpath.join(parent, name)] = cpus
    names = [group for group in groups if group != "/"]
    targets = []
    for _ in range(2):
        limits = {"/": ROOT}
        target = {}
        for group in names:
            limits[group] = limits[posixpath.dirname(group)]
            if draw(st.booleans()):
                target[group] = limits[group] = some(limits[group])
        targets.append(target)
    machine = Machine(version, groups)
    machine.files.failing = draw(st.sets(st.sampled_from(names), max_size=2))
    machine.files.vanishing = draw(st.sets(st.sampled_from(names), max_size=1))
    return machine, targets


def every_group_keeps_a_cpu(before: Mapping[str, CpuSet], target: Mapping[str, CpuSet]) -> bool:
    """Then no group has to share a CPU temporarily."""
    return all(
        cpus & limit
        for group, cpus in before.items()
        for parent, limit in target.items()
        if f"{group}/".startswith(f"{parent}/")
    )


@settings(max_examples=300, deadline=None)
@given(machines())
def test_errors_never_break_order_or_exclusivity(
    case: tuple[Machine, list[dict[str, CpuSet]]],
) -> None:
    machine, targets = case
    initial = dict(machine.groups)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "j")
        for target in targets:
            before = dict(machine.groups)
            machine.files.refused.clear()
            outcome = apply(machine, journal, target)  # the machine checks the rules of the kernel
            assert {each.group for each in outcome.changes} == target.keys()
            for each in outcome.changes:
                if each.state in (WriteState.RIGHT, WriteState.WRITTEN) and machine.exists(
                    each.group
                ):
                    assert machine.groups[each.group] == target[each.group]
            strict = machine.version == 1 and every_group_keeps_a_cpu(before, target)
            for failed in outcome.having(WriteState.FAILED) if strict else ():
                # A failed group may be removed later, together with its parent.
                kept = machine.groups.get(failed.group, EMPTY) - target[failed.group]
                for group, cpus in machine.groups.items():
                    if not related(group, failed.group):
                        assert not (cpus - before[group]) & kept, f"{group} and {failed.group}"
        machine.files.failing = set()
        machine.files.vanishing = set()
        assert restore(machine, journal).ok
        for group, cpus in machine.groups.items():
            assert cpus == initial[group], f"{group} has its original value"
        assert journal.originals == {}
