"""Trees with invalid devices: reading does not fail, and the valid device is found."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.discover import pci
from agent.discover import sysfs_devices as fpga
from agent.discover import sysfs_devices as network
from agent.model.devices.device_object import Device
from agent.node.device_listing import DeviceList, DiscoveredDevices, Published, device_list
from tests.discover.buses import add_function, topology, write_files

MACHINE = topology({0: "0-3", 1: "4-7"})
VALID = "pci0000:17/0000:17:00.0/0000:18:00.0"
INVALID = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"

TEXTS = (
    *("", "\n", "\0", "-1", "1", "0x030200", "999999999999999999999", "0-3", "3-0", "ffffffff,"),
    *("4: ACTIVE", "4: ACTIVE\0rest", "ACTIVE", "40 Gb/sec (4X QDR)", "1e9 Gb/sec", "231:192"),
    *("\ufffd\ud7ff", "mlx5_0", "a" * 5000, "9aeffe5f84570612c000c9660d824272"),
)
FILES = (
    *("class", "vendor", "device", "numa_node", "local_cpulist", "local_cpus", "sriov_totalvfs"),
    *("driver@", "physfn@", "virtfn0@", "virtfn1@", "virtfn1", "net/ib0/x", "net"),
    *("infiniband/mlx5_0/ports/1/state", "infiniband/mlx5_0/ports/1/rate", "infiniband/x"),
    *("infiniband/mlx5_0/ports/0x1/state", "infiniband/mlx5_0/node_guid", "infiniband"),
    *("infiniband_verbs/uverbs0/ibdev", "infiniband_verbs/uverbs0/dev", "infiniband_mad"),
    *("fpga_region/region0/dfl-port.0/afu_id", "fpga_region/region0/dfl-fme.0/dev"),
    "fpga_region/region0/dfl-fme.0/dfl-fme-region.1/fpga_region/region1/compat_id",
)
LINKS = ("../0000:3b:00.0", "../0000:18:00.0", "../0000:3b:00.1", "missing", "/", "virtfn0", ".")


def read(root: Path) -> DeviceList:
    functions = pci.read(str(root), MACHINE)
    adapters = network.rdma(str(root), functions.by_address)
    cards = fpga.fpgas(str(root), functions.by_address)
    found = DiscoveredDevices(functions.by_address, (), adapters.devices, cards.devices)
    listed = device_list(found, Published(), "2026-01-01T00:00:00Z")
    problems = functions.problems + adapters.problems + cards.problems
    assert all(each.startswith(str(root)) for each in problems)
    return listed


def add_valid_device(root: Path) -> None:
    add_function(
        root,
        VALID,
        {"numa_node": "1", "infiniband/mlx5_9/ports/1/state": "4: ACTIVE"},
    )


def device_at(found: DeviceList, bus: str) -> Device:
    return next(each for each in found.devices if each.uuid == bus)


def write_if_possible(folder: Path, name: str, text: str) -> None:
    """Does not replace existing paths."""
    try:
        write_files(folder, {name: text})
    except (OSError, ValueError):
        return


invalid_files = st.dictionaries(
    st.sampled_from(FILES), st.one_of(st.sampled_from(TEXTS), st.sampled_from(LINKS))
)


@settings(max_examples=50)
@given(invalid_files, st.sampled_from(LINKS))
def test_an_invalid_device_does_not_hide_a_valid_one(files: dict[str, str], target: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        add_valid_device(root)
        expected = device_at(read(root), "0000:18:00.0")
        folder_of_invalid = add_function(root, INVALID)
        (folder_of_invalid / "class").unlink()
        (folder_of_invalid / "numa_node").unlink()
        for name, text in files.items():
            write_if_possible(folder_of_invalid, name, text)
        regions = f"../../devices/{INVALID}/fpga_region/region0"
        write_files(root / "sys/class/fpga_region", {"region0@": regions, "region1@": target})
        write_if_possible(root / "sys/class/fpga", "intel-fpga-dev.0@", target)
        found = read(root)
        after = device_at(found, "0000:18:00.0")
        assert (after.resources, after.topology) == (expected.resources, expected.topology)
        virtual = {vf.bus for each in found.devices for group in each.vf_groups for vf in group.vfs}
        assert "0000:18:00.0" not in virtual, "the invalid device makes it no virtual function"


@settings(max_examples=15)
@given(st.randoms(use_true_random=False))
def test_the_order_of_listings_does_not_matter(random: Random) -> None:
    """Some filesystems list the entries of a folder in the order of creation."""
    paths = [f"pci0000:{bus:02x}/0000:{bus:02x}:00.0" for bus in range(4)]
    paths += [f"pci0000:17/0000:17:00.0/0000:18:00.{n}" for n in range(4)]

    def read_in_order(order: list[str]) -> DeviceList:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path in order:
                name = f"r{paths.index(path)}"
                ports = {f"infiniband/{name}/ports/{n}/state": "4: ACTIVE" for n in (2, 1)}
                add_function(root, path, {"numa_node": "0"} | ports)
            return read(root)

    shuffled = random.sample(paths, len(paths))
    assert read_in_order(shuffled) == read_in_order(paths)
