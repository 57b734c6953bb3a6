"""FPGAs with the XRT driver, from the tree in tests/data/xrt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.discover import pci
from agent.discover import sysfs_devices as fpga
from agent.model.devices.pci import AcceleratorPort, CharDevice, FpgaDriver, Fpgas
from tests.conftest import DATA
from tests.discover.buses import topology, write_files

LOADED = "3da8da1b5c7e6f5b9d0c5c3f4e2d1b0a"
INTERFACE = "862c7020a250293e32036f19956669e5"
USER = "sys/devices/pci0000:3d/0000:3d:00.0/0000:3e:00.1"
MANAGEMENT = "sys/devices/pci0000:3d/0000:3d:00.0/0000:3e:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path, json.loads((DATA / "xrt/machine.json").read_text()))
    return tmp_path


def read(root: Path) -> Fpgas:
    functions = pci.read(str(root), topology({0: "0-3", 1: "4-7"}))
    assert functions.problems == ()
    return fpga.fpgas(str(root), functions.by_address)


def test_a_card_is_its_user_function(root: Path) -> None:
    found = read(root)
    assert found.problems == ()
    one, two, _ = found.devices
    assert [each.address for each in found.devices] == [
        "0000:3e:00.1",
        "0000:5e:00.1",
        "0000:af:00.1",
    ]
    assert {each.driver for each in found.devices} == {FpgaDriver.XRT}
    file = CharDevice("/dev/dri/renderD128", (226, 128))
    assert one.ports == (AcceleratorPort("renderD128", LOADED, file),)
    assert one.interface_id == INTERFACE
    assert one.management == CharDevice("/dev/xclmgmt15872", (240, 0))
    assert (one.function.node, two.function.node) == (0, 1)
    file = CharDevice("/dev/dri/renderD129", (226, 129))
    assert two.ports == (AcceleratorPort("renderD129", "", file),)
    assert two.interface_id == ""


def test_a_card_that_is_not_ready_has_no_port(root: Path) -> None:
    """XRT does not use it. A virtual machine does not have the management function."""
    card = read(root).devices[2]
    assert (card.ports, card.management) == ((), None)


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        (f"{USER}/ready", "maybe\n", "ready: 'maybe': not a hexadecimal number"),
        (f"{USER}/drm/renderD128/dev", "x\n", "renderD128/dev: 'x': not a device number"),
        (f"{MANAGEMENT}/instance", "one\n", "instance: 'one' is not a number"),
        (f"{USER}/xclbinuuid", "nothing\n", "xclbinuuid: 'nothing': not an id of 32 digits"),
    ],
)
def test_an_invalid_file_is_reported_and_hides_no_card(
    path: str, text: str, problem: str, root: Path
) -> None:
    (root / path).write_text(text)
    found = read(root)
    (reported,) = found.problems
    assert reported.endswith(problem)
    assert len(found.devices) == 3
    management = found.devices[0].management
    assert (management is None) == path.startswith(MANAGEMENT)


@pytest.mark.parametrize("file", ["xclbinuuid", "interface_uuids"])
def test_a_card_with_several_ids_has_none(file: str, root: Path) -> None:
    """A card may have several slots for programs, and partitions with an interface each."""
    (root / USER / file).write_text(f"{LOADED}\n{INTERFACE}\n")
    found = read(root)
    assert found.problems == ()
    card = found.devices[0]
    assert "" in (card.interface_id, card.ports[0].function_id)


def test_a_card_that_is_being_reset_is_listed_without_a_port(root: Path) -> None:
    """The driver removes the files of the shell during a reset, but not the function."""
    for name in ("ready", "xclbinuuid", "interface_uuids"):
        (root / USER / name).unlink()
    found = read(root)
    assert found.problems == ()
    assert found.devices[0].ports == ()
