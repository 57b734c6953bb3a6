"""The changes that a hook makes to a container's request, for every frontend."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.notifications import RequestedResources
from agent.model.verdict import Refuse, Wait
from agent.model.visible import Mount

FIELDS: Final = (
    "mounts",
    "environment",
    "cdi_devices",
    "nodes",
    "annotations",
    "removed_mounts",
    "removed_cdi_devices",
    "removed_nodes",
)
"""The fields of Changes about devices."""

_LIMITS: Final = ("mems", "shares", "quota_microseconds", "memory_limit_bytes")


class CarriedNode(msgspec.Struct, frozen=True):
    """A device node that a request asks for; `major` and `minor` are -1 when it does not name
    them."""

    host_path: str
    container_path: str
    permissions: str = "rw"
    major: int = -1
    minor: int = -1


class Changes(msgspec.Struct, frozen=True):
    """None and empty: the request keeps its value. The quota is for 100,000 microseconds; quota and
    memory limit may be -1, none. The fields from `mounts` on are for a creation alone. They are
    added to the request's own entries, except those that are `removed` (mounts and nodes by their
    path in the container); a variable or annotation of the request gets the value, an annotation
    without a value is removed."""

    cpuset: str | None = None
    mems: str | None = None
    shares: int | None = None
    quota_microseconds: int | None = None
    memory_limit_bytes: int | None = None
    mounts: tuple[Mount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    nodes: tuple[CarriedNode, ...] = ()
    annotations: tuple[tuple[str, str | None], ...] = ()
    removed_mounts: tuple[str, ...] = ()
    removed_cdi_devices: tuple[str, ...] = ()
    removed_nodes: tuple[CarriedNode, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The fields of Limits that the request keeps."""
        return tuple(name for name in _LIMITS if getattr(self, name) is None)

    def over(self, asked: RequestedResources) -> RequestedResources:
        """The values that the runtime gets in the end."""
        names = RequestedResources.__struct_fields__
        changed = {name: value for name in names if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(asked, **changed)


UNCHANGED: Final = Changes()

Verdict = Changes | Wait | Refuse
"""The answer to a request to create or update a container, for every frontend."""


class DeviceFields(msgspec.Struct, frozen=True):
    """The fields of a container's devices that a frontend can change. `numbers`: it adds device
    nodes by the kernel's numbers."""

    fields: frozenset[str] = frozenset(FIELDS)
    numbers: bool = False


def beyond(wanted: Changes, says: DeviceFields) -> tuple[str, ...]:
    """The changed fields that the frontend can't change."""
    lacking = tuple(name for name in FIELDS if name not in says.fields and getattr(wanted, name))
    if says.numbers and any(node.major < 0 for node in wanted.nodes):
        return (*lacking, "nodes without a number")
    return lacking


def joined(limits: Changes, shown: Changes) -> Changes:
    """One answer from those for CPUs and limits and for devices."""
    of_devices = {name: getattr(shown, name) for name in FIELDS}
    of_devices["mounts"] = (*limits.mounts, *shown.mounts)
    return msgspec.structs.replace(limits, **of_devices)
