from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.discover import cpus, pci
from agent.discover.sysfs import DiscoveryError
from agent.model.devices.gpus import Ancestor
from agent.model.devices.pci import Function
from tests.discover.buses import add_function, proximity, topology, write_files

TWO_NODES = topology({0: "0-3", 1: "4-7"})


def function(root: Path, path: str, files: dict[str, str] | None = None) -> Function:
    address = add_function(root, path, files).name
    found = pci.read(str(root), TWO_NODES)
    assert found.problems == ()
    return found.by_address[address]


@pytest.fixture
def engines(snapshot: Callable[[str], str]) -> dict[str, Function]:
    """Eight accelerators and two HCAs below two switches, all on NUMA node 0."""
    root = snapshot("32intel64-2p8co2t+8ve")
    return pci.read(root, cpus.read(root)).by_address


def test_accelerators_and_hcas_are_grouped_by_switch(engines: dict[str, Function]) -> None:
    groups: dict[str, list[str]] = {}
    for address, each in engines.items():
        if each.class_code in (0x0B4000, 0x020700):
            groups.setdefault(each.pcie, []).append(address)
            assert (each.node, each.socket) == (0, 0)
    assert groups == {
        "0000:18:00.0": [f"0000:{bus}:00.0" for bus in ("1a", "1b", "1c", "1d", "1e")],
        "0000:3b:00.0": [f"0000:{bus}:00.0" for bus in ("3d", "3e", "3f", "40", "41")],
    }
    assert engines["0000:1a:00.0"].driver == "mlx5_core"
    assert (engines["0000:1b:00.0"].vendor, engines["0000:1b:00.0"].device) == (0x1BCF, 0x1C)


def test_an_unlisted_bridge_is_part_of_the_path(engines: dict[str, Function]) -> None:
    port = engines["0000:60:00.1"]
    assert port.root == "pci0000:5d"
    assert port.bridges == ("0000:5d:02.0", "0000:5e:00.0", "0000:5f:03.0")
    assert "0000:5f:03.0" not in engines
    assert (port.virtual_limit, port.virtual) == (64, ())


@pytest.mark.parametrize(
    ("one", "other", "ancestor"),
    [
        ("1b:00.0", "1b:00.0", Ancestor.BOARD),
        ("1a:00.0", "1e:00.0", Ancestor.SWITCH),
        ("60:00.0", "60:00.1", Ancestor.SWITCH),
        ("1a:00.0", "3e:00.0", Ancestor.NODE),
    ],
)
def test_proximity_on_a_real_machine(
    engines: dict[str, Function], one: str, other: str, ancestor: Ancestor
) -> None:
    assert proximity(engines[f"0000:{one}"], engines[f"0000:{other}"]) is ancestor


def test_numa_node_outweighs_local_cpus(snapshot: Callable[[str], str]) -> None:
    root = snapshot("40intel64-2g2n4c+pcilocality")
    functions = pci.read(root, cpus.read(root)).by_address
    assert len(functions) == 37
    assert functions["0000:43:00.0"].node == 2
    assert {each.node for each in functions.values()} == {2, -1}, "other functions list all CPUs"


def test_the_node_of_every_root_bus(snapshot: Callable[[str], str]) -> None:
    root = snapshot("fakepcilocalities")
    functions = pci.read(root, cpus.read(root)).by_address
    nodes = {each.root: each.node for each in functions.values()}
    assert nodes == {"pci0000:00": 0, "pci0000:40": 1, "pci0000:80": 2, "pci0000:c0": 3}


def test_local_cpus_determine_the_node_of_cards_without_numa_node(
    snapshot: Callable[[str], str],
) -> None:
    root = snapshot("nvidiagpunumanodes")
    functions = pci.read(root, cpus.read(root)).by_address
    assert {address: each.node for address, each in functions.items()} == {
        "0004:05:00.0": 0,
        "0004:06:00.0": 0,
        "0006:00:00.0": 0,
        "0007:00:00.0": 8,
        "0035:04:00.0": 8,
        "0035:05:00.0": 8,
    }
    assert len({each.pcie for each in functions.values()}) == 6, (
        "without a tree nothing is adjacent"
    )


