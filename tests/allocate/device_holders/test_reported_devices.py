from __future__ import annotations

import base64
import json
import re

import pytest

from agent.allocate.device_holders.holdings import conflicts
from agent.allocate.device_holders.names import meaning
from agent.allocate.device_holders.reported_devices import (
    Carriers,
    of_carriers,
    of_device_object,
    of_pod_resources,
)
from agent.model.devices.holding import (
    DEVICES_CHECKPOINTS,
    GPU_CHECKPOINTS,
    Form,
    HoldingSource,
    ReportedDevices,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.pod_resources import (
    ClaimedDevice,
    ContainerResources,
    PluginDevice,
    PodResources,
    ResourceClaim,
)
from agent.model.wire import patch
from tests.allocate.device_holders.node import KEYS

MOUNTS = "/var/run/nvidia-container-devices"


def visible(value: str) -> Carriers:
    return Carriers(environment=(("PATH", "/bin"), ("NVIDIA_VISIBLE_DEVICES", value)))


@pytest.mark.parametrize(
    ("carriers", "names_by_resource"),
    [
        (Carriers(), {}),
        (visible(""), {}),
        (visible("void"), {}),
        (visible("none"), {}),
        (visible(MOUNTS), {}),
        (visible("all"), {"": ("all",)}),
        (visible("GPU-a1, 2,,MIG-x"), {"": ("GPU-a1", "2", "MIG-x")}),
        (visible("nvidia.com/gpu=GPU-a1,nvidia.com/gpu=0"), {"nvidia.com/gpu": ("GPU-a1", "0")}),
        (
            Carriers(
                environment=(("NVIDIA_VISIBLE_DEVICES", "0"), ("NVIDIA_VISIBLE_DEVICES", "1"))
            ),
            {"": ("1",)},
        ),
        (
            Carriers(environment=(("DRA_CPUSET_5f7e", "2-3"), ("DRA_CPUSET", "9"))),
            {"dra.cpu": ("2-3",)},
        ),
        (
            Carriers(
                cdi_devices=("nvidia.com/gpu=GPU-a1", "nvidia.com/gds=all", "incomplete", "x=")
            ),
            {"nvidia.com/gpu": ("GPU-a1",), "nvidia.com/gds": ("all",)},
        ),
        (
            Carriers(
                annotations=(
                    ("cdi.k8s.io/nvidia-device-plugin_1", "nvidia.com/gpu=0,nvidia.com/gpu=1"),
                    ("nvidia.cdi.k8s.io/x", "nvidia.com/gpu=2"),
                    ("cdi.k8s.io", "nvidia.com/gpu=3"),
                    ("other", "nvidia.com/gpu=4"),
                )
            ),
            {"nvidia.com/gpu": ("0", "1", "2")},
        ),
        (
            Carriers(
                mounts=(
                    f"{MOUNTS}/GPU-a1",
                    f"{MOUNTS}/cdi/nvidia.com/gpu/GPU-b1",
                    f"{MOUNTS}/imex/0",
                    f"/{MOUNTS}/.//GPU-b2/",
                    "/data/GPU-c",
                )
            ),
            {"": ("GPU-a1", "GPU-b2"), "nvidia.com/gpu": ("GPU-b1",)},
        ),
    ],
)
def test_device_names_in_a_container(
    carriers: Carriers, names_by_resource: dict[str, tuple[str, ...]]
) -> None:
    found = of_carriers("pod", "main", carriers)
    assert {each.resource: each.names for each in found} == names_by_resource
    by_cdi = bool(carriers.cdi_devices)
    source = HoldingSource.CONTAINER if by_cdi else HoldingSource.ENVIRONMENT
    assert {(each.uid, each.container, each.source) for each in found} <= {("pod", "main", source)}


@pytest.mark.parametrize(("privileged", "names"), [(False, [("/dev/nvidia0",)]), (True, [])])
def test_device_nodes_of_a_privileged_container_are_ignored(
    privileged: bool, names: list[tuple[str, ...]]
) -> None:
    carriers = Carriers(nodes=("/dev/nvidia0", "socket"), privileged=privileged)
    found = of_carriers("pod", "main", carriers)
    assert [each.names for each in found] == names
    assert all(each.source is HoldingSource.NODE for each in found)


VISIBLE = patch((1,), patch((1,), "NVIDIA_VISIBLE_DEVICES") + patch((2,), "GPU-a,GPU-b"))


def entry(uid: str, *ids: str, response: bytes = b"") -> dict[str, object]:
    return {
        "podUID": uid,
        "containerName": "c",
        "resourceName": "r",
        "deviceIDs": ids,
        **({"allocResp": base64.b64encode(response).decode()} if response else {}),
    }


def reported(uid: str, *ids: str) -> ReportedDevices:
    return ReportedDevices(uid, "c", "r", ids, HoldingSource.CHECKPOINT)


def test_both_keys_are_read_together() -> None:
    notes = {
        DEVICES_CHECKPOINTS: json.dumps([entry("a", "GPU-1")]),
        GPU_CHECKPOINTS: json.dumps([entry("a", "GPU-1"), entry("b", "GPU-2")]),
    }
    assert of_device_object(notes) == (
        reported("a", "GPU-1"),
        reported("a", "GPU-1"),
        reported("b", "GPU-2"),
    )
    assert of_device_object({GPU_CHECKPOINTS: "[]", DEVICES_CHECKPOINTS: ""}) == ()


@pytest.mark.parametrize("key", [DEVICES_CHECKPOINTS, GPU_CHECKPOINTS])
def test_devices_of_the_allocate_response_are_added(key: str) -> None:
    """As in the kubelet's checkpoint: the ids of some plugins do not identify devices."""
    response = VISIBLE + patch((3,), patch((2,), "/dev/nvidia3"))
    assert of_device_object({key: json.dumps([entry("a", "slot-0", response=response)])}) == (
        reported("a", "slot-0"),
        ReportedDevices("a", "c", "", ("GPU-a", "GPU-b"), HoldingSource.ANSWER),
        ReportedDevices("a", "c", "", ("/dev/nvidia3",), HoldingSource.NODE),
    )


@pytest.mark.parametrize("response", [VISIBLE[:-1], b"\x0a\x04\x0a\x02\xff\xff", b"\x07"])
def test_an_invalid_allocate_response_is_an_error(response: bytes) -> None:
    """The devices in use are then unknown."""
    notes = {GPU_CHECKPOINTS: json.dumps([entry("a", "GPU-1", response=response)])}
    title = re.escape(f"annotation {GPU_CHECKPOINTS}: pod a, c: allocResp: ")
    with pytest.raises(AnnotationError, match=title):
        of_device_object(notes)


DRIVER = "gpu.nvidia.com"


def pod(name: str, *claims: ResourceClaim, devices: tuple[PluginDevice, ...] = ()) -> PodResources:
    return PodResources(
        "default", name, (ContainerResources("main", devices=devices, claims=claims),)
    )


def claim(name: str, device: str, share: str | None = None) -> ResourceClaim:
    return ResourceClaim("default", name, (ClaimedDevice(DRIVER, "node", device, share=share),))


UIDS = {("default", "a"): "uid-a", ("default", "b"): "uid-b"}


def test_devices_and_claims_of_present_pods() -> None:
    devices = (
        PluginDevice("nvidia.com/gpu", "GPU-a1"),
        PluginDevice("nvidia.com/gpu", "GPU-b1"),
        PluginDevice("intel.com/sriov", "0000:18:00.1"),
    )
    found = of_pod_resources(
        (pod("a", claim("c", "gpu-2"), devices=devices), pod("terminated", claim("d", "gpu-0"))),
        UIDS,
    )
    assert found == (
        ReportedDevices(
            "uid-a", "main", "nvidia.com/gpu", ("GPU-a1", "GPU-b1"), HoldingSource.CHECKPOINT
        ),
        ReportedDevices(
            "uid-a", "main", "intel.com/sriov", ("0000:18:00.1",), HoldingSource.CHECKPOINT
        ),
        ReportedDevices("uid-a", "main", DRIVER, ("gpu-2",), HoldingSource.CLAIM, "default/c"),
    )


def conflict_count(one: PodResources, other: PodResources) -> int:
    holdings = [
        held
        for each in of_pod_resources((one, other), UIDS)
        for held in meaning(each, KEYS).holdings
    ]
    assert len(holdings) == 2
    return len(conflicts(holdings, {}))


def test_two_pods_share_a_device_only_by_one_claim() -> None:
    assert conflict_count(pod("a", claim("c", "gpu-0")), pod("b", claim("c", "gpu-0"))) == 0
    assert conflict_count(pod("a", claim("c", "gpu-0")), pod("b", claim("d", "gpu-0"))) == 1


def test_claims_share_a_device_that_their_driver_divides() -> None:
    one, other = pod("a", claim("c", "gpu-0", "s1")), pod("b", claim("d", "gpu-0", "s2"))
    assert conflict_count(one, other) == 0
    (holding,) = meaning(of_pod_resources((one,), UIDS)[0], KEYS).holdings
    assert (holding.form, holding.part) == (Form.REPLICA, "s1")
    assert conflict_count(one, pod("b", claim("d", "gpu-0"))) == 1
