"""Values on trees of regular files, which accept every value; `test_values_kernel.py` uses
the kernel."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cgroup import limits as values
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone, Handles
from agent.cgroup.journal import Journal, OriginalValue
from agent.cgroup.order import WriteState
from agent.model.linux_resources import NO_QUOTA, UNLIMITED, CpuQuota, LinuxResources
from tests.cgroup.current_limits import current_limits

V1_GROUP = {
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
    "cpu/cpu.shares": "2",
    "memory/memory.limit_in_bytes": "9223372036854771712",
    "memory/memory.usage_in_bytes": "4096",
    "cpuset/cpuset.cpus": "0-3",
    "cpuset/cpuset.mems": "0-1",
    "cpuset/cpuset.memory_migrate": "0",
}
V2_GROUP = {
    "cpu.max": "max 100000",
    "cpu.weight": "1",
    "memory.max": "max",
    "memory.current": "4096",
    "memory.min": "0",
    "memory.oom.group": "0",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "cpuset.mems.effective": "0-1",
}
POD = "/kubepods/besteffort/podx"
CONTAINER = f"{POD}/container"
FULL = LinuxResources(mems="0", shares=1024, quota=CpuQuota(50_000), memory_limit_bytes=1 << 20)


class Recorder(Handles):
    """Records calls, and fails or ignores the configured writes."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.refused: dict[str, int] = {}
        self.ignored: set[str] = set()
        self.before_write: Callable[[], None] = lambda: None

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        return super().read(path)

    def write(self, path: str, data: bytes) -> None:
        self.before_write()
        line = f"{path.removeprefix(self.root)} {data.decode().strip()}"
        if line in self.refused:
            raise OSError(self.refused[line], os.strerror(self.refused[line]))
        self.writes.append(line)
        if line not in self.ignored:
            super().write(path, data)


