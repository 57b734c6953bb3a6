from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.discover import cpus, pci
from agent.discover import sysfs_devices as network
from agent.model.devices.pci import CharDevice, Rdma, RdmaDevice, RdmaPort
from tests.discover.buses import add_function, topology, write_files

PORT = "pci0000:17/0000:17:00.0"
TWO_NODES = topology({0: "0-3", 1: "4-7"})


def link(name: str, number: int, *states: str) -> dict[str, str]:
    """The files of an RDMA link of a function, with its char devices and one port per state."""
    return {
        f"infiniband/{name}/node_guid": f"0c42:a103:00e2:{number:04x}\n",
        **{f"infiniband/{name}/ports/{n}/state": state for n, state in enumerate(states, 1)},
        f"infiniband_verbs/uverbs{number}/ibdev": f"{name}\n",
        f"infiniband_verbs/uverbs{number}/dev": f"231:{192 + number}\n",
        f"infiniband_mad/umad{number}/ibdev": f"{name}\n",
    }


def read(root: Path) -> Rdma:
    found = pci.read(str(root), TWO_NODES)
    return network.rdma(str(root), found.by_address)


def only(root: Path) -> RdmaDevice:
    found = read(root)
    assert found.problems == ()
    (device,) = found.devices
    return device


@pytest.mark.parametrize("name", ["40intel64-2g2n4c+pcilocality", "fakepcilocalities"])
def test_an_hca_whose_class_is_not_network_controller(
    snapshot: Callable[[str], str], name: str
) -> None:
    root = snapshot(name)
    found = network.rdma(root, pci.read(root, cpus.read(root)).by_address)
    assert found.problems == ()
    (device,) = found.devices
    physical = device.physical
    assert (physical.address, physical.function.class_code) == ("0000:43:00.0", 0x0C0600)
    assert physical.interfaces == ("ib0",)
    (only,) = physical.links
    assert (only.name, only.node_guid, only.board) == (
        "qib0",
        "0123:4567:89ab:cdef",
        "InfiniPath_QLE7340",
    )
    assert only.ports == (RdmaPort(1, "ACTIVE", "LinkUp", "InfiniBand", 40.0),)
    assert physical.char_devices == (
        CharDevice("/dev/infiniband/issm0", (231, 64)),
        CharDevice("/dev/infiniband/umad0", (231, 0)),
        CharDevice("/dev/infiniband/uverbs0", (231, 192)),
    )
    assert (physical.down, device.virtual) == ((), ())


def test_adapters_whose_driver_for_rdma_is_not_loaded(snapshot: Callable[[str], str]) -> None:
    root = snapshot("32intel64-2p8co2t+8ve")
    assert network.rdma(root, pci.read(root, cpus.read(root)).by_address) == Rdma()


@pytest.mark.parametrize("name", ["mlx5_0", "rocep23s0f0", "ibp23s0", "bnxt_re0", "erdma_0", "x"])
def test_link_names_of_any_kind(tmp_path: Path, name: str) -> None:
    add_function(tmp_path, f"{PORT}/0000:18:00.0", link(name, 7, "4: ACTIVE"))
    device = only(tmp_path)
    assert [each.name for each in device.physical.links] == [name]
    assert device.physical.char_devices == (
        CharDevice("/dev/infiniband/umad7"),
        CharDevice("/dev/infiniband/uverbs7", (231, 199)),
    )


def test_an_entry_that_is_not_below_a_pci_function_is_ignored(tmp_path: Path) -> None:
    write_files(
        tmp_path / "sys/class/infiniband", {"scif0@": "../../devices/virtual/infiniband/scif0"}
    )
    add_function(tmp_path, f"{PORT}/0000:18:00.0")
    assert read(tmp_path) == Rdma()


@pytest.mark.parametrize(
    ("states", "down"),
    [
        (("4: ACTIVE\n",), ()),
        (("4: ACTIVE\0",), ()),
        (("1: DOWN",), ("r/1",)),
        (("4: ACTIVE", "2: INIT"), ("r/2",)),
        (("5: ACTIVE_DEFER",), ("r/1",)),
        (("4:ACTIVE", ""), ("r/2",)),
        ((), ("r",)),
    ],
)
def test_ports_that_are_down(tmp_path: Path, states: tuple[str, ...], down: tuple[str]) -> None:
    add_function(tmp_path, f"{PORT}/0000:18:00.0", link("r", 0, *states))
    assert only(tmp_path).physical.down == down


