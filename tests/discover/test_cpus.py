"""Special cases of kernels and firmware; each test builds a tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.discover import cpus
from agent.discover.sysfs import DiscoveryError
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import HugePages, Topology
from tests.fixtures.trees import (
    CPU,
    NODE,
    Files,
    machine,
    mask_text,
    meminfo,
    offline,
    without,
    write,
)

Read = Callable[..., Topology]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes a tree and reads it."""

    def discovered(files: Files, *links: tuple[str, str]) -> Topology:
        return cpus.read(write(str(tmp_path), files, links))

    return discovered


def cpus_by(topology: Topology, field: str) -> dict[str, object]:
    """The value of a field by the list of its CPUs."""
    groups: dict[object, list[int]] = {}
    for cpu in topology.cpus:
        groups.setdefault(getattr(cpu, field), []).append(cpu.id)
    return {str(CpuSet(members)): value for value, members in groups.items()}


def every_cpu(name: str, texts: list[str]) -> Files:
    return {f"{CPU}/cpu{cpu}/topology/{name}": text for cpu, text in enumerate(texts)}


@pytest.mark.parametrize("masks", [False, True], ids=["lists", "masks"])
def test_a_regular_machine(read: Read, masks: bool) -> None:
    topology = read(machine(2, 2, 1, 2, 2, masks=masks))
    assert cpus_by(topology, "core") == {f"{core},{core + 8}": core for core in range(8)}
    assert cpus_by(topology, "l3") == {"0-1,8-9": 0, "2-3,10-11": 2, "4-5,12-13": 4, "6-7,14-15": 6}
    assert cpus_by(topology, "socket") == {"0-3,8-11": 0, "4-7,12-15": 1}
    assert cpus_by(topology, "node") == {
        "0-1,8-9": 0,
        "2-3,10-11": 1,
        "4-5,12-13": 2,
        "6-7,14-15": 3,
    }
    assert cpus_by(topology, "die") == ({"0-15": None} if masks else {"0-15": 0})
    assert topology.smt
    assert topology.smt_control == (None if masks else "on")
    assert [node.distances for node in topology.numa_nodes][2] == (21, 21, 10, 12)


def test_file_names_before_linux_5_2(read: Read) -> None:
    files = without(machine(2, 1, 1, 2, 2), "core_cpus", "package_cpus", "/die_")
    topology = read(files)
    assert cpus_by(topology, "core") == {"0,4": 0, "1,5": 1, "2,6": 2, "3,7": 3}
    assert cpus_by(topology, "socket") == {"0-1,4-5": 0, "2-3,6-7": 1}
    assert cpus_by(topology, "die") == {"0-7": None}


def test_lists_without_masks(read: Read) -> None:
    names = ("core_cpus", "thread_siblings", "package_cpus", "core_siblings", "die_cpus")
    masks = [f"/{name}" for name in (*names, "cpumap", "shared_cpu_map")]
    complete = machine(2, 1, 1, 2, 2)
    files = {
        path: text
        for path, text in complete.items()
        if not any(path.endswith(mask) for mask in masks)
    }
    assert len(files) < len(complete)
    assert read(files) == read(complete)


@pytest.mark.parametrize("masks", [False, True], ids=["lists", "masks"])
def test_offline_cpus(read: Read, masks: bool) -> None:
    topology = read(offline(machine(2, 1, 1, 2, 2, masks=masks), CpuSet((0, 5))))
    assert str(topology.online) == "1-4,6-7"
    assert str(topology.offline) == "0,5"
    assert cpus_by(topology, "core") == {"1": 1, "2,6": 2, "3,7": 3, "4": 4}
    assert [str(node.cpus) for node in topology.numa_nodes] == ["1,4", "2-3,6-7"]
    assert cpus_by(topology, "socket") == {"1,4": 0, "2-3,6-7": 1}


def test_offline_cpus_in_the_list_of_a_node(read: Read) -> None:
    files = offline(machine(2, 1, 1, 2), CpuSet((1,))) | {f"{NODE}/node0/cpumap": "3"}
    assert str(read(files).numa_nodes[0].cpus) == "0"


