from __future__ import annotations

import pytest

from agent.allocate.device_holders.reported_devices import Carriers, of_carriers
from agent.model.devices.holding import HoldingSource

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
