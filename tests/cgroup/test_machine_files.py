"""Files of the machine as values of groups. Those of this machine are only read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone
from agent.cgroup.journal import Journal
from agent.cgroup.limits import (
    GOVERNOR,
    IRQ_AFFINITY,
    IRQ_DEFAULT,
    KINDS_OF_MACHINE,
    RESUME_LATENCY,
    RPS_CPUS,
    WORKQUEUE_CPUS,
    XPS_CPUS,
    apply_texts,
    restore,
)
from agent.cgroup.machine_files import MachineFiles, mask_of
from agent.model.cpu.cpuset import MAX_ID, CpuSet


@given(st.sets(st.integers(0, MAX_ID), max_size=40).map(CpuSet))
def test_a_mask_is_read_as_it_is_written(cpus: CpuSet) -> None:
    mask = mask_of(cpus)
    assert CpuSet.parse_mask(mask) == cpus
    assert all(len(word) == 8 for word in mask.split(","))


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [("", "00000000"), ("0", "00000001"), ("0-31", "ffffffff"), ("32", "00000001,00000000")],
)
def test_a_mask_has_words_of_32_cpus_the_highest_first(cpus: str, mask: str) -> None:
    assert mask_of(CpuSet.parse(cpus)) == mask


@pytest.mark.parametrize(
    ("group", "file", "path"),
    [
        ("/24", IRQ_AFFINITY, "proc/irq/24/smp_affinity_list"),
        ("/", IRQ_DEFAULT, "proc/irq/default_smp_affinity"),
        ("/", WORKQUEUE_CPUS, "sys/devices/virtual/workqueue/cpumask"),
        ("/eth0/rx-0", RPS_CPUS, "sys/class/net/eth0/queues/rx-0/rps_cpus"),
        ("/eth0/tx-1", XPS_CPUS, "sys/class/net/eth0/queues/tx-1/xps_cpus"),
        ("/cpu3", RESUME_LATENCY, "sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us"),
        ("/policy0", GOVERNOR, "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
    ],
)
def test_a_value_has_a_file_that_is_written_and_given_back(
    tmp_path: Path, group: str, file: str, path: str
) -> None:
    of_machine = tmp_path / path
    of_machine.parent.mkdir(parents=True)
    cpus = file not in (RESUME_LATENCY, GOVERNOR)
    of_machine.write_text("3\n" if cpus else "before\n")
    (tmp_path / "cgroup").mkdir()
    files = MachineFiles(str(tmp_path))
    controllers = Controllers(
        str(tmp_path / "cgroup"), others=dict.fromkeys(KINDS_OF_MACHINE, lambda: files)
    )
    journal = Journal(tmp_path / "journal")
    before = controllers.read(group, file)
    text = "2,4" if cpus else "n/a"
    assert apply_texts(controllers, journal, {(group, file): text}).ok
    assert controllers.read(group, file) == text
    assert restore(controllers, journal).ok
    assert controllers.read(group, file) == before
    assert not journal.values


@pytest.mark.parametrize("group", ["/../24", "24", "/a//b", "/.", "", "/a\0b"])
def test_a_group_leads_nowhere_else(tmp_path: Path, group: str) -> None:
    files = MachineFiles(str(tmp_path))
    for use in (files.has, files.read, lambda *key: files.write(*key, "0")):
        with pytest.raises(CgroupError, match="is not a cgroup path"):
            use(group, IRQ_AFFINITY)


def test_what_is_not_a_file_of_the_machine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match=r"no file 'irq\.name'"):
        MachineFiles(str(tmp_path)).read("/24", "irq.name")


def test_a_device_that_left_is_a_group_that_has_ended(tmp_path: Path) -> None:
    files = MachineFiles(str(tmp_path))
    assert not files.has("/24", IRQ_AFFINITY)
    with pytest.raises(GroupGone, match="No such file"):
        files.read("/24", IRQ_AFFINITY)
    with pytest.raises(GroupGone, match="No such file"):
        files.write("/24", IRQ_AFFINITY, "0")
    assert not (tmp_path / "proc").exists()


@pytest.mark.parametrize("content", ["", "x", "ffffffff,", "f" * 70_000])
def test_a_mask_that_cannot_be_understood_is_an_error_that_names_the_file(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "sys/devices/virtual/workqueue/cpumask"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(CgroupError, match=str(path)):
        MachineFiles(str(tmp_path)).read("/", WORKQUEUE_CPUS)


def test_cpus_that_are_none_are_written_as_none(tmp_path: Path) -> None:
    path = tmp_path / "sys/class/net/eth0/queues/rx-0/rps_cpus"
    path.parent.mkdir(parents=True)
    path.write_text("3\n")
    files = MachineFiles(str(tmp_path))
    files.write("/eth0/rx-0", RPS_CPUS, "")
    assert path.read_text() == "00000000\n"
    with pytest.raises(CgroupError, match="CPU list 'x'"):
        files.write("/eth0/rx-0", RPS_CPUS, "x")


def test_the_files_of_this_machine_are_understood() -> None:
    """Some kernels lack some of them; those that are there agree with the kernel's other format."""
    files = MachineFiles()
    for irq in Path("/proc/irq").glob("[0-9]*"):
        if (irq / "smp_affinity").exists():
            mask = CpuSet.parse_mask((irq / "smp_affinity").read_text())
            assert CpuSet.parse(files.read(f"/{irq.name}", IRQ_AFFINITY)) == mask
    present = CpuSet.parse(Path("/sys/devices/system/cpu/possible").read_text())
    for file in (IRQ_DEFAULT, WORKQUEUE_CPUS):
        if files.has("/", file):
            assert CpuSet.parse(files.read("/", file)) & present
    for cpu in present:
        if files.has(f"/cpu{cpu}", RESUME_LATENCY):
            assert files.read(f"/cpu{cpu}", RESUME_LATENCY)
