"""Device files of a node, from its discovered devices."""

from __future__ import annotations

from agent.model.devices.device_files import (
    CardFiles,
    DeviceFiles,
    OtherFiles,
    capabilities,
    device_files,
)
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import Gpu, MigInstance
from agent.model.devices.pci import (
    AcceleratorPort,
    CharDevice,
    Fpga,
    FpgaDriver,
    Fpgas,
    Function,
    Rdma,
    RdmaDevice,
    RdmaFunction,
    RdmaLink,
)
from agent.model.devices.visibility import DeviceNode, VisibleGpu

MIG_MINORS = """config 1
monitor 2
gpu1/gi7/access 66
gpu1/gi7/ci0/access 67
"""
PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
237 nvidia-caps
238 nvidia-caps-imex-channels

Block devices:
  8 sd
"""
GI, CI = "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"
NO_OTHERS = Rdma(), Fpgas()


def test_capabilities_of_instances() -> None:
    assert capabilities(MIG_MINORS, PROC_DEVICES) == {
        "gpu1/gi7": DeviceNode(GI, 237, 66),
        "gpu1/gi7/ci0": DeviceNode(CI, 237, 67),
    }
    assert capabilities(MIG_MINORS, "")["gpu1/gi7"] == DeviceNode(GI, -1, 66)
    assert capabilities("", PROC_DEVICES) == {}
    assert capabilities(f"gpu1/gi7/access {'9' * 5_000}", PROC_DEVICES) == {}


def test_cards_and_their_instances() -> None:
    gpus = [
        Gpu("GPU-b", 1, "", minor=0, mig=True, instances=(MigInstance("MIG-x", 9, 0, index=0),)),
        Gpu("GPU-a", 0, "", minor=1, mig=True, instances=(MigInstance("MIG-y", 7, 0, index=2),)),
        Gpu("GPU-c", 2, ""),
    ]
    devices = [
        Device("gpu", uuid, minor, {}) for minor, uuid in enumerate(["GPU-b", "GPU-a", "GPU-c"])
    ]
    a, b = DeviceNode("/dev/nvidia1", 195, 1), DeviceNode("/dev/nvidia0", 195, 0)
    found = device_files(devices, gpus, *NO_OTHERS, capabilities(MIG_MINORS, PROC_DEVICES))
    capability_nodes = (DeviceNode(GI, 237, 66), DeviceNode(CI, 237, 67))
    assert found.cards == (
        CardFiles(
            VisibleGpu("GPU-a", "0", (a,)),
            1,
            True,
            (VisibleGpu("MIG-y", "0:2", (a, *capability_nodes)),),
        ),
        CardFiles(VisibleGpu("GPU-b", "1", (b,)), 0, True, (VisibleGpu("MIG-x", "1:0"),)),
        CardFiles(VisibleGpu("GPU-c", "2"), 2),
    )


def test_a_card_that_the_driver_does_not_list_has_neither_index_nor_device_node() -> None:
    """Both may belong to another card after a restart of the agent or the loss of a card."""
    gpus = [Gpu("GPU-a", 0, "", minor=1), Gpu("GPU-missing", -1, "", minor=1)]
    devices = [Device("gpu", "GPU-a", 1, {}), Device("gpu", "GPU-missing", 2, {})]
    cards = device_files(devices, gpus, *NO_OTHERS).cards
    assert cards is not None
    assert {each.gpu.uuid: each.gpu for each in cards} == {
        "GPU-a": VisibleGpu("GPU-a", "0", (DeviceNode("/dev/nvidia1", 195, 1),)),
        "GPU-missing": VisibleGpu("GPU-missing"),
    }


def link(number: int) -> RdmaLink:
    return RdmaLink(f"mlx5_{number}", char_devices=(char(number),))


def char(number: int) -> CharDevice:
    return CharDevice(f"/dev/infiniband/uverbs{number}", (231, 192 + number))


PHYSICAL, VIRTUAL = "0000:17:00.0", "0000:17:00.1"
RDMA = Rdma(
    (
        RdmaDevice(
            RdmaFunction(Function(PHYSICAL), (link(0),)),
            (RdmaFunction(Function(VIRTUAL, physical=PHYSICAL), (link(1),), number=0),),
        ),
    ),
    (CharDevice("/dev/infiniband/rdma_cm"),),
)
UVERBS = DeviceNode("/dev/infiniband/uverbs0", 231, 192)
OF_RDMA = OtherFiles(
    "rdma", PHYSICAL, 4, (UVERBS,), {VIRTUAL: (DeviceNode("/dev/infiniband/uverbs1", 231, 193),)}
)


def test_rdma_devices_and_their_functions() -> None:
    found = device_files([Device("rdma", PHYSICAL, 4, {})], [], RDMA, Fpgas())
    assert found == DeviceFiles((), (OF_RDMA,), {"rdma": (DeviceNode("/dev/infiniband/rdma_cm"),)})


def test_a_device_in_its_pods_network_namespace_keeps_its_files() -> None:
    devices = [Device("rdma", PHYSICAL, 4, {})]
    before = device_files(devices, [], RDMA, Fpgas())
    assert device_files(devices, [], *NO_OTHERS, before=before) == before
    assert device_files([], [], *NO_OTHERS, before=before).others == ()


def partly_visible(*, physical: int | None, virtual: int | None) -> Rdma:
    """RDMA devices of which only these links are visible."""

    def links(number: int | None) -> tuple[RdmaLink, ...]:
        return () if number is None else (link(number),)

    function = RdmaFunction(Function(VIRTUAL, physical=PHYSICAL), links(virtual), number=0)
    return Rdma((RdmaDevice(RdmaFunction(Function(PHYSICAL), links(physical)), (function,)),))


def test_a_virtual_function_in_its_pods_network_namespace_keeps_its_files() -> None:
    devices = [Device("rdma", PHYSICAL, 4, {})]
    before = device_files(devices, [], RDMA, Fpgas())
    now = device_files(
        devices, [], partly_visible(physical=0, virtual=None), Fpgas(), before=before
    )
    assert now == before


def test_a_hidden_device_gives_up_files_that_another_device_has_now() -> None:
    devices = [Device("rdma", PHYSICAL, 4, {}), Device("rdma", "0000:99:00.0", 5, {})]
    before = device_files(devices, [], RDMA, Fpgas())
    other = RdmaDevice(RdmaFunction(Function("0000:99:00.0"), (link(1),)))
    for visible in (partly_visible(physical=0, virtual=None), Rdma()):
        rdma = Rdma((*visible.devices, other))
        (first, _) = device_files(devices, [], rdma, Fpgas(), before=before).others
        assert (first.nodes, first.functions) == ((UVERBS,), {VIRTUAL: ()})


def test_fpgas_have_the_files_of_their_ports() -> None:
    port = AcceleratorPort("dfl-port.0", char_device=CharDevice("/dev/dfl-port.0", (240, 1)))
    virtual = Function("0000:b1:00.1", physical="0000:b1:00.0")
    fpgas = Fpgas(
        (
            Fpga(
                # The second belongs to a virtual machine: no FPGA driver is bound to it.
                Function("0000:b1:00.0", virtual=((0, "0000:b1:00.1"), (1, "0000:b1:00.2"))),
                FpgaDriver.DFL,
                management=CharDevice("/dev/dfl-fme.0", (240, 0)),
            ),
            Fpga(virtual, FpgaDriver.DFL, (port, AcceleratorPort("without"))),
        )
    )
    found = device_files([Device("fpga", "0000:b1:00.0", 0, {})], [], Rdma(), fpgas)
    assert found.others == (
        OtherFiles(
            "fpga",
            "0000:b1:00.0",
            0,
            (),
            {"0000:b1:00.1": (DeviceNode("/dev/dfl-port.0", 240, 1),)},
        ),
    )


def test_cards_that_are_not_reported_yet() -> None:
    assert device_files([], None, *NO_OTHERS).cards is None
    assert device_files([], [], *NO_OTHERS).cards == ()
