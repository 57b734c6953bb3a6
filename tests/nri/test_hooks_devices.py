"""Devices of a container that is created with the NRI plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.verdict import Code
from agent.proto import nri_pb2 as pb
from tests.nri.world import World, container, pod
from tests.proxy.exchanges import SHOWN


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Registered, with an agent that has decided."""
    it = World(tmp_path)
    it.runtime.set_up()
    it.publish(SHOWN)
    yield it
    it.close()


def event_of(uid: str) -> pb.EventRequest:
    sandbox = pod(uid)
    sandbox.annotations[DEVICE_ALLOCATED] = "{}"
    return pb.EventRequest(pod=sandbox, container=container("c", uid))


def test_the_allocated_card_replaces_the_plugins(world: World) -> None:
    event = event_of("own")
    event.container.env.append(b"NVIDIA_VISIBLE_DEVICES=GPU-other")
    event.container.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
    adjust = world.runtime.call("CreateContainer", event, pb.CreateContainerResponse).adjust
    assert [(each.key, each.value) for each in adjust.env] == [
        ("NVIDIA_VISIBLE_DEVICES", "GPU-own")
    ]
    assert [each.path for each in adjust.linux.devices] == ["-/dev/nvidia0", "/dev/nvidia1"]
    assert [each.minor.value for each in adjust.linux.resources.devices] == [0]


def test_wrong_cdi_devices_are_refused_and_counted(world: World) -> None:
    event = event_of("own")
    event.container.CDI_devices.add(name="nvidia.com/gpu=GPU-other")
    stream = world.runtime.begin("CreateContainer", event)
    status = world.runtime.response(stream).status
    assert status.code == Code.UNAVAILABLE
    assert "pod ns/own" in status.message
    assert "removed_cdi_devices" in status.message
    assert world.admission.outcomes.failed == {("CreateContainer", "devices", "unsupported"): 1}


def test_correct_cdi_devices_are_kept(world: World) -> None:
    event = event_of("own")
    event.container.CDI_devices.add(name="nvidia.com/gpu=GPU-own")
    event.container.env.append(b"NVIDIA_VISIBLE_DEVICES=void")
    event.container.linux.devices.add(path="/dev/nvidia1", type="c", major=195, minor=1)
    adjust = world.runtime.call("CreateContainer", event, pb.CreateContainerResponse).adjust
    assert not adjust.env
    assert not adjust.linux.devices
    assert not adjust.CDI_devices
