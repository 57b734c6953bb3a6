"""Partitions of real cgroup v2 kernels: a chain on one without remote partitions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cgroup import limits, writer
from agent.cgroup.hierarchy import Handles
from agent.cgroup.order import parent
from agent.discover.cpus import TopologyView
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Pod
from agent.model.settings.feature_modes import FeatureMode
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ROOT
from tests.node.quiet.partitioned import PartitionedNode
from tests.waiting import eventually

PODS: Final = 500
POD_SECONDS: Final = 900
"""So many pods take that long on a busy machine, and a seventh of it on an idle one."""
RESERVED: Final = "0-1"
OWN: Final = "4-7"
SPIN: Final = "while True: pass"


class KilledError(BaseException):
    """No handler of the agent runs after SIGKILL either."""


class KilledWrites(Handles):
    """Kills the agent before a write."""

    left: int | None = None

    def write(self, path: str, data: bytes) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError
        super().write(path, data)


class RealNode(PartitionedNode):
    """16 CPUs, of which no pod runs on the first core."""

    def __init__(self, folder: Path, groups: RealGroups) -> None:
        self.real = groups
        self.kernel = KilledWrites()
        super().__init__(folder, groups, ROOT, TopologyView("/").topology(), RESERVED, self.kernel)
        self.host = RealGroups({"cpuset": (2, ROOT)})
        self.mover = self.host.process(self.host.top)
        self.remote = self.groups.path(groups.top, "cpuset.cpus.exclusive").exists()

    def enter(self, group: str) -> None:
        """A process enters a container, as one of the runtime's does."""
        self.groups.path(f"{group}/main", "cpuset.cpus").with_name("cgroup.procs").write_text(
            str(self.mover.pid)
        )

    def leave(self) -> None:
        Path(f"{ROOT}{self.host.top}/cgroup.procs").write_text(str(self.mover.pid))

    def group_of(self, pod: Pod) -> str:
        group = pod.containers[0].group
        assert group is not None
        return parent(group)

    def runs_on(self, process: subprocess.Popen[str]) -> CpuSet:
        """The CPU on which it runs now."""
        words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return CpuSet([int(words[36])])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    node = RealNode(tmp_path, RealGroups({"cpuset": (2, ROOT)}, "/kubepods"))
    yield node
    node.start(FeatureMode.OFF)
    limits.restore(node.controllers, node.journal)
    node.host.close()
    node.real.close()
    node.hierarchy.close()


def allowed(process: subprocess.Popen[str]) -> CpuSet:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return CpuSet.parse(status.partition("Cpus_allowed_list:")[2].split()[0])


def balanced() -> dict[int, CpuSet]:
    """By CPU, among which others the scheduler balances its load."""
    cpus: dict[int, CpuSet] = {}
    cpu = -1
    for line in Path("/proc/schedstat").read_text().splitlines():
        word, *rest = line.split()
        if word.startswith("cpu"):
            cpu = int(word.removeprefix("cpu"))
            cpus[cpu] = CpuSet()
        elif word.startswith("domain"):
            mask = next(each for each in rest if set(each) <= set("0123456789abcdef,"))
            cpus[cpu] |= CpuSet.parse_mask(mask)
    return cpus


def test_nothing_else_runs_on_or_is_moved_to_the_cpus_of_an_isolated_owner(node: RealNode) -> None:
    own, online = CpuSet.parse(OWN), node.topology.online
    api = node.add("api", kube_class="burstable")
    of_pod = node.real.process(f"{api}/main", sys.executable, "-IS", "-c", SPIN)
    of_host = node.host.process(node.host.top, sys.executable, "-IS", "-c", SPIN)
    group = node.add("own", OWN)
    inside = node.real.process(f"{group}/main")
    assert node.make_pass()
    assert not node.told()
    assert node.value(group, ".partition") == "isolated"
    assert allowed(inside) == own
    host = CpuSet.parse(RESERVED)
    assert allowed(of_host) == (online - own if node.remote else host)
    assert allowed(of_pod) == online - own - host
    for cpu, among in balanced().items():
        if cpu in own:
            # In a chain the kernel balances the containers of the pod among its CPUs.
            assert among == (CpuSet() if node.remote else own)
        else:
            assert among
            assert not among & own
    for _ in range(20):
        assert not node.runs_on(of_pod) & own
        assert not node.runs_on(of_host) & own
        node.step()
    assert not node.told()


