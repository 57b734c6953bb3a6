"""Devices of a container in NRI's messages."""

from __future__ import annotations

from typing import Any

import pytest

from agent.hooks.carriers import Carried
from agent.hooks.requests import CarriedNode, Changes, not_settable
from agent.model.devices.visibility import MOUNT_ROOT, Mount
from agent.nri import messages
from agent.proto import nri_pb2 as pb

ENV = b"NVIDIA_VISIBLE_DEVICES"


def test_every_carrier_of_a_container_is_read() -> None:
    container = pb.Container(env=[b"A=\xff", b"NVIDIA_VISIBLE_DEVICES=GPU-1", b"LD_PRELOAD=/x.so"])
    container.mounts.add(destination=f"{MOUNT_ROOT}/GPU-2", source="/dev/null")
    container.mounts.add(destination="/data", source="/srv")
    container.mounts.add(destination="/p", source="/var/lib/kubelet/device-plugins")
    container.annotations["cdi.k8s.io/a"] = "nvidia.com/gpu=GPU-3,nvidia.com/gpu=GPU-4"
    container.annotations["nvidia.cdi.k8s.io/b"] = "nvidia.com/gpu=GPU-5"
    container.annotations["other"] = "nvidia.com/gpu=9"
    container.CDI_devices.add(name="nvidia.com/gpu=GPU-3")
    container.linux.devices.add(path="/dev/nvidia1", type="c", major=195, minor=1)
    container.linux.devices.add(path="/dev/sda", type="b", major=8, minor=0)
    assert messages.carried(container, pb.PodSandbox()) == Carried(
        environment=("GPU-1",),
        preload="/x.so",
        mounts=(f"{MOUNT_ROOT}/GPU-2",),
        annotations=(("nvidia.cdi.k8s.io/b", "nvidia.com/gpu=GPU-5"),),
        cdi_devices=("nvidia.com/gpu=GPU-3", "nvidia.com/gpu=GPU-4"),
        nodes=(CarriedNode("/dev/nvidia1", "/dev/nvidia1", "rwm", 195, 1),),
        serving=("/var/lib/kubelet/device-plugins",),
    )


@pytest.mark.parametrize(
    ("rules", "privileged"),
    [
        ([], False),
        ([{"allow": False, "access": "rwm"}], False),
        ([{"allow": True, "access": "rwm"}], True),
        ([{"allow": False, "access": "rwm"}, {"allow": True, "type": "a", "access": "rwm"}], True),
        ([{"allow": True, "type": "a", "access": "rwm", "major": -1, "minor": -1}], True),
        ([{"allow": True, "type": "c", "access": "rwm"}], False),
        ([{"allow": True, "access": "rwm", "major": 195}], False),
        ([{"allow": True, "access": "m"}], False),
    ],
)
def test_device_nodes_of_a_privileged_container_are_not_requested_devices(
    rules: list[dict[str, Any]], privileged: bool
) -> None:
    """containerd and CRI-O add all devices; otherwise kube-proxy would request all cards."""
    container = pb.Container()
    container.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
    for rule in rules:
        added = container.linux.resources.devices.add(
            **{key: rule[key] for key in rule if key not in ("major", "minor")}
        )
        for key in rule.keys() & {"major", "minor"}:
            getattr(added, key).value = rule[key]
    found = messages.carried(container, pb.PodSandbox())
    assert (found.privileged, bool(found.nodes)) == (privileged, not privileged)


def test_all_in_the_environment_comes_from_the_image() -> None:
    assert messages.carried(pb.Container(env=[ENV + b"=all"]), pb.PodSandbox()) == Carried()
    assert messages.carried(pb.Container(), pb.PodSandbox()) == Carried()


def test_removed_devices_are_marked_and_denied_by_number() -> None:
    changes = Changes(
        mounts=(Mount("/dev/null", "/new"), Mount("/w", "/w", writable=True)),
        environment=(("A", "1"),),
        annotations=(("nvidia.cdi.k8s.io/b", "x"), ("nvidia.cdi.k8s.io/c", None)),
        removed_mounts=("/old",),
        removed_nodes=(
            CarriedNode("/dev/nvidia0", "/dev/nvidia0", major=195, minor=0),
            CarriedNode("/dev/other-name", "/dev/other-name", major=195, minor=1),
        ),
        nodes=(CarriedNode("/dev/nvidia1", "/dev/nvidia1", major=195, minor=1),),
    )
    adjustment = messages.adjustment(changes, ())
    assert adjustment is not None
    assert [(each.destination, list(each.options)) for each in adjustment.mounts] == [
        ("/new", ["rbind", "ro"]),
        ("/w", ["rbind", "rw"]),
        ("-/old", []),
    ]
    assert dict(adjustment.annotations) == {
        "nvidia.cdi.k8s.io/b": "x",
        "-nvidia.cdi.k8s.io/c": "",
    }
    assert [(each.path, each.type, each.minor) for each in adjustment.linux.devices] == [
        ("-/dev/nvidia0", "", 0),
        ("-/dev/other-name", "", 0),
        ("/dev/nvidia1", "c", 1),
    ]
    (rule,) = adjustment.linux.resources.devices
    assert (rule.allow, rule.type, rule.major.value, rule.minor.value, rule.access) == (
        False,
        "c",
        195,
        0,
        "rwm",
    )


def test_injected_cdi_devices_cannot_be_removed() -> None:
    changed = Changes(removed_cdi_devices=("nvidia.com/gpu=0",))
    assert not_settable(changed, messages.SETTABLE) == ("removed_cdi_devices",)
    assert not_settable(Changes(cdi_devices=("nvidia.com/gpu=0",)), messages.SETTABLE) == ()


def test_huge_pages_of_a_container() -> None:
    container = pb.Container()
    container.linux.resources.hugepage_limits.add(page_size="2MB", limit=4 << 20)
    container.linux.resources.hugepage_limits.add(page_size="1GB", limit=0)
    assert messages.reported(container, None).requested.hugepages == {2 << 20: 4 << 20}