@pytest.mark.parametrize("name", ["32amd64-4s2n4c-cgroup2", "2ps3-2t"])
def test_a_machine_without_pci(snapshot: Callable[[str], str], name: str) -> None:
    root = snapshot(name)
    assert pci.read(root, cpus.read(root)) == pci.Functions()


@pytest.mark.parametrize(
    ("path", "root", "pcie"),
    [
        ("pci000a:00/000a:00:00.0/000a:01:00.0", "pci000a:00", "000a:00:00.0"),
        ("pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00", "10000:00:02.0"),
        ("pci0000:00/0000:00:05.0", "pci0000:00", "pci0000:00"),
        ("pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0", "pci10000:00", "pci10000:00"),
        ("LNXSYSTM:00/ACPI:00/pciabcdef01:00/abcdef01:00:02.0", "pciabcdef01:00", "pciabcdef01:00"),
    ],
)
def test_domains_of_any_width(tmp_path: Path, path: str, root: str, pcie: str) -> None:
    found = function(tmp_path, path)
    assert (found.root, found.pcie) == (root, pcie)


def test_two_levels_of_switches(tmp_path: Path) -> None:
    """As on a DGX-2: 34 and 36 share the lower switch, and share the upper one with 39."""
    port, up = "pci0000:2b/0000:2b:00.0", "0000:2c:00.0"
    paths = {
        "34": f"{port}/{up}/0000:2d:00.0/0000:32:00.0/0000:33:00.0/0000:34:00.0",
        "36": f"{port}/{up}/0000:2d:00.0/0000:32:00.0/0000:33:01.0/0000:36:00.0",
        "39": f"{port}/{up}/0000:2d:01.0/0000:37:00.0/0000:38:00.0/0000:39:00.0",
        "57": "pci0000:2b/0000:2b:01.0/0000:57:00.0",
        "5c": "pci0000:5b/0000:5b:00.0/0000:5c:00.0",
    }
    for path in paths.values():
        add_function(tmp_path, path)
    found = pci.read(str(tmp_path), TWO_NODES).by_address
    cards = {bus: found[f"0000:{bus}:00.0"] for bus in paths}
    assert {bus: proximity(cards["34"], cards[bus]) for bus in paths} == {
        "34": Ancestor.BOARD,
        "36": Ancestor.SWITCH,
        "39": Ancestor.SWITCHES,
        "57": Ancestor.HOST_BRIDGE,
        "5c": Ancestor.SYSTEM,
    }
    assert cards["34"].switches == (up, "0000:32:00.0")
    assert {cards[bus].pcie for bus in ("34", "36", "39")} == {up}


@pytest.mark.parametrize(
    ("files", "node", "socket"),
    [
        ({"numa_node": "1"}, 1, 1),
        ({"numa_node": "1\0"}, 1, 1),
        ({"numa_node": "7"}, -1, -1),
        ({"numa_node": "-1", "local_cpulist": "4-5"}, 1, 1),
        ({"numa_node": "-1", "local_cpulist": "0-7"}, -1, -1),
        ({"numa_node": "-1", "local_cpulist": "", "local_cpus": "f0"}, 1, 1),
        ({"numa_node": "-1", "../numa_node": "1"}, 1, 1),
        ({"numa_node": "-1", "../local_cpulist": "0"}, 0, 0),
        ({"numa_node": "-1", "../../pci_bus/0000:17/cpulistaffinity": "4-7"}, 1, 1),
        ({"numa_node": "0", "../numa_node": "1"}, 0, 0),
    ],
)
def test_sources_of_the_numa_node(
    tmp_path: Path, files: dict[str, str], node: int, socket: int
) -> None:
    found = function(tmp_path, "pci0000:17/0000:17:00.0/0000:18:00.0", files)
    assert (found.node, found.socket) == (node, socket)


