"""The mask of workqueues on the real kernel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.limits import WORKQUEUE_CPUS
from agent.cgroup.machine_files import MachineFiles
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import QUIET
from agent.node.quiet.workqueues import Workqueues
from tests.node.quiet.quiet_host import QuietHost
from tests.node.quiet.quieted import WORKQUEUES, QuietMachine, quiet_pod

MASKS: Final = Path("/sys/devices/virtual/workqueue")


@pytest.fixture
def masks() -> Iterator[CpuSet]:
    """The CPUs of all workqueues, which come back whatever a test does."""
    if os.geteuid() or not os.access(MASKS / "cpumask", os.W_OK):
        pytest.skip("needs root and a writable mask of workqueues")
    cpus = CpuSet(os.sched_getaffinity(0))
    text = (MASKS / "cpumask").read_text()
    if len(cpus) < 2 or not cpus <= CpuSet.parse_mask(text):
        pytest.skip("needs two CPUs that workqueues use")
    yield cpus
    (MASKS / "cpumask").write_text(text)


def host(folder: Path, cpus: CpuSet) -> QuietHost:
    """An agent whose feature writes this machine's mask."""
    controllers = Controllers("/sys/fs/cgroup", others={"workqueue": MachineFiles})
    host = QuietHost(folder, controllers, lambda journal: Workqueues("/", journal.value))
    host.cpus = cpus
    return host


def rescuers_of(workqueue: str) -> list[int]:
    """The threads that do the work of a workqueue when no memory is left: on its CPUs."""
    name, threads = f"kworker/R-{workqueue}\n", []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text() == name:
                threads.append(int(comm.parent.name))
    return threads


def mask() -> CpuSet:
    return CpuSet.parse_mask((MASKS / "cpumask").read_text())


def test_unbound_work_leaves_the_cpus_of_owners_and_comes_back(
    tmp_path: Path, masks: CpuSet
) -> None:
    first = CpuSet([0])
    node = host(tmp_path, masks)
    node.own(masks - first)
    node.step()
    assert not node.quiet.state.failed
    assert mask() == first
    own = CpuSet.parse_mask((MASKS / "writeback/cpumask").read_text())
    assert own == masks, "the workqueue's own mask stays, and is wider"
    for rescuer in rescuers_of("writeback"):
        assert CpuSet(os.sched_getaffinity(rescuer)) == first
    node.start()
    assert limits.restore(node.controllers, node.journal).ok
    assert mask() == masks


def test_unbound_work_stays_while_owners_that_ask_have_all_cpus(node: QuietMachine) -> None:
    node.follow(quiet_pod("a", "0-3", {QUIET: "workqueues"}), quiet_pod("b", "4-7", {QUIET: "all"}))
    assert node.text(WORKQUEUES) == "ff"
    (workqueues,) = node.told().features
    assert workqueues.problem == "owners have all CPUs, and unbound work needs some"


def test_work_that_an_operator_has_confined_stays_confined(node: QuietMachine) -> None:
    """With `workqueue.unbound_cpus=`, or by a write of the mask."""
    node.put(WORKQUEUES, "0f")
    node.follow(quiet_pod("own", "1", {QUIET: "workqueues"}))
    assert node.text(WORKQUEUES) == "0000000d"
    node.follow(quiet_pod("own", "0-3", {QUIET: "workqueues"}))
    assert node.text(WORKQUEUES) == "000000f0", "it needs some"
    node.follow()
    assert node.text(WORKQUEUES) == "0000000f"


def test_what_the_kernel_takes_off_for_partitions_is_not_the_original_mask(tmp_path: Path) -> None:
    """Else those CPUs would be lost when the partition ends before the owner does."""
    folder = tmp_path / "sys/devices/virtual/workqueue"
    folder.mkdir(parents=True)
    (folder / "cpumask").write_text("3\n")
    values = MachineFiles(str(tmp_path))
    assert values.read("/", WORKQUEUE_CPUS) == "0-1", "as before 6.8"
    (folder / "cpumask_requested").write_text("f\n")
    assert values.read("/", WORKQUEUE_CPUS) == "0-3"


def test_a_kernel_without_the_mask_is_told(node: QuietMachine) -> None:
    (node.root / WORKQUEUES).unlink()
    node.follow(quiet_pod("own", "1", {QUIET: "workqueues"}))
    (workqueues,) = node.told().features
    assert workqueues.problem.startswith("this kernel has no ")
