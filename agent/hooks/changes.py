"""What a hook changes of a container's request, whatever door the request came through."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.doorbell import Asked
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
"""Of Changes, those by which devices come and go."""

_LIMITS: Final = ("mems", "shares", "quota_microseconds", "memory_limit_bytes")


class CarriedNode(msgspec.Struct, frozen=True):
    """A device node that a request asks for; `major` and `minor` are -1 where it does not say."""

    host_path: str
    container_path: str
    permissions: str = "rw"
    major: int = -1
    minor: int = -1


class Changes(msgspec.Struct, frozen=True):
    """None and empty: the request keeps its own. The quota is for 100,000 microseconds; it and the
    memory limit may be -1, none. All from `mounts` on is for a creation alone, and comes on top of
    the request's own, less what is `removed` (mounts and nodes by their path in the container); a
    variable or annotation that the request has gets the value, an annotation without one goes.
    """

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
        """The fields of Limits in which the request goes on as it came."""
        return tuple(name for name in _LIMITS if getattr(self, name) is None)

    def over(self, asked: Asked) -> Asked:
        """What the runtime is asked for in the end."""
        names = Asked.__struct_fields__
        changed = {name: value for name in names if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(asked, **changed)


UNCHANGED: Final = Changes()


class Says(msgspec.Struct, frozen=True):
    """What a door can change of a container's devices: some of FIELDS. `numbers`: device nodes come
    by the kernel's numbers."""

    fields: frozenset[str] = frozenset(FIELDS)
    numbers: bool = False


def beyond(wanted: Changes, says: Says) -> tuple[str, ...]:
    """What of a container's devices changes and the door can't say."""
    lacking = tuple(name for name in FIELDS if name not in says.fields and getattr(wanted, name))
    if says.numbers and any(node.major < 0 for node in wanted.nodes):
        return (*lacking, "nodes without a number")
    return lacking


def joined(limits: Changes, shown: Changes) -> Changes:
    """One answer of what was found for CPUs and limits and for devices."""
    of_devices = {name: getattr(shown, name) for name in FIELDS}
    of_devices["mounts"] = (*limits.mounts, *shown.mounts)
    return msgspec.structs.replace(limits, **of_devices)
