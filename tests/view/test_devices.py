"""Devices as a table and as a tree."""

from __future__ import annotations

import msgspec
import pytest

from agent.model.devices.gpus import Gpu, GpuInventory, GpuPair, GpuReading, GpuReport, MigInstance
from agent.model.devices.pci import (
    Fpga,
    FpgaDriver,
    Fpgas,
    Function,
    Rdma,
    RdmaDevice,
    RdmaFunction,
    RdmaLink,
    RdmaPort,
)
from agent.model.devices.visibility import NodeDevice, NodeVisibility
from agent.model.pod.qos import QoS
from agent.model.snapshot import NOTHING, PodWanted, Wanted
from agent.view import devices
from agent.view.devices import DeviceSources
from tests.hooks.snapshots import EMPTY

GIB = 1 << 30
ROOT, SWITCH = "pci0000:17", ("0000:17:00.0", "0000:18:00.0", "0000:19:00.0")


def function(address: str, class_code: int, **changes: object) -> Function:
    fields = {"root": ROOT, "bridges": SWITCH, "vendor": 0x10DE, "device": 0x2330, "node": 0}
    return Function(address, class_code=class_code, **{**fields, **changes})  # type: ignore[arg-type]


CARDS = [function(f"0000:1{number}:00.0", 0x030200) for number in (1, 2)]
NIC = function("0000:13:00.0", 0x020000, vendor=0x15B3, device=0x1021, virtual_limit=8)
FPGA = function("0000:b1:00.0", 0x120000, vendor=0x8086, root="pci0000:b0", bridges=(), node=1)
VGA = function("0000:03:00.0", 0x030000, vendor=0x1A03, root="", bridges=(), node=-1)
INFINIBAND = function("0000:43:00.0", 0x0C0600, vendor=0x1077)
OTHERS = [function("0000:14:00.0", 0x010802), function("0000:13:00.1", 0x020000, physical="x")]
FUNCTIONS = {each.address: each for each in (*CARDS, NIC, FPGA, VGA, INFINIBAND, *OTHERS)}
REPORT = GpuReport(
    inventory=GpuInventory(
        "580",
        gpus=(
            Gpu("GPU-a", 0, CARDS[0].address, "NVIDIA H100", 0, 80 * GIB),
            Gpu(
                "GPU-b",
                1,
                CARDS[1].address,
                "NVIDIA H100",
                1,
                80 * GIB,
                mig=True,
                instances=(MigInstance("MIG-1", 1, 0, (1, 1), 10 * GIB, 0),),
            ),
        ),
        pairs=(GpuPair("GPU-a", "GPU-b", links=18, mb_per_second=450_000, switched=True),),
    ),
    readings=(GpuReading("GPU-a", 20 * GIB, 45),),
)
SOURCES = DeviceSources(
    FUNCTIONS,
    {NIC.address: ("eth2",)},
    Rdma(
        (
            RdmaDevice(
                RdmaFunction(
                    NIC,
                    (RdmaLink("mlx5_0", ports=(RdmaPort(1, "ACTIVE", rate_gbps=400.0),)),),
                    ("eth2",),
                )
            ),
        )
    ),
    Fpgas((Fpga(FPGA, FpgaDriver.DFL),)),
    REPORT,
    {"GPU-a": ("ml/train",), "MIG-1": ("ml/notebook",), NIC.address: ("ml/train",)},
    {"GPU-a": True, "GPU-b": False},
)


def test_the_devices_by_kind_without_virtual_functions() -> None:
    found = {each.address: each for each in devices.shown(SOURCES)}
    kinds = {each.kind for each in found.values()}
    assert set(found) == {each.address for each in (*CARDS, NIC, INFINIBAND, FPGA, VGA)}
    assert kinds == {"gpu", "nic", "fpga", "display"}
    assert found[CARDS[0].address].name == "NVIDIA H100"
    assert found[NIC.address].name == "15b3:1021"
    with_names = devices.shown(SOURCES, lambda each: "Mellanox ConnectX-7" if each == NIC else "")
    assert "Mellanox ConnectX-7" in {each.name for each in with_names}


