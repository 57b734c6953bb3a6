"""A node with every kind of device, for the tests of this folder."""

from __future__ import annotations

from agent.allocate.device_holders.names import Target, keys
from agent.model.devices.device_object import Device, DeviceTopology, VfGroup, VirtualFunction
from agent.model.devices.gpus import Gpu, MigInstance
from agent.model.devices.pci import (
    AcceleratorPort,
    CharDevice,
    Fpga,
    FpgaDriver,
    Function,
    RdmaDevice,
    RdmaFunction,
    RdmaLink,
)

GPU = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}


def device(kind: str, uuid: str, minor: int, bus: str, **others: object) -> Device:
    resources = GPU if kind == "gpu" else {f"koordinator.sh/{kind}": 100}
    topology = DeviceTopology(bus=bus)
    return Device(kind, uuid, minor, dict(resources), topology=topology, **others)  # type: ignore[arg-type]


DEVICES = (
    device("gpu", "GPU-a1", 0, "0000:01:00.0"),
    device("gpu", "GPU-b1", 1, "0000:02:00.0"),
    device("gpu", "GPU-b2", 2, "0000:03:00.0"),
    device(
        "rdma",
        "0000:18:00.0",
        0,
        "0000:18:00.0",
        vf_groups=(
            VfGroup({}, (VirtualFunction(0, "0000:18:00.1"), VirtualFunction(1, "0000:18:00.2"))),
        ),
    ),
    device("fpga", "0000:3b:00.0", 0, "0000:3b:00.0"),
)
GPUS = (
    Gpu("GPU-a1", 2, "0000:01:00.0"),
    Gpu("GPU-b1", 0, "0000:02:00.0"),
    Gpu(
        "GPU-b2",
        1,
        "0000:03:00.0",
        mig=True,
        instances=(MigInstance("MIG-x", 1, index=0), MigInstance("MIG-y", 2, index=2)),
    ),
)
"""NVML's indices differ from the minors, and the instance numbers have gaps."""


def _link(number: int) -> tuple[RdmaLink, ...]:
    return (RdmaLink("mlx5", char_devices=(CharDevice(f"/dev/infiniband/uverbs{number}"),)),)


RDMA = (
    RdmaDevice(
        RdmaFunction(Function("0000:18:00.0"), _link(0)),
        (
            RdmaFunction(Function("0000:18:00.1"), _link(1), number=0),
            RdmaFunction(Function("0000:18:00.2"), number=1),
        ),
    ),
)
FPGAS = (
    Fpga(
        Function("0000:3b:00.0"),
        FpgaDriver.DFL,
        (AcceleratorPort("dfl-port.0", char_device=CharDevice("/dev/dfl-port.0")),),
    ),
)
KEYS: dict[str, Target] = keys(DEVICES, GPUS, RDMA, FPGAS)