def test_a_partition_that_another_program_broke_is_told_and_repaired(node: RealNode) -> None:
    group = node.add("own", OWN)
    other = node.add("api")
    assert node.make_pass()
    beside = node.groups.path(other, "cpuset.cpus")
    beside.write_text("4-9\n")
    state = node.value(group, ".partition")
    assert state.startswith("isolated invalid")
    node.step()
    assert node.told() == (f"{group} is {state}",)
    node.step()
    assert node.told()
    beside.write_text("8-9\n")
    node.step()
    node.step()
    check_isolated(node, group)
    if node.remote:
        node.groups.path(node.kubepods, "cpuset.cpus.exclusive").write_text("12\n")
        node.step()
        assert node.told()
        node.step()
        node.step()
        check_isolated(node, group)


def check_isolated(node: RealNode, group: str) -> None:
    assert node.value(group, ".partition") == "isolated"
    assert node.value(group, ".effective") == OWN
    assert not CpuSet.parse(node.value(node.kubepods, ".effective")) & CpuSet.parse(OWN)
    isolated_at_boot = TopologyView("/").topology().isolated
    assert not isolated_at_boot, "an agent that starts then would give these to nobody else"
    node.step()
    assert not node.told()


@pytest.mark.parametrize("asks", ["partitions", "partitions,host-slices"])
def test_everything_is_as_before_after_a_kill_at_any_write(node: RealNode, asks: str) -> None:
    daemon = node.host.process(node.host.top)
    pod = node.add("own", OWN, asks=asks)
    group = f"{pod}/main" if node.remote and "host-slices" in asks else pod
    node.enter(pod)
    before = node.value(node.kubepods, "")
    writes = 0
    while True:
        node.start()
        node.kernel.left = writes
        try:
            node.make_pass()
        except KilledError:
            killed = True
        else:
            killed = False
        node.kernel.left = None
        node.start()
        assert node.make_pass()
        assert node.value(group, ".partition") == "isolated", (writes, node.told())
        node.start(FeatureMode.OFF)
        assert limits.restore(node.controllers, node.journal).ok
        assert writer.restore(node.hierarchy, node.journal).ok
        assert not node.journal.values
        assert node.value(group, ".partition") == "member"
        if node.remote:
            for name in (group, node.kubepods):
                assert node.value(name, ".exclusive") == ""
            assert node.value(node.kubepods, "") == before == ""
        assert CpuSet.parse(node.value(node.kubepods, ".effective")) == node.topology.online
        assert set(balanced().values()) == {node.topology.online}
        assert allowed(daemon) == node.topology.online
        if not killed:
            break
        writes += 1
    assert writes > 2
    node.leave()


@pytest.mark.parametrize("end", ["leave", "restore"])
def test_host_slices_act_beside_partitions_that_stay_valid(node: RealNode, end: str) -> None:
    """The host's groups leave the CPUs of a chain before it is made, which has those of all pods.

    `end`: the owner leaves, or the agent does."""
    own, online = CpuSet.parse(OWN), node.topology.online
    daemon = node.host.process(node.host.top)
    api = node.add("api")
    shared = node.real.process(f"{api}/main")
    pod = node.add("own", OWN, asks="partitions,host-slices")
    node.enter(pod)
    # Remote partitions are containers, as the pause container leaves with the host's groups.
    group = f"{pod}/main" if node.remote else pod
    left = online - own if node.remote else CpuSet.parse(RESERVED)

    def check(after: str) -> None:
        assert node.value(group, ".partition") == "isolated", (after, node.told())
        assert node.value(group, ".effective") == OWN, after
        assert allowed(node.mover) == own, after
        assert allowed(daemon) == left, after
        assert allowed(shared) == online - own - CpuSet.parse(RESERVED), after
        state = node.quiet.state
        assert not state.wanted["partitions"].problem, after
        assert not state.failed, after

    assert node.make_pass()
    check("the pass that made it")
    for seconds in range(5):
        node.step()
        check(f"{seconds} s")
    assert node.host.path(node.host.top, "cpuset.cpus").read_text().strip() == str(left)
    second = RealGroups({"cpuset": (2, ROOT)})
    late = second.process(second.top)
    node.step()
    check("a new group of the host")
    assert allowed(late) == left
    assert node.make_pass()
    check("another pass")
    node.host.path(node.host.top, "cpuset.cpus").write_text("0-9\n")
    left &= CpuSet.parse("0-9")
    for _ in range(5):
        node.step()
    check("another program has written to a group of the host")
    node.leave()
    if end == "leave":
        node.end("own")
        eventually("others have its CPUs", node.make_pass)
        node.step()
    else:
        node.start(FeatureMode.OFF)
        assert limits.restore(node.controllers, node.journal).ok
        assert writer.restore(node.hierarchy, node.journal).ok
        assert node.value(group, ".partition") == "member"
    for process in (daemon, late):
        # What another program has written is the original value.
        assert allowed(process) == (CpuSet.parse("0-9") if process is daemon else online)
    assert CpuSet.parse(node.value(node.kubepods, ".effective")) == online
    assert set(balanced().values()) == {online}
    second.close()


