"""Partitions on files that accept every value, as kernels of several ages have them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cgroup import limits
from agent.cgroup.hierarchy import Handles
from agent.cgroup.limits import EXCLUSIVE, LOAD_BALANCE, PARTITION
from agent.host import files
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.settings.feature_modes import FeatureMode
from tests.builders import machine
from tests.node.colocation.colocated import FileGroups
from tests.node.quiet.partitioned import PartitionedNode

OLD: Final = {
    "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-7",
    PARTITION: "member",
}
NEW: Final = {**OLD, EXCLUSIVE: ""}
BEFORE_6_11: Final = {**NEW, "cpuset.cpus.exclusive.effective": ""}
"""It gives no group exclusive CPUs that are not in the `cpuset.cpus` of all groups above."""


class KilledError(BaseException):
    """No handler of the agent runs after SIGKILL either."""


class RecordedWrites(Handles):
    def __init__(self) -> None:
        super().__init__(0)
        self.writes: list[tuple[str, str, str]] = []
        self.left: int | None = None
        """So many writes before the agent is killed; None for no kill."""
        self.refusal = ""
        """What a partition is that the kernel refuses; "" if it honours each."""

    def count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def write(self, path: str, data: bytes) -> None:
        self.count()
        text = data.decode().strip()
        folder, _, file = path.rpartition("/")
        self.writes.append((os.path.basename(folder), file.removeprefix("cpuset."), text))
        Path(path).write_text(f"{text}\n")
        if text == "isolated" and self.refusal:
            Path(path).write_text(f"{self.refusal}\n")
        elif text == "isolated":
            exclusive = Path(folder, EXCLUSIVE)
            cpus = exclusive if exclusive.exists() else Path(folder, "cpuset.cpus")
            Path(folder, "cpuset.cpus.effective").write_bytes(cpus.read_bytes())


class FileNode(PartitionedNode):
    def __init__(self, folder: Path, kernel: dict[str, str], reserved: str = "0") -> None:
        self.kernel = RecordedWrites()
        groups = FileGroups(folder / "cgroup", kernel)
        (groups.root / "cpuset.cpus.effective").write_text("0-7\n")
        super().__init__(folder, groups, str(groups.root), machine(1, 8), reserved, self.kernel)

    def written(self) -> list[tuple[str, str, str]]:
        """By name of the group, since the last call."""
        writes, self.kernel.writes = self.kernel.writes, []
        return writes

    def present(self) -> Iterator[tuple[str, str]]:
        for file in sorted((self.folder / "cgroup" / "kubepods").rglob("cpuset.*")):
            yield str(file), file.read_text().strip()

    def pass_of_files(self) -> None:
        """The effective CPUs of regular files do not follow."""
        decision = self.decide()
        pods = tuple(self.pods.values())
        self.quiet.before(pods, self.topology, decision)
        self.owned = {owner.uid: owner.cpus for owner in decision.owners}
        self.quiet.follow(pods, self.topology, decision)


def test_a_remote_partition_gets_its_cpus_through_all_groups_above_it(tmp_path: Path) -> None:
    node = FileNode(tmp_path, NEW)
    node.add("a", "2-3")
    node.add("b", "5", kube_class="burstable")
    node.pass_of_files()
    assert node.written() == [
        ("kubepods", "cpus.exclusive", "2-3,5"),
        ("burstable", "cpus.exclusive", "5"),
        ("poda", "cpus.exclusive", "2-3"),
        ("podb", "cpus.exclusive", "5"),
        ("poda", "cpus.partition", "isolated"),
        ("podb", "cpus.partition", "isolated"),
    ]
    assert not node.told()
    node.step()
    assert not node.written()


def test_a_partition_ends_from_below_before_others_get_its_cpus(tmp_path: Path) -> None:
    node = FileNode(tmp_path, NEW)
    node.add("a", "2-3")
    node.add("b", "5")
    node.pass_of_files()
    node.written()
    before = dict(node.present())
    del node.pods["a"]
    pods, decision = tuple(node.pods.values()), node.decide()
    node.quiet.before(pods, node.topology, decision)
    assert node.written() == [
        ("poda", "cpus.partition", "member"),
        ("poda", "cpus.exclusive", ""),
    ]
    node.quiet.follow(pods, node.topology, decision)
    assert node.written() == [("kubepods", "cpus.exclusive", "5")]
    node.start(FeatureMode.OFF)
    node.pass_of_files()
    limits.restore(node.controllers, node.journal)
    assert {text for name, text in node.present() if name.endswith("exclusive")} == {""}
    assert {text for name, text in node.present() if name.endswith("partition")} == {"member"}
    assert before.keys() == dict(node.present()).keys()


def test_a_pod_that_gets_other_cpus_is_no_partition_while_a_pass_writes(tmp_path: Path) -> None:
    node = FileNode(tmp_path, NEW)
    node.add("a", "2-3")
    node.add("b", "5")
    node.pass_of_files()
    node.written()
    other = {**node.pods["a"].annotations, RESOURCE_STATUS: '{"cpuset": "6"}'}
    node.pods["a"] = msgspec.structs.replace(node.pods["a"], annotations=other)
    node.owned = {}
    pods, decision = tuple(node.pods.values()), node.decide()
    node.quiet.before(pods, node.topology, decision)
    assert node.written() == [
        ("poda", "cpus.partition", "member"),
        ("poda", "cpus.exclusive", ""),
    ]
    node.quiet.follow(pods, node.topology, decision)
    assert node.written() == [
        ("kubepods", "cpus.exclusive", "5-6"),
        ("poda", "cpus.exclusive", "6"),
        ("poda", "cpus.partition", "isolated"),
    ]


def test_a_chain_has_the_host_on_what_no_pod_may_use(tmp_path: Path) -> None:
    node = FileNode(tmp_path, OLD, reserved="0-1")
    node.add("a", "2-3")
    node.pass_of_files()
    assert node.written() == [
        ("kubepods", "cpus", "2-7"),
        ("poda", "cpus", "2-3"),
        ("kubepods", "cpus.partition", "root"),
        ("poda", "cpus.partition", "isolated"),
    ]
    assert not node.told()


@pytest.mark.parametrize("kernel", [OLD, NEW])
def test_the_host_leaves_a_chain_all_cpus_of_pods_and_pauses_stay_in_it(
    tmp_path: Path, kernel: dict[str, str]
) -> None:
    node = FileNode(tmp_path, kernel, reserved="0-1")
    node.groups.make("/system.slice")
    node.add("a", "2-3", asks="partitions,host-slices")
    chain = kernel is OLD
    assert str(node.decide().pauses) == ("" if chain else "4-7")
    node.pass_of_files()
    slices = node.groups.path("/system.slice", "cpuset.cpus").read_text().strip()
    assert slices == ("0-1" if chain else "0-1,4-7")
    isolated = [name for name, _, text in node.written() if text == "isolated"]
    assert isolated == ["poda" if chain else "main"]
    assert not node.quiet.state.wanted["partitions"].problem
    node.start(FeatureMode.OFF)
    node.pass_of_files()
    assert not node.groups.path("/system.slice", "cpuset.cpus").read_text().strip()


@pytest.mark.parametrize(
    ("reserved", "chain", "kube_class", "words"),
    [
        ("0", False, "guaranteed", "quiet-chain is not set"),
        ("", True, "guaranteed", "would leave none to the host"),
        ("0", True, "burstable", "would be a partition"),
    ],
)
def test_no_chain_is_made_at_the_cost_of_others(
    tmp_path: Path, reserved: str, chain: bool, kube_class: Any, words: str
) -> None:
    node = FileNode(tmp_path, OLD, reserved)
    node.start(chain=chain)
    node.add("a", "2-3", kube_class=kube_class)
    node.pass_of_files()
    assert not node.written()
    (problem,) = node.told()
    assert words in problem


def test_batch_pods_beside_an_lsr_pod_keep_it_from_being_isolated(tmp_path: Path) -> None:
    node = FileNode(tmp_path, NEW)
    node.add("a", "2-3", qos="LSR")
    node.pass_of_files()
    assert not node.written()
    (problem,) = node.told()
    assert problem == "ns/a: BE pods run on its CPUs 2-3, because it is LSR"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (PARTITION, "isolated invalid (Cpu list in cpuset.cpus not exclusive)", "is isolated inv"),
        (PARTITION, "isolated invalid", "is isolated invalid"),
        ("cpuset.cpus.effective", "", "is isolated, but has the CPUs '', not '2-3'"),
    ],
)
def test_a_broken_partition_is_told_and_made_again(
    tmp_path: Path, file: str, text: str, words: str
) -> None:
    node = FileNode(tmp_path, NEW)
    group = node.add("a", "2-3")
    node.pass_of_files()
    node.written()
    node.groups.path(group, file).write_text(f"{text}\n")
    node.step()
    (problem,) = node.told()
    assert problem.startswith(f"{group} {words}")
    assert text in problem
    assert node.written() == [("poda", "cpus.partition", "member")]
    node.step()
    assert not node.told()
    assert node.written() == [("poda", "cpus.partition", "isolated")]
    node.step()
    assert not node.written()
    node.groups.path(group, file).write_text(f"{text}\n")
    limits.restore(node.controllers, node.journal)
    assert node.value(group, ".partition") == "member"


def test_a_kernel_before_6_11_refuses_partitions_for_a_reason_that_is_told(tmp_path: Path) -> None:
    node = FileNode(tmp_path, BEFORE_6_11)
    node.kernel.refusal = "isolated invalid (cpuset.cpus is empty)"
    group = node.add("a", "2-3")
    before = dict(node.present())
    node.pass_of_files()
    told = []
    for _ in range(4):
        told += [problems := node.told()]
        assert node.kernel.refusal in str(problems), "the kernel's own words at each moment"
        node.step()
    reason = "/kubepods has no cpuset.cpus of its own, which Linux before 6.11 needs"
    assert (f"{group} is {node.kernel.refusal}: {reason}",) in told
    node.start(FeatureMode.OFF)
    node.pass_of_files()
    limits.restore(node.controllers, node.journal)
    assert dict(node.present()) == before


@pytest.mark.parametrize(("listed", "named"), [("2-3", True), ("3", True), ("0-3", False)])
def test_a_group_of_the_host_with_only_cpus_of_an_owner_is_named(
    tmp_path: Path, listed: str, named: bool
) -> None:
    """One that lists others too, as all CPUs, ends no remote partition."""
    node = FileNode(tmp_path, NEW)
    node.groups.make("/system.slice")
    node.groups.path("/system.slice", "cpuset.cpus").write_text(f"{listed}\n")
    node.add("a", "2-3")
    node.pass_of_files()
    text = f"/system.slice has the CPUs {listed} of /kubepods in its cpuset.cpus"
    assert node.told() == ((text,) if named else ())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6),
    st.integers(0, 40),
    st.booleans(),
)
def test_an_agent_that_is_killed_at_any_write_leaves_no_partition(
    names: list[str], writes: int, new: bool
) -> None:
    """Pods come and go by turns."""
    replace = files.replace
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as at:
        node = FileNode(Path(at), NEW if new else OLD)

        def replaced(*words: Any, **named: Any) -> None:
            node.kernel.count()
            replace(*words, **named)

        cpus = {"a": "2-3", "b": "4", "c": "5-6"}
        try:
            with mock.patch.object(files, "replace", replaced):
                for name in names:
                    if name in node.pods:
                        node.end(name)
                    else:
                        node.add(name, cpus[name])
                    node.kernel.left = writes
                    node.pass_of_files()
                    writes = node.kernel.left
                    node.kernel.left = None
        except KilledError:
            pass
        node.kernel.left = None
        node.start(FeatureMode.OFF)
        limits.restore(node.controllers, node.journal)
        assert not node.journal.values
        for file, text in node.present():
            if file.endswith(".partition"):
                assert text == "member"
            elif file.endswith((".exclusive", "kubepods/cpuset.cpus")):
                assert not text


@pytest.mark.parametrize("balanced", ["", "/kubepods"])
def test_cgroup_v1_needs_groups_above_that_are_not_balanced(tmp_path: Path, balanced: str) -> None:
    node = FileNode(tmp_path, {**OLD, LOAD_BALANCE: "0"})
    group = node.add("a", "2-3")
    (node.groups.root / LOAD_BALANCE).write_text("0\n")
    if balanced:
        node.groups.path(balanced, LOAD_BALANCE).write_text("1\n")
    for name in ("", "/main"):
        node.groups.path(f"{group}{name}", LOAD_BALANCE).write_text("1\n")
    with mock.patch.object(node.controllers, "version", return_value=1):
        node.pass_of_files()
    if balanced:
        (problem,) = node.told()
        assert f"{LOAD_BALANCE} of {balanced} is 1" in problem
        assert not node.written()
    else:
        assert node.written() == [
            ("main", "sched_load_balance", "0"),
            ("poda", "sched_load_balance", "0"),
        ]
