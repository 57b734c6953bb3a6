"""PCI functions in sysfs, on a machine with known buses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.discover import cpus, pci
from agent.host.kernel_events import Uevents
from agent.model.devices.gpus import Ancestor
from agent.model.devices.pci import Function
from agent.node.triggers import SUBSYSTEMS
from tests.discover.buses import proximity
from tests.vm.guest import FAR_BUS, FAR_NODE
from tests.waiting import eventually

DISK, RANDOM = 0x010802, 0x1AF4
DRIVER = Path("/sys/bus/pci/drivers/nvme")


def read_functions() -> dict[str, Function]:
    found = pci.read("/", cpus.read("/"))
    assert found.problems == ()
    return found.by_address


def far() -> list[Function]:
    return [each for each in read_functions().values() if each.root == f"pci0000:{FAR_BUS:02x}"]


def disk() -> Function:
    return next(each for each in far() if each.class_code == DISK and not each.physical)


def upper_and_lower() -> tuple[Function, Function]:
    """The function below the upper switch, and the one below both switches."""
    one, other = sorted(
        (each for each in far() if each.vendor == RANDOM), key=lambda each: len(each.bridges)
    )
    return one, other


def test_all_functions_of_a_far_bus_have_its_numa_node() -> None:
    assert {each.node for each in far()} == {FAR_NODE}
    assert {each.socket for each in far()} == {1}


def test_two_levels_of_switches() -> None:
    upper, lower = upper_and_lower()
    assert (len(upper.switches), len(lower.switches)) == (1, 2)
    assert lower.switches[0] == upper.switches[0] == upper.pcie == lower.pcie == disk().pcie
    assert proximity(lower, disk()) is Ancestor.SWITCH
    assert proximity(lower, upper) is Ancestor.SWITCHES
    near = next(each for each in read_functions().values() if each.root == "pci0000:00")
    assert proximity(lower, near) >= Ancestor.NODE


@pytest.fixture
def uevents() -> Iterator[Uevents]:
    listening = Uevents()
    yield listening
    listening.close()


@pytest.fixture
def disk_with_driver() -> Iterator[Function]:
    """The disk, with its driver."""
    if not DRIVER.exists():
        pytest.skip("the kernel has no driver for the disk")
    found = disk()
    (DRIVER / "bind").write_text(found.address)
    yield disk()
    (DRIVER / "unbind").write_text(found.address)


def test_virtual_functions_that_are_created_and_removed(
    disk_with_driver: Function, uevents: Uevents
) -> None:
    found = disk_with_driver
    assert (found.driver, found.virtual_limit) == ("nvme", 2)
    switch = Path("/", pci.DEVICES, found.address, "sriov_numvfs")
    switch.write_text("2")
    try:
        eventually("the kernel sends a uevent", lambda: uevents.read(SUBSYSTEMS))
        functions = read_functions()
        numbers = functions[found.address].virtual
        assert [number for number, _ in numbers] == [0, 1]
        for _, address in numbers:
            virtual = functions[address]
            assert virtual.physical == found.address
            assert (virtual.bridges, virtual.node) == (found.bridges, FAR_NODE)
    finally:
        switch.write_text("0")
    assert disk().virtual == ()
