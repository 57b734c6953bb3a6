"""The v1 rule for memory nodes, checked after every write. It equals the rule for CPUs, so the
model is the same. No test machine has v1 and several NUMA nodes."""

import posixpath
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import limits as values
from agent.cgroup.hierarchy import Controllers, Handles
from agent.cgroup.journal import Journal
from agent.cgroup.order import WriteState
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import LinuxResources
from tests.cgroup.kernel import Kernel

NODES = CpuSet([0, 1, 2])
POD = "/kubepods/podx"
CONTAINERS = (f"{POD}/a", f"{POD}/b", f"{POD}/b/nested")
GROUPS = (POD, *CONTAINERS)


class NodeFiles(Handles):
    """`cpuset.mems` of a model kernel."""

    def __init__(self, root: str, kernel: Kernel) -> None:
        self.root = root
        self.kernel = kernel

    def read(self, path: str) -> bytes:
        return f"{self.kernel.cpus[self.group(path)]}\n".encode()

    def write(self, path: str, data: bytes) -> None:
        self.kernel.write(self.group(path), data.decode())

    def group(self, path: str) -> str:
        return posixpath.dirname(path).removeprefix(self.root)


class Machine:
    def __init__(self, folder: str, nodes: dict[str, CpuSet]) -> None:
        root = Path(folder, "cgroup")
        for group in ("", *GROUPS):
            (root / "cpuset" / group.lstrip("/")).mkdir(parents=True)
        (root / "cpuset/cpuset.cpus").write_text("0\n")
        self.kernel = Kernel(1, {"/": NODES, "/kubepods": NODES} | nodes)
        self.kernel.processes = dict.fromkeys(nodes, 1)
        files = NodeFiles(str(root / "cpuset"), self.kernel)
        self.controllers = Controllers(str(root), files)
        self.journal = Journal(Path(folder, "journal"))

    def nodes(self) -> dict[str, CpuSet]:
        return {group: self.kernel.cpus[group] for group in GROUPS}


def some(within: CpuSet) -> st.SearchStrategy[CpuSet]:
    return st.sets(st.sampled_from(list(within)), min_size=1).map(CpuSet)


@st.composite
def nested(draw: st.DrawFn) -> dict[str, CpuSet]:
    nodes = {POD: draw(some(NODES))}
    for group in CONTAINERS:
        nodes[group] = draw(some(nodes[posixpath.dirname(group)]))
    return nodes


@given(nested(), st.lists(nested(), min_size=1, max_size=3))
def test_any_memory_nodes_are_changed_to_any_others(
    before: dict[str, CpuSet], targets: list[dict[str, CpuSet]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder, before)
        for target in targets:
            wanted = {group: LinuxResources(mems=str(nodes)) for group, nodes in target.items()}
            outcome = values.apply(machine.controllers, machine.journal, wanted)
            assert outcome.ok, outcome
            assert machine.nodes() == target
        outcome = values.restore(machine.controllers, machine.journal)
        assert outcome.ok, outcome
        assert machine.nodes() == before


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({POD: CpuSet([0])}, "busy"),
        ({CONTAINERS[2]: CpuSet([2])}, "Permission denied"),
        ({POD: CpuSet([0]), CONTAINERS[0]: CpuSet([0])}, "busy"),
    ],
)
def test_a_group_without_a_wanted_value_is_never_written(
    tmp_path: Path, target: dict[str, CpuSet], reason: str
) -> None:
    before = {
        POD: NODES,
        CONTAINERS[0]: CpuSet([0, 1]),
        CONTAINERS[1]: CpuSet([1]),
        CONTAINERS[2]: CpuSet([1]),
    }
    machine = Machine(str(tmp_path), before)
    wanted = {group: LinuxResources(mems=str(nodes)) for group, nodes in target.items()}
    outcome = values.apply(machine.controllers, machine.journal, wanted)
    (failed,) = outcome.having(WriteState.FAILED)
    assert reason in (failed.note or "")
    written = {each.group: target[each.group] for each in outcome.having(WriteState.WRITTEN)}
    assert machine.nodes() == before | written