def test_possible_cpus_that_are_not_present_are_not_offline(read: Read) -> None:
    files = machine() | {f"{CPU}/possible": "0-63", f"{CPU}/offline": "2-63"}
    assert str(read(files).offline) == ""


def test_cpu_in_the_online_list_without_topology_does_not_run(read: Read) -> None:
    topology = read(without(machine(1, 1, 1, 4), "/cpu2/topology"))
    assert str(topology.online) == "0-1,3"


def test_no_cpu_has_topology(read: Read) -> None:
    folders = {f"{CPU}/cpu{cpu}/crash_notes": "0" for cpu in range(4)}
    topology = read(without(machine(2, 1, 1, 2), "/topology/", "/cache/") | folders)
    assert cpus_by(topology, "core") == {str(cpu): cpu for cpu in range(4)}
    assert cpus_by(topology, "socket") == {"0-3": 0}
    assert cpus_by(topology, "node") == {"0-1": 0, "2-3": 1}


def test_a_machine_without_caches(read: Read) -> None:
    assert cpus_by(read(without(machine(), "/cache/")), "l3") == {"0-1": None}


def test_cache_indices_are_not_cache_levels(read: Read) -> None:
    files = machine(2, 1, 1, 2)
    for cpu in range(4):
        folder = f"{CPU}/cpu{cpu}/cache"
        for name in ("level", "type", "shared_cpu_map", "shared_cpu_list"):
            one, other = f"{folder}/index1/{name}", f"{folder}/index3/{name}"
            files[one], files[other] = files[other], files[one]
    assert cpus_by(read(files), "l3") == {"0-1": 0, "2-3": 2}


def test_instruction_cache_of_level_3_does_not_count_as_l3(read: Read) -> None:
    files = machine()
    for cpu in range(2):
        files[f"{CPU}/cpu{cpu}/cache/index3/type"] = "Instruction"
    assert cpus_by(read(files), "l3") == {"0-1": None}


def test_l3_on_one_socket_only(read: Read) -> None:
    files = without(machine(2, 1, 1, 2), "/cpu0/cache/index3/", "/cpu1/cache/index3/")
    assert cpus_by(read(files), "l3") == {"0-1": None, "2-3": 2}


