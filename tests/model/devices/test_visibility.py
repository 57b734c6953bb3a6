from __future__ import annotations

import pytest

from agent.model.devices import visibility
from agent.model.devices.visibility import MOUNT_ROOT


@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        ("cdi.k8s.io/nvidia-device-plugin_x", True),
        ("nvidia.cdi.k8s.io/x", True),
        ("cdi.k8s.io", False),
        ("xcdi.k8s.io/x", False),
    ],
)
def test_annotations_that_cdi_reads(key: str, is_read: bool) -> None:
    assert visibility.is_cdi_annotation(key) is is_read


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{MOUNT_ROOT}/GPU-1", "GPU-1"),
        (f"/{MOUNT_ROOT}//./x/../GPU-1/", "GPU-1"),
        (f"{MOUNT_ROOT}/cdi/other.example/nic/0", "other.example/nic=0"),
        (f"{MOUNT_ROOT}/cdi/nic/0", None),
        (f"{MOUNT_ROOT}/imex/0", None),
        (MOUNT_ROOT, None),
        ("/data/GPU-1", None),
    ],
)
def test_mounts_that_name_devices(path: str, name: str | None) -> None:
    assert visibility.mounted(path) == name


def test_lists_of_names() -> None:
    assert visibility.split(" GPU-1,, 2,") == ["GPU-1", "2"]
