"""Interrupts of machines in files, and those of this machine."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cgroup import irqbalance
from agent.cgroup.hierarchy import Handles
from agent.cgroup.limits import IRQ_AFFINITY
from agent.host import files
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import CRIO_INTERRUPTS
from agent.model.settings.feature_modes import FeatureMode
from agent.node.quiet.interrupts import RETRY_SECONDS
from tests.builders import machine
from tests.cgroup.balancer import Balancer
from tests.node.quiet.quiet_node import (
    KilledError,
    QuietNode,
    affinities,
    interrupts,
)

ORIGINAL: Final = {10: "0-7", 11: "2", 12: "2-3,6", 13: "5", 14: ""}
FOR_CPUS_2_AND_3: Final = {10: "0-1,4-7", 11: "0-1,4-7", 12: "6", 13: "5"}


def make_node(folder: Path, numbers: dict[int, str]) -> QuietNode:
    root = folder / "machine"
    interrupts(root, numbers)
    (root / "proc/irq").mkdir(parents=True, exist_ok=True)
    (root / "proc/irq/default_smp_affinity").write_text("ff\n")
    return QuietNode(folder, root, machine(2, 4), "interrupts")


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> QuietNode:
    """The path of a socket in its folder is short enough."""
    return make_node(tmp_path_factory.mktemp("node"), ORIGINAL)


def default(node: QuietNode) -> str:
    return (node.root / "proc/irq/default_smp_affinity").read_text().strip()


def set_affinity(node: QuietNode, number: int, text: str) -> None:
    (node.root / f"proc/irq/{number}/smp_affinity_list").write_text(f"{text}\n")


def originals() -> dict[int, str]:
    return {number: text for number, text in ORIGINAL.items() if text}


def test_interrupts_leave_the_cpus_of_an_owner_and_come_back(node: QuietNode) -> None:
    node.follow()
    node.step()
    assert affinities(node.root) == originals()
    node.own("a", "2-3")
    node.follow()
    assert affinities(node.root) == FOR_CPUS_2_AND_3
    assert default(node) == "000000f3"
    node.own("b", "5-7")
    node.follow()
    assert affinities(node.root) == {10: "0-1,4", 11: "0-1,4", 12: "0-1,4", 13: "0-1,4"}
    del node.pods["a"]
    node.follow()
    assert affinities(node.root) == {10: "0-4", 11: "2", 12: "2-3", 13: "0-4"}
    node.pods.clear()
    node.follow()
    assert affinities(node.root) == originals()
    assert CpuSet.parse_mask(default(node)) == CpuSet(range(8))
    assert not node.journal.values
    assert not node.problems()


def test_interrupts_come_back_by_restore_and_without_the_feature(node: QuietNode) -> None:
    node.own("a", "2-3")
    for bring_back in (node.restore, lambda: node.start(FeatureMode.OFF)):
        node.start()
        node.follow()
        assert affinities(node.root) == FOR_CPUS_2_AND_3
        bring_back()
        node.follow()
        assert affinities(node.root) == originals()


def test_an_observed_feature_says_what_it_would_write(node: QuietNode) -> None:
    node.start(FeatureMode.OBSERVE)
    node.own("a", "2-3")
    node.follow()
    assert affinities(node.root) == originals()
    assert node.quiet.state.would_write["interrupts"].files == 4
    assert not node.machine.writes


def test_an_interrupt_near_its_device_stays_near(tmp_path: Path) -> None:
    node = make_node(tmp_path, {})
    interrupts(node.root, {20: "4", 21: "4-5"}, node=1)
    interrupts(node.root, {22: "4"}, node=9)
    node.own("a", "4-5")
    node.follow()
    assert affinities(node.root) == {20: "6-7", 21: "6-7", 22: "0-3,6-7"}


def test_cpus_that_the_kernel_isolates_get_no_interrupts_of_others(tmp_path: Path) -> None:
    node = make_node(tmp_path, {20: "4", 21: "6", 22: "4-6"})
    node.topology = machine(2, 4, isolated="5-7")
    node.own("a", "4")
    node.follow()
    assert affinities(node.root) == {20: "0-3", 21: "6", 22: "5-6"}


def test_the_first_core_of_a_pod_keeps_interrupts(tmp_path: Path) -> None:
    node = make_node(tmp_path, {20: "5", 21: "0-7", 22: "6-7", 23: "1"})
    node.own("a", "4-7", {CRIO_INTERRUPTS: "housekeeping"})
    node.follow()
    assert affinities(node.root) == {20: "4", 21: "0-4", 22: "4", 23: "1"}


def test_the_last_cpus_of_a_node_keep_interrupts(node: QuietNode) -> None:
    node.own("a", "0-3")
    node.follow()
    node.own("b", "4-7")
    node.follow()
    assert affinities(node.root) == originals()
    (problem,) = node.problems()
    assert "have all CPUs of this node" in problem
    node.own("b", "4-7", {})
    node.follow()
    assert affinities(node.root)[11] == "4-7", "those of an owner that does not ask are used"
    assert not node.problems()


@pytest.mark.parametrize("others", [0, 700])
def test_new_interrupts_and_other_writers_are_noticed_within_two_seconds(
    node: QuietNode, others: int
) -> None:
    """`others`: so many more interrupts, of which every other one is looked at each second."""
    interrupts(node.root, dict.fromkeys(range(1000, 1000 + others), "1"))
    node.own("a", "2-3")
    node.follow()
    for delay in (0, 1):
        node.step(delay)
        set_affinity(node, 10, "3")
        set_affinity(node, 13, "1-2")
        interrupts(node.root, {30 + delay: "2"})
        node.step(2)
        present = affinities(node.root)
        assert present[10] == "0-1,4-7", "it is the other program's now, which had only CPU 3"
        assert present[13] == "1"
        assert present[30 + delay] == "0-1,4-7"
    assert any("another program" in note and "10" in note for note in node.notes("interrupts"))
    node.step(int(RETRY_SECONDS) + 1)
    assert not node.notes("interrupts")
    node.pods.clear()
    node.follow()
    present = affinities(node.root)
    assert (present[10], present[13], present[30]) == ("3", "1-2", "2")


def test_an_interrupt_that_began_with_the_narrowed_default_gets_the_original_one(
    node: QuietNode,
) -> None:
    node.own("a", "2-3")
    node.follow()
    interrupts(node.root, {40: "0-1,4-7", 41: "0-1"})
    interrupts(node.root, {42: "0-1"}, node=0)
    shutil.rmtree(node.root / "proc/irq/13")
    node.step()
    node.restore()
    expected = originals() | {40: "0-7", 41: "0-1", 42: "0-3"}
    del expected[13]
    assert affinities(node.root) == expected


@pytest.mark.parametrize("managed_error", [errno.EIO, errno.EPERM])
def test_refused_interrupts_are_told_and_tried_again_each_minute(
    node: QuietNode, managed_error: int
) -> None:
    """`managed_error`: that of older and newer kernels."""
    node.machine.refusals = {"/10": managed_error, "/12": errno.ENOSPC}
    node.own("a", "2-3")
    node.follow()
    node.step(5)
    assert affinities(node.root) == FOR_CPUS_2_AND_3 | {10: "0-7", 12: "2-3,6"}
    assert [group for group, _, _ in node.machine.writes].count("/10") == 1
    assert len(node.notes("interrupts")) == 2
    full, managed = sorted(node.notes("interrupts"), key=lambda note: "kernel" in note)
    assert "device10 (10): the kernel manages them itself" in managed
    assert "device12 (12): other CPUs have no free interrupt vectors" in full
    (problem,) = node.problems()
    assert "no free interrupt vectors" in problem, "one that the kernel manages is no problem"
    assert ("/10", IRQ_AFFINITY) not in node.journal

    notes = node.notes("interrupts")
    del node.machine.refusals["/12"]
    for _ in range(int(RETRY_SECONDS)):
        node.step()
        assert "device10" in str(node.notes("interrupts")), "it is told while it is tried again"
    assert notes != node.notes("interrupts")
    assert [group for group, _, _ in node.machine.writes].count("/10") == 2
    assert affinities(node.root)[12] == "6"
    assert not node.problems()

    node.own("b", "7")
    node.follow()
    assert [group for group, _, _ in node.machine.writes].count("/10") == 3, "another is wanted"
    node.pods.clear()
    node.follow()
    assert affinities(node.root) == originals()
    assert not node.journal.values


def test_interrupts_that_leave_when_they_next_occur_are_told_until_they_have_left(
    node: QuietNode,
) -> None:
    node.machine.idle = {"/10", "/12"}
    node.own("a", "2-3")
    node.follow()
    node.step()
    (note,) = node.notes("interrupts")
    assert note.startswith("2 interrupts may occur once more on CPUs of owners: device10 (10), dev")
    assert "device12 (12): the kernel moves an interrupt when it next occurs" in note
    assert not node.problems()
    (node.root / "proc/irq/10/effective_affinity_list").write_text("4\n")
    node.step()
    (note,) = node.notes("interrupts")
    assert note.startswith("1 interrupt may occur once more on CPUs of owners: device12 (12): the")
    node.start()  # as after a kill
    node.follow()
    assert node.notes("interrupts") == (note,)
    node.pods.clear()
    node.follow()
    assert not node.notes("interrupts")


def test_what_an_interrupt_has_of_ours_stays_when_another_move_is_refused(node: QuietNode) -> None:
    node.own("a", "2-3")
    node.follow()
    node.machine.refusals = {"/11": errno.ENOSPC}
    node.own("b", "0")
    node.follow()
    node.step(2)
    assert affinities(node.root)[11] == FOR_CPUS_2_AND_3[11]
    node.machine.refusals = {}
    node.pods.clear()
    node.follow()
    assert affinities(node.root) == originals()


def test_nobody_reads_all_interrupts_twice_a_second(tmp_path: Path) -> None:
    node = make_node(tmp_path, dict.fromkeys(range(600), "0-7"))
    node.own("a", "2-3")
    node.follow()
    node.step(2)
    before = node.machine.reads
    node.step(10)
    assert node.machine.reads - before < 60, "the writer reads only what the feature has not seen"


@pytest.mark.skipif(bool(os.geteuid()), reason="irqbalance answers root only")
def test_open_files_of_interrupts_and_of_cgroups_stay_within_the_limit(tmp_path: Path) -> None:
    number = 200
    node = make_node(tmp_path, dict.fromkeys(range(number), ""))
    for irq in range(number):
        # Only files of the kernel stay open.
        file = node.root / f"proc/irq/{irq}/smp_affinity_list"
        file.symlink_to("/proc/sys/kernel/randomize_va_space")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * others + 40, hard))
    of_cgroups = Handles()
    try:
        for irq in range(number):
            of_cgroups.read(f"{node.root}/proc/irq/{irq}/smp_affinity_list")
        node.start(FeatureMode.OBSERVE)
        node.own("a", "0-2")
        node.follow()
        assert len(node.quiet.state.wanted["interrupts"].files) == number + 1
        node.pods.clear()
        node.follow()
    finally:
        of_cgroups.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_irqbalance_is_told_and_one_that_can_t_be_is_a_problem(node: QuietNode) -> None:
    (node.root / "sys/fs/cgroup" / irqbalance.SERVICE).mkdir(parents=True)
    node.own("a", "2-3")
    node.follow()
    (problem,) = node.problems()
    assert "it has no socket" in problem
    assert "IRQBALANCE_BANNED_CPULIST=2-3" in problem
    balancer = Balancer(node.root, "0")
    try:
        node.step(6)
        balancer.scan()
        assert balancer.banned == CpuSet([0, 2, 3])
        assert not node.problems()
        balancer.answer = "nothing"
        node.step(60)
        (problem,) = node.problems()
        assert "answers 'nothing'" in problem
        balancer.answer = ""
        node.step(int(RETRY_SECONDS))
        assert not node.problems()
        node.pods.clear()
        node.follow()
        balancer.scan()
        assert balancer.banned == CpuSet([0])
    finally:
        balancer.close()
    assert not node.journal.values


CHANGES: Final = st.one_of(
    st.tuples(st.just("own"), st.sampled_from("ab"), st.integers(1, 7)),
    st.tuples(st.just("leave"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("come"), st.integers(50, 52), st.integers(0, 7)),
    st.tuples(st.just("go"), st.integers(50, 52), st.just(0)),
    st.tuples(st.just("refuse"), st.sampled_from([10, 11, 50]), st.booleans()),
)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(CHANGES, min_size=1, max_size=8),
    st.integers(0, 30),
    st.booleans(),
)
def test_an_agent_that_is_killed_at_any_write_leaves_nothing_behind(
    changes: list[tuple[str, Any, Any]], writes: int, restored: bool
) -> None:
    """`restored`: by `topolet restore`, not by an agent without owners."""
    replace = files.replace
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        node = make_node(Path(name), ORIGINAL)
        expected = originals()

        def replaced(*words: Any, **named: Any) -> None:
            if named["durable"]:
                node.machine.count()
            replace(*words, **named)

        refused = {what for change, what, _ in changes if change == "refuse"}
        node.machine.left = writes
        try:
            with mock.patch.object(files, "replace", replaced):
                for change, what, value in changes:
                    happen(node, expected, change, what, value)
                    node.follow()
                    node.step(2)
                    check_quiet(node, refused)
        except KilledError:
            pass
        node.machine.left = None
        node.machine.refusals = {}
        node.pods.clear()
        node.start()
        node.follow()
        if restored:
            node.restore()
        else:
            node.step(2)
        assert affinities(node.root) == expected
        assert CpuSet.parse_mask(default(node)) == CpuSet(range(8))
        if not restored:
            assert not node.journal.values


def happen(node: QuietNode, expected: dict[int, str], change: str, what: Any, value: Any) -> None:
    if change == "own":
        low = value if what == "a" else 0
        node.own(what, str(value), None if value % 2 or low else {})
    elif change == "leave":
        node.pods.pop(what, None)
    elif change == "come" and what not in expected:
        interrupts(node.root, {what: str(value)})
        expected[what] = str(value)
    elif change == "go" and what in expected:
        shutil.rmtree(node.root / f"proc/irq/{what}")
        del expected[what]
    elif change == "refuse":
        node.machine.refusals = {f"/{what}": errno.ENOSPC} if value else {}


def check_quiet(node: QuietNode, refused: set[int]) -> None:
    """Only interrupts that the kernel refused to move may be on CPUs of owners."""
    quiet = CpuSet(int(cpus) for pod, cpus in node.pods.values() if pod.annotations)
    for number, text in affinities(node.root).items():
        assert number in refused or not CpuSet.parse(text) & quiet, (number, text, quiet)


def test_interrupts_of_this_machine_leave_a_cpu_and_come_back(here: QuietNode) -> None:
    before = affinities(here.root)
    default_before = default(here)
    last = str((os.cpu_count() or 1) - 1)
    movable = {
        number for number, text in before.items() if CpuSet.parse(text) & CpuSet([int(last)])
    }
    if not movable:
        pytest.skip("no interrupt uses the last CPU of this machine")
    here.own("a", last, {CRIO_INTERRUPTS: "disable"})
    here.follow()
    here.step(2)
    refused = here.refused()
    for number, text in affinities(here.root).items():
        assert number in refused or not CpuSet.parse(text) & CpuSet([int(last)]), (number, text)
    assert movable - refused, "some were moved"
    assert not CpuSet.parse_mask(default(here)) & CpuSet([int(last)])
    here.start()  # as after a kill
    here.pods.clear()
    here.follow()
    assert affinities(here.root) == before
    assert default(here) == default_before
    assert not here.journal.values