def test_several_links_of_a_function_have_files_of_their_own(tmp_path: Path) -> None:
    add_function(
        tmp_path,
        f"{PORT}/0000:18:00.0",
        link("mlx5_0", 0, "4: ACTIVE") | link("mlx5_1", 1, "1: DOWN"),
    )
    physical = only(tmp_path).physical
    assert {
        each.name: [file.path[-1] for file in each.char_devices] for each in physical.links
    } == {
        "mlx5_0": ["0", "0"],
        "mlx5_1": ["1", "1"],
    }
    assert physical.down == ("mlx5_1/1",)


def test_virtual_functions_have_their_numbers_and_files(tmp_path: Path) -> None:
    """Number 1 is passed through to a virtual machine: it is listed, but has no links here."""
    virtual = {f"virtfn{n}@": f"../0000:18:00.{n + 1}" for n in (2, 0, 1)}
    add_function(tmp_path, f"{PORT}/0000:18:00.0", virtual | link("mlx5_0", 0, "4: ACTIVE"))
    physical = {"physfn@": "../0000:18:00.0"}
    add_function(tmp_path, f"{PORT}/0000:18:00.1", physical | link("mlx5_2", 2, "4: ACTIVE"))
    add_function(tmp_path, f"{PORT}/0000:18:00.2", physical)
    add_function(tmp_path, f"{PORT}/0000:18:00.3", physical | link("mlx5_4", 4, "4: ACTIVE"))
    device = only(tmp_path)
    assert [(each.number, each.address, len(each.char_devices)) for each in device.virtual] == [
        (0, "0000:18:00.1", 2),
        (1, "0000:18:00.2", 0),
        (2, "0000:18:00.3", 2),
    ]
    assert [file.path[-1] for file in device.char_devices()] == ["0", "0"]
    assert [file.path[-1] for file in device.char_devices({"0000:18:00.3"})] == ["4", "4"]
    assert device.char_devices({"0000:18:00.2"}) == ()


@pytest.mark.parametrize("physical", [None, {}])
def test_a_virtual_function_whose_physical_one_has_no_rdma_is_a_device(
    tmp_path: Path, physical: dict[str, str] | None
) -> None:
    if physical is not None:
        add_function(tmp_path, f"{PORT}/0000:18:00.0", physical)
    virtual = {"physfn@": "../0000:18:00.0"} | link("mlx5_2", 2, "4: ACTIVE")
    add_function(tmp_path, f"{PORT}/0000:18:00.1", virtual)
    assert only(tmp_path).physical.address == "0000:18:00.1"


def test_the_device_of_the_connection_manager_is_shared_by_all(tmp_path: Path) -> None:
    write_files(tmp_path / "sys/class/misc/rdma_cm", {"dev": "10:58\n"})
    assert read(tmp_path).common == (CharDevice("/dev/infiniband/rdma_cm", (10, 58)),)


def test_invalid_files_are_reported_and_the_device_is_kept(tmp_path: Path) -> None:
    files = link("mlx5_0", 0, "what")
    files |= {"infiniband/mlx5_0/ports/1/rate": "fast", "infiniband_verbs/uverbs0/dev": "c"}
    folder = add_function(tmp_path, f"{PORT}/0000:18:00.0", files)
    write_files(folder, {"infiniband/mlx5_0/ports/x/state": "", "infiniband/mlx5_0/fw_ver/x": ""})
    found = read(tmp_path)
    listed = f"{tmp_path}/sys/bus/pci/devices/0000:18:00.0/"
    assert [each.removeprefix(listed) for each in found.problems] == [
        "infiniband_verbs/uverbs0/dev: 'c': not a device number",
        "infiniband/mlx5_0/fw_ver: Is a directory",
        "infiniband/mlx5_0/ports/1/rate: 'fast': not a Gb/sec rate",
        "infiniband/mlx5_0/ports/1/state: 'what': not a state",
    ]
    assert found.devices[0].physical.down == ("mlx5_0/1",)
