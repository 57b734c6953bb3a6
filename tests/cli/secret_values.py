"""Secret values, and a device plugin's checkpoint with one of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

SECRET = "s3cr3t"
"""A substring of each secret value."""
ANSWER = base64.b64encode(b"\x0a\x0f\x0a\x05TOKEN\x12\x06" + SECRET.encode()).decode()
"""A ContainerAllocateResponse with one variable."""
ENVIRONMENT = (f"DB_PASSWORD={SECRET}-of-the-database", f"NOTE={SECRET}")


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
