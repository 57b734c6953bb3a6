from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agent.discover import cpus
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import NumaNode, Topology
from agent.view import machine as picture
from tests.fixtures.trees import CPU, NODE, Files, machine, meminfo, write

Read = Callable[[Files], Topology]
MachineOf = Callable[..., Topology]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return lambda files: cpus.read(write(str(tmp_path), files))


@pytest.fixture(scope="session")
def machine_of(tmp_path_factory: pytest.TempPathFactory) -> MachineOf:
    """The topology of a machine by its shape; each tree is written once."""

    @cache
    def topology_of(*shape: int) -> Topology:
        return cpus.read(write(str(tmp_path_factory.mktemp("machine")), machine(*shape)))

    return topology_of


def drawn_cpus(text: str) -> CpuSet:
    """The CPUs in the cells of a picture."""
    return CpuSet(
        int(number)
        for cell in re.findall(r"[\[({]([ 0-9a-zA-Z]+)[\])}]", text)
        for number in re.findall("[0-9]+", cell)
    )


def test_two_sockets(read: Read) -> None:
    assert picture.draw(read(machine(2, 1, 1, 4, 2, hugepages=512))) == (
        "16 CPUs · 8 cores · 2 sockets · 2 NUMA nodes · 16 GiB\n"
        "\n"
        "╭─ Socket 0 · NUMA node 0 · 8 GiB · L3 ─╮ ╭─ Socket 1 · NUMA node 1 · 8 GiB · L3 ─╮\n"
        "│ 512 pages of 2 MiB (512 free)         │ │ 512 pages of 2 MiB (512 free)         │\n"
        "│ [ 0  8] [ 1  9] [ 2 10] [ 3 11]       │ │ [ 4 12] [ 5 13] [ 6 14] [ 7 15]       │\n"
        "╰───────────────────────────────────────╯ ╰───────────────────────────────────────╯\n"
        "\n"
        "Distances between NUMA nodes\n"
        "     0  1\n"
        "  0 10 21\n"
        "  1 21 10\n"
    )


def test_one_node_over_two_sockets_and_a_node_without_cpus(read: Read) -> None:
    files = machine(2, 1, 1, 2) | {
        f"{NODE}/node0/cpumap": "f",
        f"{NODE}/node1/cpumap": "0",
        f"{NODE}/node1/meminfo": meminfo(1, 512 << 10),
        f"{CPU}/isolated": "1",
    }
    assert picture.draw(read(files)) == (
        "4 CPUs · 4 cores · 2 sockets · 2 NUMA nodes · 8.5 GiB\n"
        "\n"
        "╭─ NUMA node 0 · 8 GiB ───────────────────╮\n"
        "│ ╭─ Socket 0 · L3 ─╮ ╭─ Socket 1 · L3 ─╮ │\n"
        "│ │ [0] [1]         │ │ [2] [3]         │ │\n"
        "│ ╰─────────────────╯ ╰─────────────────╯ │\n"
        "╰─────────────────────────────────────────╯\n"
        "╭─ NUMA nodes without CPUs ─╮\n"
        "│ node 1  512 MiB           │\n"
        "╰───────────────────────────╯\n"
        "\n"
        "Isolated CPUs: 1\n"
        "\n"
        "Distances between NUMA nodes\n"
        "     0  1\n"
        "  0 10 21\n"
        "  1 21 10\n"
    )


def test_owners_and_core_kinds(read: Read) -> None:
    files = machine(1, 1, 1, 4) | {
        "sys/devices/cpu_core/cpus": "0-1",
        "sys/devices/cpu_atom/cpus": "2-3",
    }
    owners = {2: "LSE shop/db", 1: "LS web/api", 3: "LSE shop/db", 99: "nobody"}
    assert picture.draw(read(files), owners=owners) == (
        "4 CPUs · 4 cores · 1 socket · 1 NUMA node · 8 GiB\n"
        "\n"
        "╭─ Socket 0 · NUMA node 0 · 8 GiB · L3 ─╮\n"
        "│ [0 ] [1a] (2b) (3b)                   │\n"
        "╰───────────────────────────────────────╯\n"
        "\n"
        "[] core kind core: 0-1\n"
        "() core kind atom: 2-3\n"
        "\n"
        "Owners\n"
        "  a  LS web/api  1\n"
        "  b  LSE shop/db  2-3\n"
    )


def test_node_across_sockets_is_drawn_in_parts(read: Read) -> None:
    files = machine(2, 1, 1, 2) | {f"{NODE}/node0/cpumap": "7", f"{NODE}/node1/cpumap": "8"}
    text = picture.draw(read(files))
    assert text.count("NUMA node 0 · 8 GiB (part)") == 2
    assert str(drawn_cpus(text)) == "0-3"


