from __future__ import annotations

import pytest

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import Device, DeviceTopology
from agent.model.devices.visibility import DeviceNode, Visibility, VisibleGpu
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.pod_resources import ContainerCorrection, CorrectedDevice, PodCorrection
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Wanted
from agent.node.corrected import corrections
from tests.builders import pod

ONE, MIG = VisibleGpu("GPU-1", "0"), VisibleGpu("MIG-x", "1:0")
WITHOUT_NUMA_NODE = VisibleGpu("GPU-2b", "2")
VERBS, FUNCTION, COMMON = (
    DeviceNode(f"/dev/infiniband/{name}") for name in ("uverbs0", "uverbs1", "rdma_cm")
)
FILES = DeviceFiles(
    (
        CardFiles(ONE, 0),
        CardFiles(VisibleGpu("GPU-2", "1"), 1, True, (MIG,)),
        CardFiles(WITHOUT_NUMA_NODE, 2),
    ),
    (OtherFiles("rdma", "0000:17:00.0", 0, (VERBS,), {"0000:17:00.1": (FUNCTION,)}),),
    {"rdma": (COMMON,)},
)
DEVICES = tuple(
    Device(kind, uuid, 0, {}, topology=DeviceTopology(node=node))
    for kind, uuid, node in (
        ("gpu", "GPU-1", 0),
        ("gpu", "GPU-2", 1),
        ("rdma", "0000:17:00.0", 1),
        ("gpu", "GPU-2b", -1),
    )
)


def correction(each: Wanted, **containers: Wanted) -> PodCorrection:
    wanted = {"a": PodWanted("ns/a", QoS.LS, each, containers)}
    return corrections([pod("a")], wanted, FILES, DEVICES)["ns", "a"]


@pytest.mark.parametrize(
    ("wanted", "cpus"),
    [
        (Wanted(), None),
        (Wanted(LinuxResources("0-3")), EMPTY),
        (Wanted(LinuxResources("1,3", quota=NO_QUOTA), exclusive=True), CpuSet([1, 3])),
    ],
)
def test_cpus_are_the_exclusive_cpus_of_the_container(wanted: Wanted, cpus: CpuSet | None) -> None:
    assert correction(wanted) == PodCorrection(ContainerCorrection(cpus))


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (Visibility(), {}),
        (Visibility(gpus=()), {"gpu": ()}),
        (
            Visibility(gpus=(ONE, MIG)),
            {"gpu": (CorrectedDevice("GPU-1", (0,)), CorrectedDevice("MIG-x", (1,)))},
        ),
        (Visibility(gpus=(WITHOUT_NUMA_NODE,)), {"gpu": (CorrectedDevice("GPU-2b"),)}),
        (Visibility(gpus=(ONE,), refused="taken"), {}),
        (Visibility(nodes={"rdma": ()}), {"rdma": ()}),
        (
            Visibility(nodes={"rdma": (COMMON, VERBS, FUNCTION)}),
            {
                "rdma": (
                    CorrectedDevice("0000:17:00.0", (1,)),
                    CorrectedDevice("0000:17:00.1", (1,)),
                )
            },
        ),
    ],
)
def test_devices_are_the_visible_devices(
    visible: Visibility, devices: dict[str, tuple[CorrectedDevice, ...]]
) -> None:
    assert correction(Wanted(visible=visible)).each.devices == devices


def test_each_container_has_its_own_correction() -> None:
    found = correction(
        Wanted(LinuxResources("0")),
        main=Wanted(LinuxResources("2", quota=NO_QUOTA), exclusive=True),
    )
    assert (found.of("main").cpus, found.of("other").cpus) == (CpuSet([2]), EMPTY)


def test_two_pods_with_one_name_are_not_corrected() -> None:
    wanted = {"a": PodWanted("ns/a", QoS.LS, Wanted(LinuxResources("0")))}
    assert corrections([pod("a"), pod("a")], wanted, FILES, DEVICES) == {}
    assert corrections([pod("b")], wanted, FILES, DEVICES) == {}, "nothing is decided for the pod"