def test_empty_l3_map_means_the_core(read: Read) -> None:
    files = machine(1, 1, 1, 2, 2, masks=True)
    for cpu in range(4):
        files[f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_map"] = "0"
    assert cpus_by(read(files), "l3") == {"0,2": 0, "1,3": 1}


def test_dies(read: Read) -> None:
    files = machine(2, 1, 1, 4)
    for cpu in range(8):
        first = cpu // 2 * 2
        files[f"{CPU}/cpu{cpu}/topology/die_cpus"] = mask_text(CpuSet((first, first + 1)))
        files[f"{CPU}/cpu{cpu}/topology/die_id"] = str(cpu // 2 % 2)
    topology = read(files)
    assert [(cpu.socket, cpu.die) for cpu in topology.cpus] == [
        *[(0, 0), (0, 0), (0, 1), (0, 1)],
        *[(1, 0), (1, 0), (1, 1), (1, 1)],
    ]


@pytest.mark.parametrize("text", ["-1", "4294967295", "", "garbage"])
def test_unknown_die(read: Read, text: str) -> None:
    assert cpus_by(read(machine() | every_cpu("die_id", [text] * 2)), "die") == {"0-1": None}


SOCKETS: dict[str, tuple[Files, dict[str, int]]] = {
    "unknown ids": (
        machine(2, 1, 1, 2) | every_cpu("physical_package_id", ["-1"] * 4),
        {"0-1": 0, "2-3": 1},
    ),
    "unknown ids, printed unsigned": (
        machine(2, 1, 1, 2) | every_cpu("physical_package_id", ["4294967295"] * 4),
        {"0-1": 0, "2-3": 1},
    ),
    "one unknown id": (
        machine(3, 1, 1, 1) | every_cpu("physical_package_id", ["1", "-1", "0"]),
        {"0": 1, "1": 2, "2": 0},
    ),
    "ids that begin anew in each book": (
        machine(4, 1, 1, 1)
        | every_cpu("physical_package_id", ["1", "2", "1", "2"])
        | every_cpu("book_id", ["0", "0", "1", "1"]),
        {"0": 1, "1": 2, "2": 0, "3": 3},
    ),
    "siblings of a NUMA node only, as kernels before cluster-on-die list them": (
        machine(4, 1, 1, 1) | every_cpu("physical_package_id", ["0", "0", "1", "1"]),
        {"0-1": 0, "2-3": 1},
    ),
    "large ids": (
        machine(2, 1, 1, 2) | every_cpu("physical_package_id", ["36", "36", "8442", "8442"]),
        {"0-1": 36, "2-3": 8442},
    ),
    "ids without siblings": (
        without(machine(2, 1, 1, 2), "/core_siblings", "/package_cpus"),
        {"0-1": 0, "2-3": 1},
    ),
    "neither": (
        without(machine(2, 1, 1, 2), "/core_siblings", "/package_cpus", "/physical_package_id"),
        {"0-3": 0},
    ),
    "empty siblings": (
        without(machine(2, 1, 1, 2), "package_cpus")
        | every_cpu("core_siblings", ["0"] * 4)
        | every_cpu("core_siblings_list", [""] * 4),
        {"0-1": 0, "2-3": 1},
    ),
    "siblings without ids": (without(machine(2), "/physical_package_id"), {"0-1": 0, "2-3": 1}),
    "siblings contradict each other": (
        without(machine(2, 1, 1, 2), "package_cpus")
        | every_cpu("core_siblings", ["3", "3", "f", "f"]),
        {"0-1": 0, "2-3": 1},
    ),
    "default of old POWER kernels: each thread its own package": (
        without(machine(1, 1, 1, 2, 2, masks=True))
        | every_cpu("core_siblings", ["1", "2", "4", "8"])
        | every_cpu("physical_package_id", ["-1"] * 4),
        {"0,2": 0, "1,3": 1},
    ),
}


@pytest.mark.parametrize(("files", "sockets"), SOCKETS.values(), ids=SOCKETS.keys())
def test_sockets(read: Read, files: Files, sockets: dict[str, int]) -> None:
    assert cpus_by(read(files), "socket") == sockets


@pytest.mark.parametrize(
    ("cpuinfo", "cores"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 21", {"0": 0, "1": 1, "2": 2, "3": 3}),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25", {"0,2": 0, "1,3": 1}),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6", {"0,2": 0, "1,3": 1}),
    ],
    ids=["bulldozer", "zen", "intel"],
)
def test_compute_units(read: Read, cpuinfo: str, cores: dict[str, int]) -> None:
    """On Bulldozer, siblings with different core ids are separate cores; on no other CPU."""
    files = machine(1, 1, 1, 2, 2) | every_cpu("core_id", ["0", "1", "2", "3"])
    assert cpus_by(read(files | {"proc/cpuinfo": cpuinfo}), "core") == cores


def test_machine_without_node_folders_is_node_0(read: Read) -> None:
    files = without(machine(2, 1, 1, 2), NODE) | {
        "proc/meminfo": "MemTotal: 1024 kB\nHugePages_Total: 9\nHugePages_Free: 1\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "2",
    }
    (node,) = read(files).numa_nodes
    assert (node.id, str(node.cpus), node.memory_bytes) == (0, "0-3", 1 << 20)
    assert node.hugepages == (HugePages(2 << 20, 3, 2),)


def test_hugepages_of_kernels_before_2_6_31(read: Read) -> None:
    files = without(machine(), "/hugepages-")
    files[f"{NODE}/node0/meminfo"] += "\nNode 0 HugePages_Total: 7\nNode 0 HugePages_Free: 5"
    files["proc/meminfo"] += "\nHugepagesize:     4096 kB"
    assert read(files).numa_nodes[0].hugepages == (HugePages(4 << 20, 7, 5),)


def test_sparse_nodes_and_one_without_cpus(read: Read) -> None:
    files = {
        path.replace("/node1/", "/node8/"): text for path, text in machine(2, 1, 1, 2).items()
    } | {
        f"{NODE}/online": "0,8,250",
        f"{NODE}/node250/cpumap": "0",
        f"{NODE}/node250/meminfo": meminfo(250, 64),
        f"{NODE}/node0/distance": "10 40 80",
        f"{NODE}/node8/distance": "40 10 80",
        f"{NODE}/node250/distance": "80 80 10",
    }
    topology = read(files)
    assert [(node.id, str(node.cpus), node.distances) for node in topology.numa_nodes] == [
        (0, "0-1", (10, 40, 80)),
        (8, "2-3", (40, 10, 80)),
        (250, "", (80, 80, 10)),
    ]
    assert topology.numa_nodes[2].memory_bytes == 64 << 10


def test_node_that_spans_sockets(read: Read) -> None:
    files = without(machine(2, 1, 1, 2), "/node1/") | {
        f"{NODE}/online": "0",
        f"{NODE}/node0/cpumap": "f",
        f"{NODE}/node0/distance": "10",
    }
    topology = read(files)
    assert cpus_by(topology, "node") == {"0-3": 0}
    assert cpus_by(topology, "socket") == {"0-1": 0, "2-3": 1}


def test_node_in_the_list_without_folder(read: Read) -> None:
    """The rows of distances have a column for the missing node."""
    files = without(machine(3, 1, 1, 1), "/node1/")
    nodes = read(files).numa_nodes
    assert [(node.id, node.distances) for node in nodes] == [(0, (10, 21)), (2, (21, 10))]


def test_folder_of_a_node_that_is_not_online(read: Read) -> None:
    topology = read(machine(2, 1, 1, 1) | {f"{NODE}/online": "0"})
    assert [node.id for node in topology.numa_nodes] == [0]


@pytest.mark.parametrize(
    ("second", "lists"), [("f", ["0-1", "2-3"]), ("3", ["0-3", ""]), ("e", ["0-1", "2-3"])]
)
def test_overlapping_nodes(read: Read, second: str, lists: list[str]) -> None:
    nodes = read(machine(2, 1, 1, 2) | {f"{NODE}/node1/cpumap": second}).numa_nodes
    assert [str(node.cpus) for node in nodes] == lists


def test_cpu_without_a_node_list_is_placed_by_its_link(read: Read) -> None:
    files = machine(2, 1, 1, 2) | {f"{NODE}/node1/cpumap": "4"}
    topology = read(files, (f"{CPU}/cpu3/node1", "../../node/node1"))
    assert cpus_by(topology, "node") == {"0-1": 0, "2-3": 1}
    assert [str(node.cpus) for node in topology.numa_nodes] == ["0-1", "2-3"]


def test_cpu_without_a_node_list_and_link_is_on_the_first_node(read: Read) -> None:
    topology = read(machine(2, 1, 1, 2) | {f"{NODE}/node1/cpumap": "4"})
    assert [str(node.cpus) for node in topology.numa_nodes] == ["0-1,3", "2"]


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        (
            {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-5"},
            {"0-3": "core", "4-5": "atom"},
        ),
        ({"sys/devices/cpu_core/cpus": "0-5"}, {"0-5": None}),
        (
            {f"{CPU}/cpu{cpu}/cpu_capacity": "446" if cpu < 4 else "1024" for cpu in range(6)},
            {"0-3": "capacity-446", "4-5": "capacity-1024"},
        ),
        ({f"{CPU}/cpu{cpu}/cpu_capacity": "1024" for cpu in range(6)}, {"0-5": None}),
        ({"sys/devices/cpu_core/cpus": "0-5", "sys/devices/cpu_atom/cpus": "x"}, {"0-5": None}),
    ],
    ids=["intel", "intel, one kind", "arm", "arm, one kind", "torn"],
)
def test_core_kinds(read: Read, files: Files, kinds: dict[str, str | None]) -> None:
    assert cpus_by(read(machine(1, 1, 1, 6) | files), "kind") == kinds


