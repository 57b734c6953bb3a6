"""The command `topolet devices`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli import devices
from agent.model.devices.gpus import pci_address
from agent.model.devices.pci import Function
from agent.model.devices.visibility import NodeDevice, NodeVisibility
from agent.model.pod.qos import QoS
from agent.model.snapshot import NOTHING, PodWanted, Snapshot, encode
from tests.cli.conftest import Topolet
from tests.discover import buses, fakenvml, gpumachines
from tests.discover.fakenvml import FakeDriver
from tests.fixtures.trees import machine, write

NVIDIA = {"class": "0x030200\n", "vendor": "0x10de\n", "device": "0x20b2\n", "numa_node": "0\n"}
NIC = {"class": "0x020000\n", "vendor": "0x15b3\n", "device": "0x1021\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with eight cards and a network interface."""
    root = tmp_path / "root"
    write(str(root), machine())
    for card in gpumachines.a100_hgx().cards:
        address = pci_address(card.bus)
        buses.add_function(root, f"pci{address.rpartition(':')[0]}/{address}", NVIDIA)
    buses.add_function(root, "pci0000:02/0000:02:00.0", NIC)
    return root


def test_a_copy_of_a_machine_has_the_values_of_pci(
    root: Path, tmp_path: Path, topolet: Topolet
) -> None:
    arguments = ["devices", f"--root={root}", f"--state-dir={tmp_path}"]
    found = topolet(*arguments, "-o", "json").json
    assert found["schema_version"] == 1
    assert [each["kind"] for each in found["devices"]].count("gpu") == 8
    assert {each["id"] for each in found["devices"]} == {""}
    lines = topolet(*arguments).out.splitlines()
    assert lines[0].split() == ["DEVICE", "ADDRESS", "NUMA", "NAME", "PODS", "STATE"]
    assert any(line.split()[3] == "15b3:1021" for line in lines)


@pytest.mark.skipif(fakenvml.missing() is not None, reason=str(fakenvml.missing()))
def test_values_of_the_driver_and_holders_of_the_snapshot(
    root: Path,
    tmp_path: Path,
    topolet: Topolet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = gpumachines.a100_hgx()
    driver = FakeDriver(tmp_path, cards)
    monkeypatch.setenv("FAKE_NVML", str(driver.facts))
    uuid = cards.cards[0].uuid
    snapshot = Snapshot(
        generation=1,
        listed_at=0,
        boot_id="boot",
        kubelet_static=False,
        pools={},
        owners=(),
        pods={"u1": PodWanted("ml/train", QoS.LS, NOTHING)},
        containers={},
        devices=NodeVisibility((NodeDevice(uuid, holders=("u1", "u2")),)),
    )
    (tmp_path / "snapshot.json").write_bytes(encode(snapshot))
    arguments = [f"--root={root}", f"--state-dir={tmp_path}", f"--gpu-driver-root={driver.root}"]
    found = {
        each["id"]: each for each in topolet("devices", *arguments, "-o", "json").json["devices"]
    }
    assert found[uuid]["holders"] == ["ml/train", "u2"]
    assert found[uuid]["name"] == "NVIDIA A100-SXM4-80GB"
    assert len(found[uuid]["links"]) == 7
    printed = topolet("devices", *arguments, "-o", "tree")
    assert "gpu 1: 12 NVLinks through switches, 300 GB/s" in printed.out


def test_a_device_that_udev_does_not_know_has_no_name() -> None:
    """The error of pyudev is not a LookupError, and ended the command with a traceback."""
    pytest.importorskip("pyudev")
    assert devices.names("/")(Function("ffff:00:00.0")) == ""


def test_a_root_that_does_not_exist(tmp_path: Path, topolet: Topolet) -> None:
    printed = topolet("devices", f"--root={tmp_path}/none", code=2)
    assert f"--root {tmp_path}/none: no such folder" in printed.err
