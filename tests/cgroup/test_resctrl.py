"""Groups of resctrl and their threads, as values of groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone, Hierarchy, mounted
from agent.cgroup.journal import Journal
from agent.cgroup.limits import RESCTRL_GROUP, SCHEMATA
from agent.cgroup.order import WriteState
from agent.cgroup.resctrl import ControlGroups
from tests.cgroup.real_groups import RealGroups
from tests.cgroup.resctrl_kernel import INTEL, OF_INTEL, MountedResctrl, ResctrlKernel

ROOT: Final = "/sys/fs/cgroup"
FULL: Final = "L3:0=7ff;1=7ff MB:0=100;1=100"
PART: Final = "L3:0=f;1=f MB:0=40;1=40"


class Machine:
    def __init__(self, folder: Path, groups: RealGroups) -> None:
        (folder / "resctrl").mkdir()
        self.kernel = ResctrlKernel(OF_INTEL, INTEL)
        self.mount = MountedResctrl(folder / "resctrl", self.kernel)
        self.groups = groups
        self.resctrl = ControlGroups(self.mount.path, Hierarchy(ROOT))
        self.controllers = Controllers(ROOT, others={"resctrl": lambda: self.resctrl})
        self.journal = Journal(folder / "journal")

    def apply(self, wanted: dict[tuple[str, str], str]) -> list[WriteState]:
        outcome = limits.apply_texts(self.controllers, self.journal, wanted)
        return [change.state for change in outcome.changes]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    mount = None if os.geteuid() else mounted(ROOT, "cpuset")
    if mount is None:
        pytest.skip("no cgroups of the cpuset controller can be made here")
    groups = RealGroups({"cpuset": mount})
    try:
        machine = Machine(tmp_path, groups)
    except OSError as error:
        groups.close()
        pytest.skip(f"FUSE can't be mounted here: {error}")
    yield machine
    machine.mount.close()
    groups.close()


def test_a_group_is_made_with_its_parts_and_removed(machine: Machine) -> None:
    assert machine.controllers.read("/BE", SCHEMATA) == ""
    assert machine.apply({("/BE", SCHEMATA): PART}) == [WriteState.WRITTEN]
    assert machine.kernel.schemata["BE"]["L2"] == {0: 0xFF, 3: 0xFF}, "it has no strategy"
    assert machine.apply({("/BE", SCHEMATA): PART}) == [WriteState.RIGHT]
    assert limits.restore(machine.controllers, Journal(machine.journal.path)).ok
    assert list(machine.kernel.schemata) == [""]


def test_a_group_that_exists_gets_its_parts_back(machine: Machine) -> None:
    machine.kernel.make("BE")
    machine.kernel.write("BE", "schemata", "L3:1=3\nL2:3=f")
    before = machine.kernel.state()
    assert machine.apply({("/BE", SCHEMATA): PART}) == [WriteState.WRITTEN]
    assert machine.kernel.schemata["BE"]["L2"] == {0: 0xFF, 3: 0xF}, "it has no strategy"
    assert limits.restore(machine.controllers, machine.journal).ok
    assert machine.kernel.state() == before


def test_the_root_group_is_never_written(machine: Machine) -> None:
    assert machine.apply({("/", SCHEMATA): PART}) == [WriteState.FAILED]
    assert not machine.kernel.calls


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("L3:0=5;1=f", r"Invalid argument \(mask 5 has non-consecutive"),
        ("L3:0=1;1=f", r"Invalid argument \(mask 1 "),
        ("L3:7=f", r"Invalid argument \(unknown domain L3 7\)"),
    ],
)
def test_a_refusal_has_the_words_of_the_kernel_and_leaves_no_group(
    machine: Machine, text: str, reason: str
) -> None:
    with pytest.raises(CgroupError, match=reason):
        machine.resctrl.write("/BE", SCHEMATA, text)
    assert list(machine.kernel.schemata) == [""]


def test_a_machine_without_a_group_left_is_full_until_one_is_removed(machine: Machine) -> None:
    for number in range(5):
        machine.kernel.make(f"other{number}")
    with pytest.raises(CgroupError, match=r"make .*No space left on device \(Out of CLOSIDs\)"):
        machine.resctrl.write("/BE", SCHEMATA, PART)
    assert machine.resctrl.full
    machine.resctrl.write("/other0", SCHEMATA, "")
    assert not machine.resctrl.full


def test_threads_of_a_cgroup_and_of_those_in_it_move(machine: Machine) -> None:
    container = machine.groups.make("/c")
    nested = machine.groups.make("/c/nested")
    main = machine.groups.process(container)
    inner = machine.groups.process(nested)
    machine.kernel.make("BE")
    assert machine.controllers.read(container, RESCTRL_GROUP) == "/"
    assert machine.apply({(container, RESCTRL_GROUP): "/BE"}) == [WriteState.WRITTEN]
    assert machine.kernel.tasks == {main.pid: "BE", inner.pid: "BE"}
    late = machine.groups.process(container)
    machine.controllers.look()
    assert machine.controllers.read(container, RESCTRL_GROUP) == "/,/BE"
    assert machine.apply({(container, RESCTRL_GROUP): "/BE"}) == [WriteState.WRITTEN]
    assert machine.kernel.tasks[late.pid] == "BE"
    assert limits.restore(machine.controllers, machine.journal).ok
    assert not machine.kernel.tasks


def test_every_thread_of_a_process_moves(machine: Machine) -> None:
    container = machine.groups.make("/c")
    code = (
        "import threading,sys\n"
        "[threading.Thread(target=threading.Event().wait).start() for _ in range(700)]\n"
        "print('all', flush=True)"
    )
    process = machine.groups.process(container, sys.executable, "-c", code)
    assert process.stdout is not None
    assert process.stdout.readline() == "all\n"
    machine.resctrl.write("/BE", SCHEMATA, PART)
    machine.resctrl.write(container, RESCTRL_GROUP, "/BE")
    assert len(machine.kernel.tasks) == 701


def test_groups_are_made_before_and_removed_after_their_threads_move(machine: Machine) -> None:
    container = machine.groups.make("/c")
    process = machine.groups.process(container)
    wanted = {(container, RESCTRL_GROUP): "/BE", ("/BE", SCHEMATA): PART}
    assert machine.apply(wanted) == [WriteState.WRITTEN, WriteState.WRITTEN]
    assert limits.restore(machine.controllers, machine.journal).ok
    words = [call.split()[0] for call in machine.kernel.calls]
    assert words == ["mkdir", "BE/schemata", "BE/tasks", "/tasks", "rmdir"]
    assert machine.kernel.calls[2] == f"BE/tasks {process.pid}"


def test_cgroups_without_threads_and_machines_without_resctrl_have_no_values(
    machine: Machine, tmp_path: Path
) -> None:
    container = machine.groups.make("/c")
    assert machine.apply({(container, RESCTRL_GROUP): "/BE"}) == [WriteState.GONE]
    machine.apply({("/BE", SCHEMATA): PART})
    without = ControlGroups(str(tmp_path / "none"), Hierarchy(ROOT))
    with pytest.raises(GroupGone, match="not mounted"):
        without.read("/BE", SCHEMATA)
    assert not without.names()
    controllers = Controllers(ROOT, others={"resctrl": lambda: without})
    outcome = limits.restore(controllers, machine.journal)
    assert [change.state for change in outcome.changes] == [WriteState.GONE]
    assert not machine.journal.values, "resctrl is unmounted with all groups"


class _Late(Hierarchy):
    """It tells also a thread that has ended."""

    ended = 0

    def threads_below(self, group: str) -> tuple[int, ...]:
        return (*super().threads_below(group), self.ended)


def test_threads_that_end_meanwhile_do_not_matter(machine: Machine) -> None:
    container = machine.groups.make("/c")
    machine.kernel.make("BE")
    running, short = (machine.groups.process(container) for _ in range(2))
    late = _Late(ROOT)
    late.ended = short.pid
    short.kill()
    short.communicate()
    machine.groups.processes.remove(short)
    ControlGroups(machine.mount.path, late).write(container, RESCTRL_GROUP, "/BE")
    assert machine.kernel.tasks == {running.pid: "BE"}
