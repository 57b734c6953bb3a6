from __future__ import annotations

from pathlib import Path

import pytest

from agent.discover import pci
from agent.discover import sysfs_devices as fpga
from agent.model.devices.pci import AcceleratorPort, CharDevice, FpgaDriver, Fpgas
from tests.discover.buses import add_function, topology, write_files

CARD = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
LOOPBACK = "9aeffe5f84570612c000c9660d824272"
INTERFACE = "9926ab6d6c925a68aabca7d84c545738"


def read(root: Path) -> Fpgas:
    return fpga.fpgas(str(root), pci.read(str(root), topology({0: "0-3"})).by_address)


def dfl(root: Path, region: str, path: str, files: dict[str, str]) -> None:
    write_files(root / "sys/devices" / path / "fpga_region" / region, files)
    write_files(
        root / "sys/class/fpga_region", {f"{region}@": f"../../devices/{path}/fpga_region/{region}"}
    )


def test_a_card_of_the_device_feature_list(tmp_path: Path) -> None:
    """sysfs lists the region of the card and the region inside it."""
    add_function(tmp_path, CARD, {"class": "0x120000"})
    inner = "dfl-fme.0/dfl-fme-region.1"
    files = {
        "dfl-port.0/afu_id": f"{LOOPBACK}\n",
        "dfl-port.0/dev": "241:0\n",
        "dfl-fme.0/dev": "241:1",
    }
    dfl(tmp_path, "region0", CARD, files)
    dfl(tmp_path, "region1", f"{CARD}/fpga_region/region0/{inner}", {"compat_id": INTERFACE})
    found = read(tmp_path)
    assert found.problems == ()
    (card,) = found.devices
    assert (card.address, card.driver) == ("0000:3b:00.0", FpgaDriver.DFL)
    port = CharDevice("/dev/dfl-port.0", (241, 0))
    assert card.ports == (AcceleratorPort("dfl-port.0", LOOPBACK, port),)
    assert card.interface_id == INTERFACE
    assert card.management == CharDevice("/dev/dfl-fme.0", (241, 1))


@pytest.mark.parametrize("linked", [True, False])
def test_a_card_of_opae(tmp_path: Path, linked: bool) -> None:
    """The class has a link into the folder of the card, or a folder with a link to the card."""
    add_function(tmp_path, CARD)
    files = {
        "intel-fpga-port.0/afu_id": LOOPBACK,
        "intel-fpga-fme.0/pr/interface_id": INTERFACE,
        "intel-fpga-fme.0/dev": "241:1",
    }
    listing, name = tmp_path / "sys/class/fpga", "intel-fpga-dev.0"
    if linked:
        write_files(tmp_path / "sys/devices" / CARD / "fpga" / name, files)
        write_files(listing, {f"{name}@": f"../../devices/{CARD}/fpga/{name}"})
    else:
        write_files(listing / name, files | {"device@": "../../../bus/pci/devices/0000:3b:00.0"})
    found = read(tmp_path)
    assert found.problems == ()
    (card,) = found.devices
    assert (card.address, card.driver, card.interface_id) == (
        "0000:3b:00.0",
        FpgaDriver.OPAE,
        INTERFACE,
    )
    assert [(each.name, each.function_id) for each in card.ports] == [
        ("intel-fpga-port.0", LOOPBACK)
    ]


def test_a_port_of_a_virtual_function(tmp_path: Path) -> None:
    add_function(tmp_path, CARD, {"virtfn0@": "../0000:3b:00.1"})
    virtual = add_function(tmp_path, CARD[:-1] + "1", {"physfn@": "../0000:3b:00.0"}).name
    dfl(tmp_path, "region0", CARD, {"dfl-fme.0/dev": "241:1"})
    dfl(tmp_path, "region1", CARD[:-1] + "1", {"dfl-port.0/afu_id": LOOPBACK})
    card, port = read(tmp_path).devices
    assert card.ports == ()
    assert port.address == virtual
    assert port.function.physical == card.address
    assert [each.function_id for each in port.ports] == [LOOPBACK]


def test_invalid_entries_are_reported(tmp_path: Path) -> None:
    add_function(tmp_path, CARD)
    dfl(tmp_path, "region0", CARD, {"dfl-port.0/afu_id": "nothing", "dfl-fme.0/dev": "x:y"})
    write_files(tmp_path / "sys/class/fpga_region/region7/dfl-port.7", {})
    dfl(tmp_path, "region8", "pci0000:ff/0000:ff:00.0", {"dfl-port.8/afu_id": LOOPBACK})
    write_files(tmp_path / "sys/class/fpga_region", {"other": "", "region9@": "missing"})
    found = read(tmp_path)
    assert [each.split("fpga_region/", 1)[1] for each in found.problems] == [
        "region0/dfl-port.0/afu_id: 'nothing': not an id of 32 digits",
        "region0/dfl-fme.0/dev: 'x:y': not a device number",
        "region7: no PCI function",
        "region8: PCI function '0000:ff:00.0' is missing",
    ]
    assert [each.address for each in found.devices] == ["0000:3b:00.0"]