class Machine:
    """A folder with the layout of `/sys/fs/cgroup`."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.root = folder / "cgroup"
        self.kind = kind
        self.root.mkdir()
        if kind == "v2":
            (self.root / "cgroup.controllers").write_text("cpuset cpu memory\n")
        elif kind == "hybrid":
            (self.root / "unified").mkdir()
            (self.root / "unified/cgroup.controllers").write_text("memory\n")
        for group in ("", "/kubepods", "/kubepods/besteffort", POD, CONTAINER):
            self.make(group)
        self.handles = Recorder(self.root)
        self.controllers = Controllers(str(self.root), self.handles)
        self.journal = Journal(folder / "journal")

    def make(self, group: str) -> None:
        for name, text in self.contents().items():
            folder, _, file = name.rpartition("/")
            path = self.root / folder / group.lstrip("/") / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    def contents(self) -> dict[str, str]:
        if self.kind == "v1":
            return V1_GROUP
        if self.kind == "v2":
            return V2_GROUP
        memory = {f"unified/{k}": v for k, v in V2_GROUP.items() if k.startswith("memory.")}
        return memory | {k: v for k, v in V1_GROUP.items() if not k.startswith("memory/")}

    def text(self, name: str) -> str:
        return (self.root / name.lstrip("/")).read_text().strip()

    def put(self, name: str, text: str) -> None:
        (self.root / name.lstrip("/")).write_text(text + "\n")

    def apply(
        self,
        container: LinuxResources | None = None,
        pod: LinuxResources | None = None,
        *,
        migrate: bool = False,
    ) -> tuple[list[WriteState], list[str]]:
        """Returns the states, sorted by file name, and the writes until now."""
        groups = {
            group: each for group, each in ((POD, pod), (CONTAINER, container)) if each is not None
        }
        outcome = values.apply(self.controllers, self.journal, groups, migrate=migrate)
        return [each.state for each in outcome.changes], self.handles.writes


@pytest.fixture
def v1(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "v1")


@pytest.fixture
def v2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "v2")


@pytest.fixture(params=["v1", "v2", "hybrid"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_values_are_set_and_read_back(machine: Machine) -> None:
    nodes = "" if machine.kind == "v2" else "0-1"
    before = LinuxResources(mems=nodes, shares=2, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED)
    assert current_limits(machine.controllers, CONTAINER) == before
    outcome = values.apply(machine.controllers, machine.journal, {CONTAINER: FULL})
    assert outcome.ok
    assert len(outcome.having(WriteState.WRITTEN)) == 4
    now = current_limits(machine.controllers, CONTAINER)
    assert now.shares is not None
    assert abs(now.shares - 1024) < 27  # one step of cpu.weight
    assert (now.mems, now.quota, now.memory_limit_bytes) == ("0", CpuQuota(50_000), 1 << 20)
    restored = values.restore(machine.controllers, machine.journal)
    assert restored.ok
    assert current_limits(machine.controllers, CONTAINER) == before
    assert Journal(machine.journal.path).values == {}


def test_hybrid_files_are_found_with_their_controllers(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "hybrid")
    machine.apply(container=FULL)
    assert machine.text(f"cpu{CONTAINER}/cpu.cfs_quota_us") == "50000"
    assert machine.text(f"unified{CONTAINER}/memory.max") == "1048576"
    assert machine.text(f"cpuset{CONTAINER}/cpuset.mems") == "0"


def test_v2_texts(v2: Machine) -> None:
    v2.put(f"{CONTAINER}/cpu.max", "max 20000")
    v2.apply(container=FULL)
    assert v2.text(f"{CONTAINER}/cpu.max") == "10000 20000"
    assert v2.text(f"{CONTAINER}/cpu.weight") == "39"
    values.restore(v2.controllers, v2.journal)
    assert v2.text(f"{CONTAINER}/cpu.max") == "max 20000"
    assert v2.text(f"{CONTAINER}/cpuset.mems") == ""


def test_unchanged_values_need_one_read_of_each_file(machine: Machine) -> None:
    limits = LinuxResources(
        mems="0", shares=1024, quota=CpuQuota(50_000), memory_limit_bytes=1 << 20
    )
    machine.apply(container=limits, pod=limits)
    machine.handles.reads.clear()
    machine.handles.writes.clear()
    machine.journal.path.unlink()
    states, writes = machine.apply(container=limits, pod=limits)
    assert set(states) == {WriteState.RIGHT}
    assert (len(states), writes) == (8, [])
    periods = 0 if machine.kind == "v2" else 2
    assert len(machine.handles.reads) == len(set(machine.handles.reads)) == 8 + periods
    assert not machine.journal.path.exists()


def test_equal_values_are_not_written(v1: Machine, tmp_path: Path) -> None:
    v1.put(f"cpu{CONTAINER}/cpu.shares", "262144")
    v1.put(f"memory{CONTAINER}/memory.limit_in_bytes", "4096")
    wanted = LinuxResources(mems="0-1", shares=300_000, quota=NO_QUOTA, memory_limit_bytes=4097)
    assert v1.apply(container=wanted) == ([WriteState.RIGHT] * 4, [])


@pytest.mark.parametrize(
    ("kind", "file", "lifted"),
    [
        ("v1", f"memory{CONTAINER}/memory.limit_in_bytes", "-1"),
        ("v2", f"{CONTAINER}/memory.max", "max"),
    ],
)
def test_no_memory_limit_is_written_in_the_files_format(
    tmp_path: Path, kind: str, file: str, lifted: str
) -> None:
    it = Machine(tmp_path, kind)
    it.put(file, "8192")
    it.apply(container=LinuxResources(memory_limit_bytes=UNLIMITED))
    assert it.text(file) == lifted


def test_only_files_with_a_wanted_value_are_read(machine: Machine) -> None:
    states, writes = machine.apply(container=LinuxResources(shares=2), pod=LinuxResources())
    assert (states, writes) == ([WriteState.RIGHT], [])
    assert len(machine.handles.reads) == 1


def test_values_grow_from_the_top_and_shrink_from_the_bottom(v1: Machine) -> None:
    small, big = LinuxResources(quota=CpuQuota(1_000)), LinuxResources(quota=CpuQuota(2_000))
    pod, container = f"/cpu{POD}/cpu.cfs_quota_us", f"/cpu{CONTAINER}/cpu.cfs_quota_us"
    v1.apply(pod=big, container=big)
    assert v1.handles.writes == [f"{container} 2000", f"{pod} 2000"]
    v1.handles.writes.clear()
    v1.apply(pod=small, container=small)
    v1.apply(pod=big, container=big)
    assert v1.handles.writes == [
        f"{container} 1000",
        f"{pod} 1000",
        f"{pod} 2000",
        f"{container} 2000",
    ]
    v1.handles.writes.clear()
    values.restore(v1.controllers, v1.journal)
    assert v1.handles.writes == [f"{pod} -1", f"{container} -1"]


def test_a_move_to_other_memory_nodes_goes_through_both(v1: Machine) -> None:
    pod, container = f"/cpuset{POD}/cpuset.mems", f"/cpuset{CONTAINER}/cpuset.mems"
    zero, one = LinuxResources(mems="0"), LinuxResources(mems="1")
    v1.apply(pod=zero, container=zero)
    v1.handles.writes.clear()
    v1.apply(pod=one, container=one)
    assert v1.handles.writes == [f"{pod} 0-1", f"{container} 1", f"{pod} 1"]


def test_migration_is_set_before_the_nodes(v1: Machine) -> None:
    v1.apply(container=LinuxResources(mems="1"), migrate=True)
    folder = f"/cpuset{CONTAINER}"
    assert v1.handles.writes == [f"{folder}/cpuset.memory_migrate 1", f"{folder}/cpuset.mems 1"]
    assert values.restore(v1.controllers, v1.journal).ok
    assert v1.text(f"{folder}/cpuset.memory_migrate") == "0"


def test_v2_migrates_pages_without_a_switch(v2: Machine) -> None:
    _, writes = v2.apply(container=LinuxResources(mems="1"), migrate=True)
    assert writes == [f"{CONTAINER}/cpuset.mems 1"]


@pytest.mark.parametrize("group", ["/", "/kubepods", "/kubepods/besteffort"])
def test_groups_of_several_pods_are_refused(machine: Machine, group: str) -> None:
    outcome = values.apply(machine.controllers, machine.journal, {group: FULL, POD: FULL})
    refused = [each for each in outcome.changes if each.group == group]
    assert {each.state for each in refused} == {WriteState.FAILED}
    assert all("shared by pods" in (each.note or "") for each in refused)
    assert not [each for each in machine.handles.writes if POD not in each]
    assert len(outcome.having(WriteState.WRITTEN)) == 4, "the other groups are written"
    assert not outcome.ok


def test_originals_are_on_disk_before_the_first_write(machine: Machine) -> None:
    recorded: list[int] = []

    def record() -> None:
        recorded.append(len(Journal(machine.journal.path).values))

    machine.handles.before_write = record
    machine.apply(container=FULL)
    assert recorded == [4, 4, 4, 4]
    originals = {key: each.value for key, each in machine.journal.values.items()}
    machine.apply(
        container=LinuxResources(shares=4096, quota=CpuQuota(10_000), memory_limit_bytes=4096)
    )
    assert {key: each.value for key, each in machine.journal.values.items()} == originals
    assert recorded == [4] * 7


OTHERS = ("cpu.max", "cpu.weight", "memory.max", "memory.min", "memory.oom.group")


@pytest.mark.parametrize("kills", range(12))
@pytest.mark.parametrize("others", [(), OTHERS])
def test_what_another_program_has_written_since_stays(
    v2: Machine, kills: int, others: tuple[str, ...]
) -> None:
    """Whenever the agent was killed between its writes, of which each file has two."""

    class Killed(BaseException):
        pass

    def kill() -> None:
        if len(v2.handles.writes) == kills:
            raise Killed

    theirs = {
        "cpu.max": "30000 100000",
        "cpu.weight": "7",
        "memory.max": "8388608",
        "memory.min": "4096",
        "memory.oom.group": "1",
    }
    before = {file: v2.text(f"{CONTAINER}/{file}") for file in theirs}
    v2.handles.before_write = kill
    with contextlib.suppress(Killed):
        for times in (1, 2):
            v2.apply(
                container=LinuxResources(
                    shares=1024 * times,
                    quota=CpuQuota(50_000 * times),
                    memory_limit_bytes=times << 20,
                )
            )
            wanted = {(CONTAINER, "memory.min"): str(times << 20)}
            wanted |= {(CONTAINER, "memory.oom.group"): "1"} if times == 1 else {}
            values.apply_texts(v2.controllers, v2.journal, wanted)
    v2.handles.before_write = lambda: None
    changed = [file for file in others if (CONTAINER, file) in v2.journal.values]
    for file in changed:
        v2.put(f"{CONTAINER}/{file}", theirs[file])
    journal = Journal(v2.journal.path)
    assert values.restore(v2.controllers, journal).ok
    # "1" of memory.oom.group is the agent's own content too.
    left = {file: theirs[file] for file in changed if file != "memory.oom.group"}
    assert {file: v2.text(f"{CONTAINER}/{file}") for file in theirs} == before | left
    assert not journal.values


def test_the_weight_of_a_group_that_becomes_idle_is_the_original(v2: Machine) -> None:
    """The kernel changes the weight of such a group."""
    v2.put(f"{CONTAINER}/cpu.idle", "0")
    v2.apply(container=LinuxResources(shares=1024))
    values.apply_texts(v2.controllers, v2.journal, {(CONTAINER, "cpu.idle"): "1"})
    v2.put(f"{CONTAINER}/cpu.weight", "0")
    values.restore(v2.controllers, Journal(v2.journal.path))
    assert v2.text(f"{CONTAINER}/cpu.weight") == "1"


def test_a_failed_write_of_the_journal_stops_every_write(machine: Machine) -> None:
    machine.journal = Journal(machine.root / "cgroup.procs/journal")
    (machine.root / "cgroup.procs").write_text("")
    states, writes = machine.apply(container=FULL)
    assert (states, writes) == ([WriteState.FAILED] * 4, [])


def test_removed_groups_are_removed_from_the_journal_with_the_next_entry(v2: Machine) -> None:
    v2.apply(container=LinuxResources(shares=1024))
    (v2.root / CONTAINER.lstrip("/")).rename(v2.root / "elsewhere")
    v2.apply(pod=LinuxResources(shares=1024))
    assert list(v2.journal.values) == [(POD, "cpu.weight")]


def test_a_removed_group_is_reported_and_the_others_are_written(machine: Machine) -> None:
    outcome = values.apply(
        machine.controllers, machine.journal, {f"{POD}/removed": FULL, CONTAINER: FULL}
    )
    removed = outcome.having(WriteState.GONE)
    assert {each.group for each in removed} == {f"{POD}/removed"}
    assert len(removed) == len(outcome.having(WriteState.WRITTEN)) == 4
    assert outcome.ok
    with pytest.raises(GroupGone):
        current_limits(machine.controllers, f"{POD}/removed")


def test_restore_removes_a_removed_group_from_the_journal(v2: Machine) -> None:
    v2.apply(container=LinuxResources(shares=1024))
    (v2.root / CONTAINER.lstrip("/")).rename(v2.root / "elsewhere")
    outcome = values.restore(v2.controllers, v2.journal)
    assert [each.state for each in outcome.changes] == [WriteState.GONE]
    assert v2.journal.values == {}


def test_a_restore_may_be_limited_to_some_groups(machine: Machine) -> None:
    machine.apply(container=FULL, pod=FULL)
    of_container = {key for key in machine.journal.values if key[0] == CONTAINER}
    outcome = values.restore(machine.controllers, machine.journal, only=of_container)
    assert {each.group for each in outcome.having(WriteState.WRITTEN)} == {CONTAINER}
    assert {group for group, _ in machine.journal.values} == {POD}


def test_values_that_could_not_be_restored_stay_in_the_journal(v2: Machine) -> None:
    v2.apply(container=FULL)
    v2.handles.refused[f"{CONTAINER}/cpu.max max 100000"] = errno.EINVAL
    outcome = values.restore(v2.controllers, v2.journal)
    (failed,) = outcome.having(WriteState.FAILED)
    assert failed.file == "cpu.max"
    assert failed.note is not None
    assert "Invalid argument" in failed.note
    assert list(v2.journal.values) == [(CONTAINER, "cpu.max")]
    v2.handles.refused.clear()
    assert values.restore(v2.controllers, v2.journal).ok
    assert v2.text(f"{CONTAINER}/cpu.max") == "max 100000"


@pytest.mark.parametrize(
    "number", [errno.EBUSY, errno.EINVAL, errno.EACCES, errno.ENOSPC, errno.EIO]
)
def test_a_refused_write_is_reported_and_the_others_are_made(v2: Machine, number: int) -> None:
    v2.handles.refused[f"{CONTAINER}/cpuset.mems 0"] = number
    outcome = values.apply(v2.controllers, v2.journal, {CONTAINER: FULL})
    (failed,) = outcome.having(WriteState.FAILED)
    assert (failed.file, failed.old) == ("cpuset.mems", "")
    assert os.strerror(number) in (failed.note or "")
    assert failed.refused == (number in (errno.EBUSY, errno.EINVAL))
    assert len(outcome.having(WriteState.WRITTEN)) == 3
    v2.handles.refused.clear()
    assert v2.apply(container=FULL)[0].count(WriteState.WRITTEN) == 1, "the next pass tries again"


@pytest.mark.parametrize("writes", range(5))
def test_no_original_value_is_lost_if_the_agent_is_killed_at_any_write(
    machine: Machine, writes: int
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        if len(machine.handles.writes) == writes:
            raise Killed

    before = current_limits(machine.controllers, CONTAINER)
    machine.handles.before_write = kill
    with contextlib.suppress(Killed):
        machine.apply(container=FULL)
    assert len(machine.handles.writes) == min(writes, 4)
    machine.handles.before_write = lambda: None
    again = Journal(machine.journal.path)
    outcome = values.restore(machine.controllers, again)
    assert outcome.ok
    assert len(outcome.having(WriteState.WRITTEN)) == min(writes, 4)
    assert current_limits(machine.controllers, CONTAINER) == before
    assert again.values == {}


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("v1", f"memory{CONTAINER}/memory.usage_in_bytes"),
        ("v2", f"{CONTAINER}/memory.current"),
    ],
)
def test_memory_is_never_limited_below_its_use(tmp_path: Path, kind: str, use: str) -> None:
    it = Machine(tmp_path, kind)
    it.put(use, str(2 << 20))
    wanted = LinuxResources(memory_limit_bytes=1 << 20)
    outcome = values.apply(it.controllers, it.journal, {CONTAINER: wanted})
    (failed,) = outcome.having(WriteState.FAILED)
    assert "uses more than 1048576 bytes" in (failed.note or "")
    assert failed.refused
    assert it.handles.writes == []
    it.put(use, str(1 << 20))
    assert it.apply(container=wanted)[0] == [WriteState.WRITTEN]


def test_a_used_v2_group_that_cannot_inherit_gets_its_parents_nodes(v2: Machine) -> None:
    v2.apply(container=LinuxResources(mems="0"))
    v2.handles.refused[f"{CONTAINER}/cpuset.mems "] = errno.ENOSPC
    (change,) = values.restore(v2.controllers, v2.journal).changes
    assert (change.state, change.new) == (WriteState.WRITTEN, "0-1")
    assert change.note == f"is used, so it got every node of '{POD}'"


def test_v2_nodes_are_restored_from_the_top(v2: Machine) -> None:
    """Otherwise a group that cannot inherit would get nodes that its parent is about to lose."""
    v2.apply(pod=LinuxResources(mems="0"), container=LinuxResources(mems="0"))
    v2.handles.writes.clear()
    values.restore(v2.controllers, v2.journal)
    assert v2.handles.writes == [f"{POD}/cpuset.mems ", f"{CONTAINER}/cpuset.mems "]


def test_v1_nodes_that_were_empty_are_not_restored(v1: Machine) -> None:
    v1.put(f"cpuset{CONTAINER}/cpuset.mems", "")
    v1.apply(container=LinuxResources(mems="0"))
    (change,) = values.restore(v1.controllers, v1.journal).changes
    assert (change.state, change.note) == (WriteState.RIGHT, "was empty: its value stays")
    assert v1.journal.values == {}


def test_v1_nodes_are_never_set_to_empty(v1: Machine) -> None:
    outcome = values.apply(v1.controllers, v1.journal, {CONTAINER: LinuxResources(mems="")})
    assert "can't inherit" in (outcome.changes[0].note or "")
    assert v1.handles.writes == []


def test_a_value_that_differs_when_read_again_is_reported(v2: Machine) -> None:
    v2.handles.ignored.add(f"{CONTAINER}/cpu.weight 39")
    outcome = values.apply(v2.controllers, v2.journal, {CONTAINER: LinuxResources(shares=1024)})
    (failed,) = outcome.having(WriteState.FAILED)
    assert failed.note == "'39' was written to cpu.weight, '1' read back"


def test_missing_files_are_reported(v2: Machine) -> None:
    """A v2 group whose parent does not enable the controller."""
    (v2.root / CONTAINER.lstrip("/") / "memory.max").unlink()
    outcome = values.apply(v2.controllers, v2.journal, {CONTAINER: FULL})
    (failed,) = outcome.having(WriteState.FAILED)
    assert failed.note == f"'{CONTAINER}' has no memory.max"
    assert len(outcome.having(WriteState.WRITTEN)) == 3
    assert current_limits(v2.controllers, CONTAINER).memory_limit_bytes is None


def test_a_machine_without_a_controller_has_no_limits(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    (root / "cpuset/a").mkdir(parents=True)
    for folder in (root / "cpuset", root / "cpuset/a"):
        (folder / "cpuset.cpus").write_text("0\n")
        (folder / "cpuset.mems").write_text("0\n")
    controllers = Controllers(str(root))
    outcome = values.apply(controllers, Journal(tmp_path / "j"), {"/a": LinuxResources(shares=5)})
    assert outcome.changes == ()
    assert controllers.missing() == ("cpu", "memory")
    assert current_limits(controllers, "/a") == LinuxResources(mems="0")


@pytest.mark.parametrize("name", ["a", "/a/../b", "/a//b"])
def test_an_invalid_group_path_fails(machine: Machine, name: str) -> None:
    outcome = values.apply(machine.controllers, machine.journal, {name: LinuxResources(shares=5)})
    assert [each.state for each in outcome.changes] == [WriteState.FAILED]
    with pytest.raises(CgroupError, match="is not a cgroup path"):
        current_limits(machine.controllers, name)


def test_a_file_in_the_journal_that_is_not_a_limit_is_not_written(v2: Machine) -> None:
    """The journal may contain unknown lines: only files of limits are written."""
    (v2.root / CONTAINER.lstrip("/") / "memory.reclaim").write_text("")
    for file in ("../cgroup.procs", "cgroup.kill", "memory.reclaim"):
        v2.journal.update_values([OriginalValue(CONTAINER, file, "1")])
    outcome = values.restore(v2.controllers, v2.journal)
    assert [each.state for each in outcome.changes] == [WriteState.FAILED] * 3
    assert v2.handles.writes == []
    assert v2.apply(container=LinuxResources(shares=1024))[0] == [WriteState.WRITTEN], (
        "other values are still written"
    )


def test_protection_grows_from_the_top_and_shrinks_from_the_bottom(v2: Machine) -> None:
    above = "/kubepods/besteffort"
    groups = (CONTAINER, POD, above)
    for amount in ("8192", "4096"):
        wanted = {(group, values.MEMORY_MIN): amount for group in groups}
        assert values.apply_texts(v2.controllers, v2.journal, wanted).ok
    from_bottom = [f"/{group.lstrip('/')}/memory.min 4096" for group in groups]
    from_top = [line.replace("4096", "8192") for line in reversed(from_bottom)]
    assert v2.handles.writes == from_top + from_bottom


def test_pods_of_a_class_are_never_killed_together(v2: Machine) -> None:
    wanted = {("/kubepods/besteffort", values.OOM_GROUP): "1"}
    (change,) = values.apply_texts(v2.controllers, v2.journal, wanted).changes
    assert change.state is WriteState.FAILED
    assert not v2.handles.writes


def test_invalid_content_is_an_error_that_names_the_file(v2: Machine) -> None:
    v2.put(f"{CONTAINER}/cpu.max", "?")
    outcome = values.apply(
        v2.controllers, v2.journal, {CONTAINER: LinuxResources(quota=CpuQuota(5_000))}
    )
    assert [each.state for each in outcome.changes] == [WriteState.FAILED]
    with pytest.raises(CgroupError, match=rf"cannot understand cpu\.max of '{CONTAINER}'"):
        current_limits(v2.controllers, CONTAINER)


def test_a_group_without_the_controller_needs_no_lifted_limit(tmp_path: Path) -> None:
    """A v2 parent enables only some controllers for its children, not always cpu and memory."""
    (tmp_path / "a").mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "a/cgroup.procs").write_text("")
    controllers, journal = Controllers(str(tmp_path)), Journal(tmp_path / "j")
    lifted = LinuxResources(quota=NO_QUOTA, memory_limit_bytes=UNLIMITED)
    assert values.apply(controllers, journal, {"/a": lifted}).ok
    assert not values.apply(controllers, journal, {"/a": LinuxResources(quota=CpuQuota(5_000))}).ok
