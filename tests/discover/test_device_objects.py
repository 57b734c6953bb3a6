"""Real machines, from sysfs to the Device object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.discover import cpus, pci
from agent.discover import sysfs_devices as fpga
from agent.discover import sysfs_devices as network
from agent.model.devices.device_object import encode
from agent.node.device_listing import DiscoveredDevices, Published, device_list


def device_object(root: str) -> dict[str, Any]:
    functions = pci.read(root, cpus.read(root))
    adapters = network.rdma(root, functions.by_address)
    cards = fpga.fpgas(root, functions.by_address)
    assert functions.problems + adapters.problems + cards.problems == ()
    found = DiscoveredDevices(functions.by_address, (), adapters.devices, cards.devices)
    return encode("node", device_list(found, Published(), "2026-01-01T00:00:00Z").devices)


@pytest.mark.parametrize(
    ("name", "node"), [("40intel64-2g2n4c+pcilocality", 2), ("fakepcilocalities", 1)]
)
def test_an_hca(snapshot: Callable[[str], str], name: str, node: int) -> None:
    assert device_object(snapshot(name))["spec"]["devices"] == [
        {
            "type": "rdma",
            "id": "0000:43:00.0",
            "minor": 0,
            "health": True,
            "resources": {"koordinator.sh/rdma": "100"},
            "topology": {
                "socketID": node,
                "nodeID": node,
                "pcieID": "0000:40:03.0",
                "busID": "0000:43:00.0",
            },
            "labels": {"topolet.io/links": "qib0", "topolet.io/link-layer": "InfiniBand"},
            "conditions": [
                {
                    "type": "Healthy",
                    "status": "True",
                    "reason": "DeviceHealthy",
                    "message": "device is healthy",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
    ]


@pytest.mark.parametrize("name", ["32intel64-2p8co2t+8ve", "nvidiagpunumanodes", "2arm-2c"])
def test_machines_without_a_driver_for_any_device(
    snapshot: Callable[[str], str], name: str
) -> None:
    assert device_object(snapshot(name))["spec"]["devices"] == []
