"""The interface of a real PCI function, in the network namespace of a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.discover import cpus, pci, sysfs_devices
from agent.host.processes import Process
from agent.model.devices.pci import Function
from agent.model.pod.pods import Container, ContainerState
from agent.node.network_devices import NetworkDevices
from tests.builders import pod
from tests.host.namespaces import process_in_namespace
from tests.vm.guest import FAR_NODE
from tests.waiting import eventually

INTEL, GIGABIT = 0x8086, 0x10D3
DRIVER = Path("/sys/bus/pci/drivers/e1000e")


@pytest.fixture
def card() -> Iterator[Function]:
    """A network card of NUMA node 2, with its driver."""
    (DRIVER / "bind").write_text(found().address)
    eventually("the card has an interface", lambda: bool(interface()))
    yield found()
    (DRIVER / "unbind").write_text(found().address)


def found() -> Function:
    functions = pci.read("/", cpus.read("/")).by_address.values()
    return next(each for each in functions if (each.vendor, each.device) == (INTEL, GIGABIT))


def interface() -> str:
    address = found().address
    return next(iter(sysfs_devices.interfaces("/", [address])[address]), "")


def test_a_pod_has_the_card_whose_interface_is_in_its_namespace(card: Function) -> None:
    assert card.node == FAR_NODE
    sandbox = Container("s", "", ContainerState.RUNNING)
    pods = [msgspec.structs.replace(pod("p"), sandboxes=(sandbox,))]
    with process_in_namespace(":") as pid:
        with Process("/proc", pid) as process:
            group = next(iter(process.groups().values()))
        devices = NetworkDevices("/", lambda _: (group, pid))
        assert devices.observe({card.address: card}, pods) == {}
        subprocess.run(["ip", "link", "set", interface(), "netns", str(pid)], check=True)
        assert interface() == ""
        assert devices.observe({card.address: card}, pods) == {"p": (card.address,)}
    eventually("the kernel returns the card", lambda: bool(interface()))
    assert devices.observe({card.address: card}, []) == {}
