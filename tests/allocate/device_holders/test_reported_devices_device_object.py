"""Devices in the annotations of a Device object, written by Topolet or by another agent."""

from __future__ import annotations

import base64
import json
import re

import pytest

from agent.allocate.device_holders.reported_devices import of_device_object
from agent.model.devices.holding import (
    DEVICES_CHECKPOINTS,
    GPU_CHECKPOINTS,
    HoldingSource,
    ReportedDevices,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.wire import patch

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