@pytest.mark.parametrize(
    ("files", "isolated"),
    [
        ({f"{CPU}/isolated": "1-2"}, "1-2"),
        ({f"{CPU}/isolated": "1-900"}, "1-3"),
        ({f"{CPU}/isolated": "what"}, ""),
        ({"proc/cmdline": "quiet isolcpus=3 ro", f"{CPU}/isolated": ""}, ""),
    ],
)
def test_isolated(read: Read, files: Files, isolated: str) -> None:
    assert str(read(machine(1, 1, 1, 4) | files).isolated) == isolated


@pytest.mark.parametrize(
    ("cmdline", "isolated"),
    [
        ("quiet isolcpus=1,3 ro", "1,3"),
        ("isolcpus=managed_irq,domain,2-3", "2-3"),
        ("isolcpus=3-1", ""),
        ("quiet", ""),
    ],
)
def test_isolated_by_the_command_line(read: Read, cmdline: str, isolated: str) -> None:
    files = without(machine(1, 1, 1, 4), "/isolated") | {"proc/cmdline": cmdline}
    assert str(read(files).isolated) == isolated


INVALID = {
    "online": (f"{CPU}/online", "0-"),
    "online too large": (f"{CPU}/online", "0-99999999"),
    "threads": (f"{CPU}/cpu0/topology/core_cpus", "3,zz"),
    "package": (f"{CPU}/cpu0/topology/package_cpus", "0x"),
    "package id": (f"{CPU}/cpu0/topology/physical_package_id", "one"),
    "cpumap": (f"{NODE}/node0/cpumap", "\x01"),
    "memory": (f"{NODE}/node0/meminfo", "Node 0 MemTot"),
}