def test_an_owner_gets_other_cpus_and_others_get_its_own(node: RealNode) -> None:
    group = node.add("own", OWN)
    api = node.add("api")
    assert node.make_pass()
    node.end("own")
    group = node.add("own", "8-9")
    node.owned = {}
    eventually("all have their CPUs", node.make_pass)
    assert node.value(group, ".partition") == "isolated"
    assert CpuSet.parse(node.value(group, ".effective")) == CpuSet.parse("8-9")
    pool = node.topology.online - CpuSet.parse("0-1,8-9")
    assert CpuSet.parse(node.value(f"{api}/main", ".effective")) == pool
    node.end("own")
    eventually("others have its CPUs", node.make_pass)
    pool = node.topology.online - CpuSet.parse(RESERVED)
    assert CpuSet.parse(node.value(f"{api}/main", ".effective")) == pool


@pytest.mark.timeout(POD_SECONDS)
def test_partitions_stay_valid_beside_500_pods_that_come_and_go(node: RealNode) -> None:
    group = node.add("own", OWN)
    assert node.make_pass()
    wrong: list[object] = []

    def look(after: object) -> None:
        state = node.value(group, ".partition"), node.value(group, ".effective")
        if state != ("isolated", OWN):
            wrong.append((after, state))

    for number in range(PODS):
        other = node.add(f"p{number}", kube_class="burstable" if number % 2 else "guaranteed")
        look(("made", number))
        node.enter(other)
        look(("entered", number))
        if number % 20 == 0:
            eventually("all have their CPUs", node.make_pass)
            look(("pass", number))
        if number % 50 == 7:
            neighbour = node.add(f"n{number}", "10-11")
            assert node.make_pass()
            look(("neighbour", number))
            assert node.value(neighbour, ".partition") == "isolated"
            node.end(f"n{number}")
            look(("neighbour ended", number))
        node.leave()
        node.end(f"p{number}")
        look(("ended", number))
    eventually("all have their CPUs", node.make_pass)
    assert not wrong, wrong[:5]
    assert not node.told()


@pytest.mark.timeout(POD_SECONDS)
def test_500_replacements_of_an_isolated_pod_are_all_created(node: RealNode) -> None:
    """The pod with the same CPUs is made while the one that ends still has them."""
    node.add("own0", OWN)
    assert node.make_pass()
    for number in range(PODS):
        old, new = node.pods[f"own{number}"], f"own{number + 1}"
        del node.pods[old.name]
        group = node.add(new, OWN)  # creating raises OSError where the kernel refuses
        node.enter(group)
        node.pods[old.name] = old
        if number % 2:
            assert node.make_pass()  # shares the pool until the other one has ended
            assert node.value(node.group_of(old), ".partition") == "isolated"
        node.end(old.name)
        # The kernel frees the CPUs of a partition some time after its group is gone.
        eventually("it has its CPUs", node.make_pass)
        if node.value(group, ".partition") != "isolated":
            node.step()  # a second later
        assert node.value(group, ".partition") == "isolated", (number, node.told())
        assert allowed(node.mover) == CpuSet.parse(OWN)
        node.leave()