@pytest.mark.parametrize(
    ("numa_node", "nodes", "distances", "node"),
    [
        ("-1", {0: "0-7"}, {}, 0),
        ("-1", {1: "0-7", 2: ""}, {}, 1),
        ("255", {0: "0-3", 8: "4-7", 255: ""}, {"node255": "80 40 10"}, 8),
        ("255", {0: "0-3", 8: "4-7", 255: ""}, {}, -1),
        ("2", {0: "0-3", 1: "4-7", 2: ""}, {"node2": "20 20 10"}, 0),
    ],
)
def test_nodes_of_memory_alone(
    tmp_path: Path, numa_node: str, nodes: dict[int, str], distances: dict[str, str], node: int
) -> None:
    add_function(tmp_path, "pci0000:00/0000:00:05.0", {"numa_node": numa_node})
    (found,) = pci.read(str(tmp_path), topology(nodes, **distances)).by_address.values()
    assert found.node == node


@pytest.mark.parametrize(
    ("files", "node", "socket"),
    [
        ({"numa_node": "0"}, 0, -1),
        ({"numa_node": "0", "local_cpulist": "0-1"}, 0, 0),
        ({"numa_node": "1"}, 1, 1),
        ({"numa_node": "-1", "local_cpulist": "2-7"}, -1, 1),
    ],
)
def test_the_socket_is_known_only_if_one_has_all_cpus(
    tmp_path: Path, files: dict[str, str], node: int, socket: int
) -> None:
    add_function(tmp_path, "pci0000:00/0000:00:05.0", files)
    spanning = topology({0: "0-3", 1: "4-7"}, {0: "0-1", 1: "2-7"})
    (found,) = pci.read(str(tmp_path), spanning).by_address.values()
    assert (found.node, found.socket) == (node, socket)


def test_virtual_functions_are_in_order_of_their_numbers(tmp_path: Path) -> None:
    virtual = {f"virtfn{n}@": f"../0000:18:{n >> 3:02x}.{n & 7}" for n in (10, 2, 1)}
    add_function(tmp_path, "pci0000:17/0000:17:00.0/0000:18:01.2", {"physfn@": "../0000:18:00.0"})
    found = function(
        tmp_path,
        "pci0000:17/0000:17:00.0/0000:18:00.0",
        virtual | {"sriov_totalvfs": "16", "virtfnx@": "../0000:18:00.0", "virtfn3@": "nowhere"},
    )
    assert found.virtual == ((1, "0000:18:00.1"), (2, "0000:18:00.2"), (10, "0000:18:01.2"))
    functions = pci.read(str(tmp_path), TWO_NODES).by_address
    assert functions["0000:18:01.2"].physical == "0000:18:00.0"


def test_invalid_files_are_reported_and_do_not_hide_other_devices(tmp_path: Path) -> None:
    add_function(tmp_path, "pci0000:00/0000:00:01.0", {"class": "0xzz", "numa_node": "many"})
    add_function(tmp_path, "pci0000:00/0000:00:02.0", {"vendor/x": "", "local_cpulist": "9-1"})
    add_function(tmp_path, "pci0000:00/0000:00:03.0", {"numa_node": "0"})
    listing = tmp_path / "sys/bus/pci/devices"
    write_files(
        listing, {"README": "", "0000:00:04.0@": "../gone", "0000:00:05.8": "", "0:1:2.3@": "x"}
    )
    found = pci.read(str(tmp_path), TWO_NODES)
    assert list(found.by_address) == [f"0000:00:0{n}.0" for n in (1, 2, 3)]
    assert [each.removeprefix(str(listing)) for each in found.problems] == [
        "/0000:00:01.0/numa_node: 'many' is not a number",
        "/0000:00:01.0/class: '0xzz': not a hexadecimal number",
        "/0000:00:02.0/local_cpulist: CPU list '9-1': range '9-1' runs backwards",
        "/0000:00:02.0/vendor: Is a directory",
    ]


def test_the_error_of_an_unreadable_listing_names_it(tmp_path: Path) -> None:
    listing = tmp_path / "sys/bus/pci/devices"
    write_files(listing.parent, {"devices@": "devices"})
    with pytest.raises(DiscoveryError, match=f"{listing}: Too many levels"):
        pci.read(str(tmp_path), TWO_NODES)