@pytest.mark.parametrize(("path", "text"), INVALID.values(), ids=INVALID.keys())
def test_invalid_content_is_named(tmp_path: Path, path: str, text: str) -> None:
    root = write(str(tmp_path), machine(2, 1, 1, 1) | {path: text})
    with pytest.raises(DiscoveryError) as raised:
        cpus.read(root)
    assert str(raised.value).startswith(f"{tmp_path}/{path}: ")
    assert repr(text)[1:-1] in str(raised.value)


OPTIONAL = (
    f"{CPU}/present",
    f"{CPU}/possible",
    f"{CPU}/isolated",
    f"{CPU}/offline",
    f"{CPU}/cpu0/topology/die_id",
    f"{CPU}/cpu0/topology/core_id",
    f"{CPU}/cpu0/cache/index3/level",
    f"{CPU}/cpu0/cache/index3/type",
    f"{CPU}/cpu0/cache/index3/shared_cpu_map",
    f"{NODE}/online",
    f"{NODE}/node0/distance",
    f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "proc/meminfo",
    "proc/cmdline",
    "sys/devices/cpu_atom/cpus",
)


@pytest.mark.parametrize(
    "text", ["", "\0", "zz 9-", "0" * 3000], ids=["blank", "nul", "text", "long"]
)
@pytest.mark.parametrize("path", OPTIONAL)
def test_invalid_content_of_an_optional_file(read: Read, path: str, text: str) -> None:
    topology = read(machine(2, 1, 1, 2) | {path: text})
    assert str(topology.online) == "0-3"
    assert cpus_by(topology, "socket") == {"0-1": 0, "2-3": 1}
    assert cpus_by(topology, "node") == {"0-1": 0, "2-3": 1}


@pytest.mark.parametrize(
    ("files", "message"),
    [({}, "no online CPU"), ({f"{CPU}/online": "0"}, "no online CPU"), ({CPU: "x"}, "no online")],
    ids=["empty", "list alone", "file for folder"],
)
def test_root_without_a_machine(tmp_path: Path, files: Files, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        cpus.read(write(str(tmp_path), files))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    root = write(str(tmp_path), machine())
    path = tmp_path / CPU / "online"
    path.unlink()
    path.mkdir()
    with pytest.raises(DiscoveryError, match=f"{CPU}/online: Is a directory"):
        cpus.read(root)


def test_the_machine_of_the_test_is_read() -> None:
    topology = cpus.read("/")
    assert CpuSet(os.sched_getaffinity(0)) <= topology.online
    assert topology.numa_nodes
