"""Device visibility: which devices a container sees, and where its request names GPUs.

The agent decides, a hook writes the decision into the container's creation. The names are those
that runtimes read (NVIDIA Container Toolkit: internal/config/image/cuda_image.go, VisibleDevices)
and device plugins write (NVIDIA k8s-device-plugin: internal/plugin/server.go,
getAllocateResponse)."""

from __future__ import annotations

from posixpath import normpath
from typing import Final, Literal, TypeAlias

import msgspec

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


Unasked: TypeAlias = Literal["leave", "hide", "deny"]
"""The treatment of a container without an allocated device: unchanged; sees no GPU unless its
request names some, or it serves the node's devices; without such exceptions, and `all` does not
count as a name."""


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or folder of the host. A container that mounts something at the same place keeps its
    own."""

    host_path: str
    container_path: str
    writable: bool = False


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A character device, at the same path on the host and in the container. `major`, `minor`: the
    kernel's numbers, -1 when unknown."""

    path: str
    major: int = -1
    minor: int = -1


class VisibleGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A card or a MIG instance. `index`: NVML's number of it (`1`, of an instance `1:0`), "" where
    it is not known. `nodes`: what is its own, and not the driver's."""

    uuid: str
    index: str = ""
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def is_mig(self) -> bool:
        """Whether it is a part of a card."""
        return self.uuid.startswith("MIG-")


class Visible(msgspec.Struct, frozen=True, omit_defaults=True):
    """The devices that one container sees. `gpus` None: undecided. `nodes`: of other devices, by
    type; an absent type has no decision. Mounts and environment are added. `refused`: why it can't
    have its allocation."""

    gpus: tuple[VisibleGpu, ...] | None = None
    nodes: dict[str, tuple[DeviceNode, ...]] = {}
    environment: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    refused: str = ""


class HeldDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of the node by all its names, and the pods (uids) that a scheduler gave it to.
    `card`: the uuid of the card that a MIG instance is a part of; `nodes`: the paths of what is its
    own, of an instance without its card's; none where they are open to many at once."""

    uuid: str
    index: str = ""
    card: str = ""
    nodes: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a card or a MIG instance."""
        return is_uuid(self.uuid)


class VisibleDevices(msgspec.Struct, frozen=True, omit_defaults=True):
    """What hooks need of the node's devices besides each container's. `cdi_kind`
    (`nvidia.com/gpu`): names a GPU to a request without another form; empty: by UUID in the
    environment."""

    held: tuple[HeldDevice, ...] = ()
    unasked: Unasked = "leave"
    cdi_kind: str = ""

    @property
    def concerns_all(self) -> bool:
        """Whether a container without a decision must be checked: it may name devices of others, or
        bring files of them."""
        return self.unasked != "leave" or any(
            each.holders and (each.is_gpu or each.nodes) for each in self.held
        )
