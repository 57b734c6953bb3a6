"""Device visibility: which devices a container sees, and where a request names GPUs.

The agent decides, and a hook writes the decision into the request that creates the container. The
names are those that runtimes read (NVIDIA Container Toolkit: internal/config/image/cuda_image.go,
VisibleDevices) and device plugins write (NVIDIA k8s-device-plugin: internal/plugin/server.go,
getAllocateResponse)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import normpath
from typing import Final, Literal, TypeAlias

import msgspec

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
CDI_ANNOTATIONS: Final = "cdi.k8s.io"
CDI_OF_RUNTIME: Final = f"{CDI_ANNOTATIONS}/"
"""The prefix of annotations that the CRI runtime reads."""
MOUNT_ROOT: Final = "/var/run/nvidia-container-devices"
VOID: Final = "void"
NOTHING_NAMED: Final = frozenset({"", "none", VOID})
"""Values of the variable that name no GPU; `none` still requests the driver's libraries."""

_CDI_MOUNT: Final = "cdi/"
_IMEX_MOUNT: Final = "imex/"
_CDI_PARTS: Final = 3
_PART: Final = r"[A-Za-z](?:[-_.0-9A-Za-z]*[0-9A-Za-z])?"
_QUALIFIED: Final = re.compile(
    rf"({_PART}/{_PART})=([0-9A-Za-z](?:[-_.:0-9A-Za-z]*[0-9A-Za-z])?)", re.ASCII
)


def is_uuid(text: str) -> bool:
    """Whether the text begins like the UUID of a card or a MIG instance."""
    return text.startswith(("GPU-", "MIG-"))


def is_cdi_annotation(key: str) -> bool:
    """Whether the CRI runtime, or NVIDIA's OCI runtime, reads CDI names from this annotation."""
    return f".{key.partition('/')[0]}".endswith(f".{CDI_ANNOTATIONS}") and "/" in key


def of_pod(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The values of a pod's annotations that may give its containers devices by CDI. NVIDIA's NRI
    plugin reads them (container toolkit: cmd/nvidia-ctk-installer/container/runtime/nri/plugin.go,
    parseCDIDevices), and CRI-O copies them to containers (internal/factory/container/container.go,
    SpecAddAnnotations), where NVIDIA's OCI runtime prefers them to the environment."""
    return tuple(
        value
        for key, value in sorted(annotations.items())
        if f".{key.partition('/')[0]}".endswith(f".{CDI_ANNOTATIONS}")
    )


def cleaned(path: str) -> str:
    """The path as runtimes normalise it: with one leading slash, where POSIX keeps two."""
    return normpath(f"/{path.lstrip('/')}") if path.startswith("/") else normpath(path)


def mounted(container_path: str) -> str | None:
    """The device that a mount names, with its CDI kind if the mount has one; None for other mounts.
    For NVIDIA's runtime the name is everything after MOUNT_ROOT, also without a slash between."""
    path = cleaned(container_path)
    below = path.removeprefix(MOUNT_ROOT).strip("/")
    if not path.startswith(MOUNT_ROOT) or not below or below.startswith(_IMEX_MOUNT):
        return None
    if not below.startswith(_CDI_MOUNT):
        return below
    name = below.removeprefix(_CDI_MOUNT)
    if kind_and_name(name)[0]:
        return name
    parts = name.split("/", _CDI_PARTS - 1)
    return f"{parts[0]}/{parts[1]}={parts[2]}" if len(parts) == _CDI_PARTS else None


def kind_and_name(text: str) -> tuple[str, str]:
    """CDI kind and device of a qualified name (CDI: pkg/parser/parser.go, ParseQualifiedName). Of
    any other text, "" and the whole text: NVIDIA's runtime takes it as the name of a GPU."""
    match = _QUALIFIED.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def split(value: str) -> list[str]:
    """The names in a list separated by commas, without blanks."""
    return [name for each in value.split(",") if (name := each.strip())]


UnrequestedGpus: TypeAlias = Literal["leave", "hide", "deny"]
"""For a container without an allocated GPU. `leave`: its request is not changed. `hide`: it sees no
GPU unless its request names some, it serves the node's devices or is privileged; `all` is refused
beside another pod's GPU, except in the namespaces of NodeVisibility.monitors. `deny`: it sees no
GPU unless its request names some other than by `all`."""
KUBELET_DIR: Final = "/var/lib/kubelet"


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or folder of the host. If the container already mounts something at that path, its own
    mount stays."""

    host_path: str
    container_path: str
    writable: bool = False


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A character device, at the same path on the host and in the container. Its numbers are the
    kernel's, -1 if unknown."""

    path: str
    major: int = -1
    minor: int = -1


class VisibleGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A card or a MIG instance."""

    uuid: str
    index: str = ""
    """NVML's number (`1`, for an instance `1:0`), "" if unknown."""
    nodes: tuple[DeviceNode, ...] = ()
    """Its own device nodes, without those of the driver."""

    @property
    def is_mig(self) -> bool:
        return self.uuid.startswith("MIG-")


class Visibility(msgspec.Struct, frozen=True, omit_defaults=True):
    """The devices that one container sees, and the variables and mounts that are added to its
    request."""

    gpus: tuple[VisibleGpu, ...] | None = None
    """None if they are not decided."""
    nodes: dict[str, tuple[DeviceNode, ...]] = {}
    """The nodes of other devices by type; an absent type is not decided."""
    environment: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    refused: str = ""
    """Why the container can't have its allocation."""


class NodeDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of the node with its names."""

    uuid: str
    index: str = ""
    card: str = ""
    """For a MIG instance the UUID of its card."""
    nodes: tuple[str, ...] = ()
    """The paths of its own device nodes (of an instance without those of its card), empty if many
    containers may open them."""
    holders: tuple[str, ...] = ()
    """The uids of the pods to which a scheduler allocated it."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a card or a MIG instance."""
        return is_uuid(self.uuid)


class NodeVisibility(msgspec.Struct, frozen=True, omit_defaults=True):
    """What hooks need to know about the node's devices."""

    held: tuple[NodeDevice, ...] = ()
    unrequested_gpus: UnrequestedGpus = "leave"
    cdi_kind: str = ""
    """A request that names no GPU yet gets CDI names of this kind (`nvidia.com/gpu`), or UUIDs in
    its environment if this is empty."""
    monitors: tuple[str, ...] = ()
    """Pods of these namespaces may name all GPUs."""
    kubelet_dir: str = KUBELET_DIR
    """The kubelet has this folder on the host."""

    @property
    def checks_all(self) -> bool:
        """Whether a container without a decision must be checked, because it may name devices of
        other pods or mount their files."""
        return self.unrequested_gpus != "leave" or any(
            each.holders and (each.is_gpu or each.nodes) for each in self.held
        )