def test_several_caches_and_dies(read: Read) -> None:
    files = machine(1, 1, 4, 2)
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/topology/die_id"] = str(cpu // 4)
        files[f"{CPU}/cpu{cpu}/topology/die_cpus"] = "f" if cpu < 4 else "f0"
    text = picture.draw(read(files))
    assert text.count("die 0 · L3") == text.count("die 1 · L3") == 2
    assert str(drawn_cpus(text)) == "0-7"


def test_private_l3_needs_no_boxes(read: Read) -> None:
    text = picture.draw(read(machine(1, 1, 4, 1)))
    assert "[0] [1] [2] [3]" in text
    assert "Every core has its own L3" in text


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 4, 2, 8, 2), (8, 1, 1, 14, 2), (4, 2, 1, 6, 1), (1, 1, 12, 2, 8)]
)
def test_each_cpu_is_drawn_once_within_the_width(
    machine_of: MachineOf, shape: tuple[int, int, int, int, int], width: int
) -> None:
    topology = machine_of(*shape)
    text = picture.draw(topology, width)
    assert max(len(line) for line in text.splitlines()) <= width
    cells = re.findall(r"[\[(][ 0-9]+[\])]", text)
    if cells:
        assert drawn_cpus(text) == topology.online
        assert len(re.findall("[0-9]+", " ".join(cells))) == len(topology.cpus)
    else:
        assert len(topology.cpus) > 100


def test_a_wide_machine_is_folded(machine_of: MachineOf) -> None:
    """64 sockets have one line per NUMA node, and distances by groups of equal nodes."""
    topology = machine_of(64, 1, 2, 2)
    lines = picture.draw(topology, 100).splitlines()
    assert len(lines) < 80
    assert max(map(len, lines)) <= 100
    nodes = "\n".join(lines)
    listed = re.findall(r"NUMA node [0-9]+ · 8 GiB  ([0-9-]+)", nodes)
    assert CpuSet(cpu for part in listed for cpu in CpuSet.parse(part)) == topology.online


def test_folded_lists_separate_owners(machine_of: MachineOf) -> None:
    topology = machine_of(64, 1, 2, 2)
    text = picture.draw(topology, 100, {1: "x", 2: "x", 3: "y"})
    assert "0,1-2a,3b" in text


def test_many_owners_get_two_letters(read: Read) -> None:
    topology = read(machine(1, 1, 1, 60))
    text = picture.draw(topology, 100, {cpu: f"pod-{cpu:02}" for cpu in range(60)})
    marks = re.findall(r"^  ([a-zA-Z]+)  pod-", text, re.MULTILINE)
    assert len(set(marks)) == 60
    assert f"[59{marks[59]}]" in text


def test_colour_changes_no_text(read: Read) -> None:
    topology = read(machine(2, 1, 1, 4))
    owners = {0: "LSE a/b", 5: "BE c/d"}
    plain = picture.draw(topology, 100, owners)
    coloured = picture.draw(topology, 100, owners, colour=True)
    assert re.sub("\x1b\\[[0-9]*m", "", coloured) == plain
    assert re.findall("\x1b\\[3[0-9]m([^\x1b]*)", coloured) == ["0a", "5b", "  a", "  b"]
    assert "\x1b" not in plain


def nodes(*rows: tuple[int, ...]) -> list[NumaNode]:
    return [NumaNode(index, EMPTY, 0, row) for index, row in enumerate(rows)]


@pytest.mark.parametrize("rows", [[(10,)], [(), ()], [(10, 20), ()]])
def test_distances_without_differences(rows: list[tuple[int, ...]]) -> None:
    assert picture.distances(nodes(*rows), 80) == []


def pairs(count: int) -> list[NumaNode]:
    """Nodes in pairs: the distance is 12 within a pair, 20 between pairs."""
    return nodes(
        *(
            tuple(
                10 if row == column else 12 if row // 2 == column // 2 else 20
                for column in range(count)
            )
            for row in range(count)
        )
    )


def test_equal_nodes_share_a_row_if_the_table_is_too_wide() -> None:
    assert picture.distances(pairs(6), 20) == [
        "Distances between NUMA nodes",
        "  nodes that are alike share a row; 10 within a node",
        "       0  2  4",
        "  0-1 12 20 20",
        "  2-3 20 12 20",
        "  4-5 20 20 12",
    ]


def test_the_table_has_counts_if_shared_rows_are_too_wide() -> None:
    assert picture.distances(pairs(6), 10) == [
        "Distances between NUMA nodes, and how often each occurs",
        "    10  6x",
        "    12  6x",
        "    20  24x",
    ]
