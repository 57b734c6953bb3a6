"""The host's groups on a modelled kernel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus, PoolRules
from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers, GroupValues
from agent.cgroup.host_slices import SliceCpus
from agent.cgroup.journal import OriginalValue
from agent.cgroup.limits import PARTITION
from agent.host import files
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.pod.annotations import QUIET
from agent.node.quiet.host_slices import MOST_GROUPS, HostSlices
from tests.builders import machine
from tests.cgroup.kernel import Kernel, ModelFiles, ModelHierarchy
from tests.node.quiet.quiet_host import ALL, QuietHost
from tests.node.quiet.quieted import quiet_pod


class PartitionedKernel(Kernel):
    """A kernel with partitions that have some CPUs."""

    taken = EMPTY

    def effective(self, group: str) -> CpuSet:
        return super().effective(group) - self.taken


class KernelValues:
    """The files of cpusets that a modelled kernel has beside `cpuset.cpus`."""

    def __init__(self, kernel: PartitionedKernel) -> None:
        self._kernel = kernel
        self.partitions: dict[str, str] = {}

    def look(self) -> None: ...

    def has(self, group: str, file: str) -> bool:
        return group in self._kernel.cpus

    def read(self, group: str, file: str) -> str:
        if file == PARTITION:
            return self.partitions.get(group, "member")
        return str(self._kernel.effective(group))

    def write(self, group: str, file: str, text: str) -> None:
        assert (file, text) == (PARTITION, "member"), "no other is written"
        self.partitions[group], self._kernel.taken = text, EMPTY


class KilledError(BaseException):
    """No handler of the agent runs after SIGKILL either."""


class CountedFiles(ModelFiles):
    """Kills the agent before a write."""

    left: int | None = None
    """So many writes before the kill; None for no kill."""

    def count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def write(self, path: str, data: bytes) -> None:
        self.count()
        super().write(path, data)


class ModelHost(QuietHost):
    """`groups`: their own CPUs, "" for none. Each that has no group in it has a process."""

    def __init__(self, folder: Path, version: int, groups: dict[str, str]) -> None:
        cpus = {"/": ALL, **{name: CpuSet.parse(text) for name, text in groups.items()}}
        self.kernel = PartitionedKernel(version, cpus)
        for group in groups:
            if not self.kernel.children(group) and self.kernel.effective(group):
                self.kernel.attach(group)
        hierarchy = ModelHierarchy(self.kernel)
        self.files = hierarchy.handles = CountedFiles(self.kernel)
        self.values = KernelValues(self.kernel)
        others: Mapping[str, Callable[[], GroupValues]] = {
            "slice": lambda: SliceCpus(hierarchy),
            "cpuset": lambda: self.values,
        }
        mount = folder / ("cpuset" if version == 1 else "")
        mount.mkdir(exist_ok=True)
        (mount / ("cpuset.cpus" if version == 1 else "cgroup.controllers")).write_text("cpuset")
        controllers = Controllers(str(folder), others=others)
        super().__init__(
            folder, controllers, lambda journal: HostSlices(controllers, hierarchy, journal)
        )

    def effective(self) -> dict[str, str]:
        return {group: str(self.kernel.effective(group)) for group in self.kernel.cpus}


@pytest.mark.parametrize("version", [1, 2])
def test_daemons_run_on_what_nobody_owns_while_an_owner_asks(tmp_path: Path, version: int) -> None:
    whole = "0-7" if version == 1 else ""
    groups = dict.fromkeys(["/system.slice", "/user.slice", "/init.scope", "/kubepods"], whole)
    host = ModelHost(tmp_path, version, {**groups, "/backup": "2-5", "/probe": "6-7"})
    before = host.effective()
    host.own("4-7", "workqueues")
    host.step()
    assert host.effective() == before, "nobody asks"
    host.own("2-3")
    host.step()
    moved = dict.fromkeys(["/system.slice", "/user.slice", "/init.scope"], "0-1")
    narrow = {"/backup": "0-1", "/probe": "0-1"}
    assert host.effective() == {**before, **moved, **narrow}
    assert host.shown().files == 5
    assert host.shown().notes == ("the host's groups run on CPUs 0-1",)
    host.leave()
    host.own("4-7")
    host.step()
    after = {**before, **dict.fromkeys(moved, "0-3"), "/backup": "2-3", "/probe": "0-3"}
    assert host.effective() == after, "the CPUs of its own that are free again come back first"
    host.leave()
    host.step()
    assert host.effective() == before
    assert not host.journal.values


def test_a_group_that_appears_is_moved_in_the_next_second_and_one_that_ends_is_forgotten(
    tmp_path: Path,
) -> None:
    host = ModelHost(tmp_path, 2, {"/system.slice": ""})
    host.own("4-7")
    host.step()
    host.kernel.make("/machine.slice")
    host.kernel.attach("/machine.slice")
    host.quiet.step()
    assert host.effective()["/machine.slice"] == "0-3"
    host.kernel.detach("/machine.slice")
    host.kernel.remove("/machine.slice")
    host.quiet.step()
    assert not host.quiet.state.failed
    assert "/machine.slice" not in str(host.journal.values)


def test_what_systemd_writes_is_the_original_value_and_is_narrowed_again(tmp_path: Path) -> None:
    """As after `systemctl set-property system.slice AllowedCPUs=3-5`."""
    host = ModelHost(tmp_path, 2, {"/system.slice": "0-7"})
    host.own("4-7")
    host.step()
    host.kernel.write("/system.slice", "3-5")
    host.quiet.step()
    assert host.effective()["/system.slice"] == "3"
    host.leave()
    host.step()
    assert host.effective()["/system.slice"] == "3-5"


@pytest.mark.parametrize("version", [1, 2])
def test_groups_with_pods_in_them_keep_their_cpus_and_their_neighbours_do_not(
    tmp_path: Path, version: int
) -> None:
    """As under a kubelet with --cgroups-per-qos=false and the systemd driver, and below its
    --cgroup-root."""
    whole = "0-7" if version == 1 else ""
    scope = "/system.slice/cri-containerd-c.scope"
    names = [
        "/system.slice",
        scope,
        "/system.slice/cri-containerd-excluded.scope",
        "/system.slice/ssh.service",
        "/outer.slice",
        "/outer.slice/outer-kubepods.slice",
    ]
    host = ModelHost(tmp_path, version, dict.fromkeys(names, whole))
    before = host.effective()
    host.own("4-7", group=scope)
    host.own("3", group="/outer.slice/outer-kubepods.slice/pod")
    host.step()
    assert host.effective() == {**before, "/system.slice/ssh.service": "0-2"}


def test_the_hosts_processes_stay_while_owners_have_all_cpus(tmp_path: Path) -> None:
    host = ModelHost(tmp_path, 2, {"/system.slice": ""})
    host.own("0-7")
    host.step()
    assert host.effective()["/system.slice"] == "0-7"
    assert host.shown().problem == "owners have all CPUs, and the host's processes need some"


def test_partitions_of_other_programs_stay_as_they_are(tmp_path: Path) -> None:
    host = ModelHost(tmp_path, 2, {"/machine.slice": "6-7", "/system.slice": ""})
    host.values.partitions["/machine.slice"] = "isolated"
    host.own("5")
    host.step()
    assert host.effective()["/machine.slice"] == "6-7"
    assert host.effective()["/system.slice"] == "0-4,6-7"
    assert "/machine.slice stay" in host.shown().problem


@pytest.mark.parametrize(("of_pods", "left"), [("2-7", "0-1"), ("0-7", "0-3")])
def test_no_group_of_the_host_lists_the_cpus_of_a_partition_of_pods(
    tmp_path: Path, of_pods: str, left: str
) -> None:
    host = ModelHost(tmp_path, 2, {"/kubepods": of_pods, "/system.slice": ""})
    host.values.partitions["/kubepods"] = "root invalid (Cpu list in cpuset.cpus not exclusive)"
    host.own("4-7")
    host.step()
    assert host.effective()["/system.slice"] == left


def test_daemons_get_the_cpus_of_a_partition_back_when_that_ends_last(tmp_path: Path) -> None:
    """A group with processes does not inherit again, and partitions have CPUs when the owner that
    asked for daemons to leave is gone."""
    host = ModelHost(tmp_path, 2, {"/system.slice": ""})
    host.own("5")
    host.step()
    host.kernel.taken = CpuSet([6, 7])
    host.leave()
    host.step()
    assert host.effective()["/system.slice"] == "0-5"
    host.kernel.taken = EMPTY
    host.step()
    assert host.effective()["/system.slice"] == "0-7"
    assert not host.journal.values


def test_daemons_get_their_cpus_when_partitions_have_ended(tmp_path: Path) -> None:
    """By one `topolet restore`, whatever the names of the groups are."""
    host = ModelHost(tmp_path, 2, {"/system.slice": "", "/kubepods": ""})
    host.own("5")
    host.step()
    host.kernel.taken = CpuSet([6, 7])
    host.values.partitions["/kubepods"] = "root"
    host.journal.update_values([OriginalValue("/kubepods", PARTITION, "member")])
    limits.restore(host.controllers, host.journal)
    assert host.effective()["/system.slice"] == "0-7"


def test_no_more_than_a_bounded_number_of_groups_is_moved(tmp_path: Path) -> None:
    host = ModelHost(tmp_path, 2, {f"/{number}": "" for number in range(MOST_GROUPS + 1)})
    host.own("7")
    host.step()
    assert sum(cpus == "0-6" for cpus in host.effective().values()) == MOST_GROUPS
    assert host.shown().problem == f"the host has more than {MOST_GROUPS} groups"


@pytest.mark.parametrize(
    ("pods", "reserved", "pauses"),
    [
        ({"a": "interrupts"}, "", ""),
        ({"a": "interrupts", "b": "host-slices"}, "", "0-1,6-7"),
        ({"a": "host-slices", "b": "none"}, "0", "1,6-7"),
        ({"a": "host-slices", "b": "none"}, "0-1,6-7", ""),
    ],
)
def test_pause_containers_run_where_pods_share_cpus_while_an_owner_asks(
    tmp_path: Path, pods: dict[str, str], reserved: str, pauses: str
) -> None:
    """Not on CPUs that no pod may use: outside of a partition of all pods there are only these."""
    cpus = {"a": "2-3", "b": "4-5"}
    owners = tuple(quiet_pod(name, cpus[name], {QUIET: asks}) for name, asks in pods.items())
    topology, rules = machine(1, 8), PoolRules(node_reserved=CpuSet.parse(reserved))
    decision = decide(topology, owners, KubeletCpus(), {}, {}, rules)
    host = ModelHost(tmp_path, 2, {})
    assert str(host.quiet.pause_cpus(owners, topology, decision)) == pauses


EVENTS: Final = st.one_of(
    st.sampled_from(["leave", "start", "/system.slice/new", "/new"]),
    st.sampled_from(["0-1", "2-3", "4-7", "0-5", "0-7"]),
)
TREE: Final = {
    "/system.slice": "0-7",
    "/system.slice/a": "0-3",
    "/system.slice/b": "4-5",
    "/user.slice": "2-7",
    "/kubepods": "0-7",
    "/kubepods/pod": "4-7",
}


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from([1, 2]),
    st.lists(EVENTS, min_size=1, max_size=6),
    st.integers(0, 30),
    st.booleans(),
)
def test_an_agent_that_is_killed_at_any_write_leaves_nothing_behind(
    version: int, events: list[str], writes: int, restored: bool
) -> None:
    """`restored`: by `topolet restore`, not by an agent for which nobody asks."""
    replace = files.replace
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        inherits = {} if version == 1 else {"/system.slice": "", "/system.slice/a": ""}
        host = ModelHost(Path(name), version, {**TREE, **inherits})
        before = host.effective()

        def replaced(*words: Any, **named: Any) -> None:
            host.files.count()
            replace(*words, **named)

        host.files.left = writes
        try:
            with mock.patch.object(files, "replace", replaced):
                for event in events:
                    happen(host, event)
                    host.step()
                    check(host)
        except KilledError:
            pass
        host.files.left = None
        host.leave()
        host.start()
        if restored:
            limits.restore(host.controllers, host.journal)
        else:
            host.step()
        after = {group: cpus for group, cpus in host.effective().items() if group in before}
        assert after == before
        assert not host.journal.values


def happen(host: ModelHost, event: str) -> None:
    if event == "leave":
        host.leave()
    elif event == "start":
        host.start()
    elif not event.startswith("/"):
        host.leave()
        host.own(event)
    elif event not in host.kernel.cpus:
        host.kernel.make(event)
        above = event.rpartition("/")[0] or "/"
        if host.kernel.version == 1:
            host.kernel.write(event, str(host.kernel.cpus[above]))
        host.kernel.attach(event)


def check(host: ModelHost) -> None:
    """No daemon runs on CPUs of an owner that asks, and no pod has lost one."""
    assert not host.quiet.state.failed
    effective = {group: CpuSet.parse(cpus) for group, cpus in host.effective().items()}
    assert effective["/kubepods/pod"] == CpuSet.parse("4-7")
    owned = CpuSet.parse(host.owners[0].cpuset) if host.owners else EMPTY
    for group, cpus in effective.items():
        if not group.startswith("/kubepods") and group != "/" and owned != ALL:
            assert not cpus & owned, group
