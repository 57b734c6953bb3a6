from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from agent.allocate.device_holders.reported_devices import Carriers, answered
from agent.kubelet import device_checkpoint
from agent.kubelet.device_checkpoint import reported_devices_of
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.model.wire import patch

TEGRA = "Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"
"""The answer of a device plugin in a real checkpoint: NVIDIA_VISIBLE_DEVICES=tegra."""


def checkpoint(
    ids: Any, answer: str | None = None, **outer: Any
) -> device_checkpoint.DeviceCheckpoint:
    entry = {
        "PodUID": "pod",
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": ids,
        "AllocResp": answer,
    }
    return device_checkpoint.decode(
        json.dumps({"Data": {"PodDeviceEntries": [entry]}} | outer).encode()
    )


def test_an_answer_as_carriers() -> None:
    answer = b"".join(
        [
            patch((1,), patch((1,), "NVIDIA_VISIBLE_DEVICES") + patch((2,), "GPU-a,GPU-b")),
            patch((2,), patch((1,), "/in/the/container") + patch((2,), "/dev/null")),
            patch((3,), patch((1,), "/dev/in") + patch((2,), "/dev/nvidia0") + patch((3,), "rw")),
            patch((3,), patch((2,), "/dev/nvidiactl")),
            patch((4,), patch((1,), "cdi.k8s.io/x") + patch((2,), "nvidia.com/gpu=0")),
            patch((5,), patch((1,), "nvidia.com/gpu=GPU-a")),
        ]
    )
    assert answered(answer) == Carriers(
        environment=(("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b"),),
        cdi_devices=("nvidia.com/gpu=GPU-a",),
        annotations=(("cdi.k8s.io/x", "nvidia.com/gpu=0"),),
        mounts=("/in/the/container",),
        nodes=("/dev/nvidia0", "/dev/nvidiactl"),
    )


def test_a_real_answer() -> None:
    found = answered(base64.b64decode(TEGRA))
    assert found == Carriers(environment=(("NVIDIA_VISIBLE_DEVICES", "tegra"),))


@pytest.mark.parametrize("ids", [["GPU-b", "GPU-a"], {"1": ["GPU-b"], "0": ["GPU-a", "GPU-b"]}])
def test_ids_in_a_list_and_by_numa_node(ids: Any) -> None:
    found, problems = reported_devices_of(checkpoint(ids))
    assert problems == ()
    assert found == (
        ReportedDevices(
            "pod", "main", "nvidia.com/gpu", ("GPU-a", "GPU-b"), HoldingSource.CHECKPOINT
        ),
    )


def test_ids_and_answer() -> None:
    found, problems = reported_devices_of(checkpoint({"-1": ["tegra"]}, TEGRA))
    assert problems == ()
    assert found == (
        ReportedDevices("pod", "main", "nvidia.com/gpu", ("tegra",), HoldingSource.CHECKPOINT),
        ReportedDevices("pod", "main", "", ("tegra",), HoldingSource.ANSWER),
    )


def test_an_invalid_answer_is_reported_and_the_ids_count() -> None:
    found, problems = reported_devices_of(
        checkpoint(["GPU-a"], base64.b64encode(b"\x0a\x7f").decode())
    )
    assert [each.names for each in found] == [("GPU-a",)]
    (problem,) = problems
    assert problem.startswith("pod pod, main: AllocResp: ")


@pytest.mark.parametrize(
    ("recorded", "boot", "problems"),
    [
        ("", "now", ()),
        ("now", "now", ()),
        ("before", "", ()),
        ("before", "now", ("BootID before: written before the last reboot",)),
    ],
)
def test_checkpoint_of_another_boot_is_reported(
    recorded: str, boot: str, problems: tuple[str, ...]
) -> None:
    found, reported = reported_devices_of(checkpoint(["GPU-a"], BootID=recorded), boot)
    assert reported == problems
    assert len(found) == 1
