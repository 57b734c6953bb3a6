"""Where a container names the GPUs that it gets, before it is made and after, as runtimes read it
(NVIDIA Container Toolkit: internal/config/image/cuda_image.go, VisibleDevices) and device plugins
write it (NVIDIA k8s-device-plugin: internal/plugin/server.go, getAllocateResponse)."""

from __future__ import annotations

from posixpath import normpath
from typing import Final

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
CDI_ANNOTATIONS: Final = "cdi.k8s.io"
CDI_OF_RUNTIME: Final = f"{CDI_ANNOTATIONS}/"
"""Begins the annotations that the runtime reads itself."""
MOUNT_ROOT: Final = "/var/run/nvidia-container-devices"
VOID: Final = "void"
NOTHING_NAMED: Final = frozenset({"", "none", VOID})
"""Values of the variable that name no GPU; `none` still asks for the driver's libraries."""

_CDI: Final = "cdi"
_CDI_PARTS: Final = 4


def is_uuid(text: str) -> bool:
    """Whether it begins as UUIDs of cards and MIG instances do."""
    return text.startswith(("GPU-", "MIG-"))


def is_cdi_annotation(key: str) -> bool:
    """Whether the runtime, or the low-level one of NVIDIA, reads CDI names there."""
    return f".{key.partition('/')[0]}".endswith(f".{CDI_ANNOTATIONS}") and "/" in key


def cleaned(path: str) -> str:
    """As runtimes read it: POSIX keeps two leading slashes."""
    return normpath(f"/{path.lstrip('/')}") if path.startswith("/") else normpath(path)


def mounted(container_path: str) -> str | None:
    """The device that a mount names, after its kind if the mount has one; None for another kind of
    mount."""
    path = cleaned(container_path)
    below = path.removeprefix(f"{MOUNT_ROOT}/")
    if below == path:
        return None
    parts = below.split("/")
    if len(parts) == 1:
        return parts[0]
    if len(parts) == _CDI_PARTS and parts[0] == _CDI:
        return f"{parts[1]}/{parts[2]}={parts[3]}"
    return None


def split(value: str) -> list[str]:
    """A list of names without blanks."""
    return [name for each in value.split(",") if (name := each.strip())]