def test_a_table_with_memory_health_and_pods() -> None:
    lines = devices.as_table(devices.shown(SOURCES), 200)
    (first,) = (line for line in lines if line.startswith("gpu 0"))
    assert first.split()[:6] == ["gpu", "0", "0000:11:00.0", "0", "NVIDIA", "H100"]
    assert "ml/train" in first
    assert first.endswith("20 GiB of 80 GiB, 45 %, healthy")
    (second,) = (line for line in lines if line.startswith("gpu 1"))
    assert "unhealthy, MIG" in second
    (part,) = (line for line in lines if "MIG-1" in line)
    assert part.split() == ["mig", "MIG-1", "ml/notebook", "10", "GiB"]
    assert any("eth2, mlx5_0/1 active 400 Gb/s, 0 of 8 virtual functions" in line for line in lines)


def test_a_tree_of_numa_nodes_and_switches() -> None:
    lines = devices.as_tree(devices.shown(SOURCES), 200)
    assert lines[:3] == [
        "NUMA node unknown",
        "  no PCI tree",
        "    display 0000:03:00.0  1a03:2330",
    ]
    assert lines[3:6] == ["NUMA node 0", f"  {ROOT}", "    switch 0000:18:00.0"]
    assert lines[6].startswith("      gpu 0 0000:11:00.0  NVIDIA H100  20 GiB of 80 GiB")
    assert lines[7] == "          gpu 1: 18 NVLinks through switches, 450 GB/s"
    assert lines[-3:-1] == ["NUMA node 1", "  pci0000:b0"]
    assert max(map(len, devices.as_tree(devices.shown(SOURCES), 60))) <= 60


def test_a_driver_that_does_not_answer_leaves_the_values_of_pci() -> None:
    for report, state in (
        (GpuReport("DriverNotLoaded", "no driver"), "the driver does not answer: DriverNotLoaded"),
        (GpuReport(inventory=GpuInventory("580")), "the driver does not list it"),
    ):
        found = devices.shown(DeviceSources({CARDS[0].address: CARDS[0]}, gpus=report))
        assert [(each.name, each.state) for each in found] == [("10de:2330", state)]


def test_a_machine_without_devices_has_a_message() -> None:
    assert devices.as_table((), 80) == devices.as_tree((), 80) == [devices.NONE]


def test_a_name_can_not_write_control_sequences() -> None:
    found = devices.shown(SOURCES, lambda each: "evil\x1b[2J")
    assert not any("\x1b" in line for line in devices.as_tree(found, 200))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_table_keeps_health_memory_and_pods(width: int) -> None:
    gpu, part = "NVIDIA H100 80GB HBM3", "MIG-5f1b7c0a-91d4-7f1e-2c55-0123456789ab"
    card = Gpu(
        "GPU-a",
        0,
        CARDS[0].address,
        gpu,
        0,
        80 * GIB,
        mig=True,
        instances=(MigInstance(part, 1, 0, (1, 1), 10 * GIB, 0),),
    )
    pods = {"GPU-a": ("ml/train-0",), part: ("ml/notebook",)}
    report = GpuReport(inventory=GpuInventory("580", gpus=(card,)))
    functions = {CARDS[0].address: CARDS[0]}
    sources = DeviceSources(functions, gpus=report, holders=pods, health={"GPU-a": False})
    lines = devices.as_table(devices.shown(sources), width)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    for part_of_text in (
        gpu,
        "80 GiB, unhealthy, MIG",
        "ml/train-0",
        part,
        "10 GiB",
        "ml/notebook",
    ):
        assert part_of_text in text


def test_a_tree_has_the_memory_of_mig_instances() -> None:
    (line,) = (line for line in devices.as_tree(devices.shown(SOURCES), 200) if "MIG-1" in line)
    assert line.split() == ["mig", "MIG-1", "10", "GiB", "ml/notebook"]


def test_a_device_names_the_pods_that_run_elsewhere() -> None:
    wanted = {"main": Wanted(numa_nodes="1"), "side": Wanted()}
    snapshot = msgspec.structs.replace(
        EMPTY,
        pods={
            "far": PodWanted("ml/far", QoS.LS, NOTHING, wanted),
            "near": PodWanted("ml/near", QoS.LS, NOTHING, {"main": Wanted(numa_nodes="0-1")}),
            "without": PodWanted("ml/without", QoS.LS, NOTHING),
        },
        devices=NodeVisibility((NodeDevice(NIC.address, holders=("far", "near", "without")),)),
    )
    sources = DeviceSources(
        {NIC.address: NIC},
        holders=devices.holders(snapshot),
        numa_nodes=devices.numa_nodes(snapshot),
    )
    (shown,) = devices.shown(sources)
    assert shown.state == "0 of 8 virtual functions, far: ml/far runs on NUMA nodes 1"
