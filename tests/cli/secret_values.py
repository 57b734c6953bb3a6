"""Secret values, and a device plugin's checkpoint with one of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec

from tests.faults.node import SimulatedNode

SECRET = "s3cr3t"
"""A substring of each secret value."""
ANSWER = base64.b64encode(b"\x0a\x0f\x0a\x05TOKEN\x12\x06" + SECRET.encode()).decode()
"""A ContainerAllocateResponse with one variable."""
ENVIRONMENT = (f"DB_PASSWORD={SECRET}-of-the-database", f"NOTE={SECRET}")


def add_container(node: SimulatedNode, qos: str, claim: str) -> None:
    """A pod with a started container, whose annotations and labels have secrets."""
    pod = node.add_pod(qos, claim)
    node.create_container(pod, start=True)
    sandbox = node.runtime.sandboxes[pod.sandbox_id]
    secrets = {"example.com/token": SECRET, "note": f"Bearer {SECRET}"}
    node.runtime.sandboxes[pod.sandbox_id] = msgspec.structs.replace(
        sandbox,
        annotations={**sandbox.annotations, **secrets},
        labels={**sandbox.labels, "example.com/token": SECRET},
    )


def write_checkpoint(kubelet: Path) -> None:
    entry = {
        "PodUID": "u",
        "ContainerName": "main",
        "ResourceName": "example.com/card",
        "DeviceIDs": {"-1": ["card-0"]},
        "AllocResp": ANSWER,
    }
    folder = kubelet / "device-plugins"
    folder.mkdir()
    data = {"PodDeviceEntries": [entry], "RegisteredDevices": {"example.com/card": ["card-0"]}}
    text = json.dumps({"Data": data, "Checksum": 0})
    (folder / "kubelet_internal_checkpoint").write_text(text)
