"""What a hook changes of a container's request, whatever door the request came through."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.doorbell import Asked

_LIMITS: Final = ("mems", "shares", "quota_microseconds", "memory_limit_bytes")


class Mount(msgspec.Struct, frozen=True):
    """A folder of the host, read-only. A container that mounts something at the same place keeps
    its own."""

    host_path: str
    container_path: str


class Changes(msgspec.Struct, frozen=True):
    """None and empty: the request keeps its own. The quota is for 100,000 microseconds; it and the
    memory limit may be -1, none. Mounts, environment and devices (by their CDI names) come on top
    of the request's own, and only at a creation; a variable that the request has gets the value.
    """

    cpuset: str | None = None
    mems: str | None = None
    shares: int | None = None
    quota_microseconds: int | None = None
    memory_limit_bytes: int | None = None
    mounts: tuple[Mount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()

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
