"""Devices of a container that is created with the NRI plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.verdict import Code
from agent.proto import nri_pb2 as pb
from tests.nri.harness import PluginHarness, container, pod
from tests.proxy.harness import WITH_DEVICES


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PluginHarness]:
    """Registered; the agent has decided about devices."""
    it = PluginHarness(tmp_path)
    it.runtime.set_up()
    it.publish(WITH_DEVICES)
    yield it
    it.close()


def creation_of(uid: str) -> pb.EventRequest:
    sandbox = pod(uid)
    sandbox.annotations[DEVICE_ALLOCATED] = "{}"
    return pb.EventRequest(pod=sandbox, container=container("c", uid))


def test_the_allocated_card_replaces_the_plugins(harness: PluginHarness) -> None:
    event = creation_of("own")
    event.container.env.append(b"NVIDIA_VISIBLE_DEVICES=GPU-other")
    event.container.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
    adjust = harness.runtime.call("CreateContainer", event, pb.CreateContainerResponse).adjust
    assert [(each.key, each.value) for each in adjust.env] == [
        ("NVIDIA_VISIBLE_DEVICES", "GPU-own")
    ]
    assert [each.path for each in adjust.linux.devices] == ["-/dev/nvidia0", "/dev/nvidia1"]
    assert [each.minor.value for each in adjust.linux.resources.devices] == [0]


def test_wrong_cdi_devices_are_refused_and_counted(harness: PluginHarness) -> None:
    event = creation_of("own")
    event.container.CDI_devices.add(name="nvidia.com/gpu=GPU-other")
    stream = harness.runtime.begin("CreateContainer", event)
    status = harness.runtime.response(stream).status
    assert status.code == Code.UNAVAILABLE
    assert "pod ns/own" in status.message
    assert "removed_cdi_devices" in status.message
    assert harness.admission.outcomes.failed == {("CreateContainer", "devices", "unsupported"): 1}


def test_correct_cdi_devices_are_kept(harness: PluginHarness) -> None:
    event = creation_of("own")
    event.container.CDI_devices.add(name="nvidia.com/gpu=GPU-own")
    event.container.env.append(b"NVIDIA_VISIBLE_DEVICES=void")
    event.container.linux.devices.add(path="/dev/nvidia1", type="c", major=195, minor=1)
    adjust = harness.runtime.call("CreateContainer", event, pb.CreateContainerResponse).adjust
    assert not adjust.env
    assert not adjust.linux.devices
    assert not adjust.CDI_devices
