"""The checksum of the kubelet's state files: FNV-1a over what Go's spew prints of the object
(`%#v`, sorted keys; kubelet: pkg/kubelet/checkpointmanager/checksum/checksum.go, getChecksum).

Rendered are texts without their type: a struct's field is preceded by its Go type, what a map or a
list holds is not.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

Key = TypeVar("Key", int, str)

NIL: Final = "<nil>"
"""The form of a Go map, slice or pointer without a value, which differs from that of an empty
one."""

_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193


class Checked(enum.Enum):
    """UNKNOWN: the file has no checksum, or is of a version whose checksum is not known here."""

    VERIFIED = "verified"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"


def fnv1a(data: bytes) -> int:
    """The 32-bit hash."""
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value


def of(kind: str, rendered: str) -> int:
    """The checksum of an object of a Go type, such as `*state.CPUManagerCheckpoint`."""
    return fnv1a(f"({kind}){rendered}".encode())


def struct(*fields: tuple[str, str, str]) -> str:
    """Fields as name, Go type and rendered value."""
    return "{" + " ".join(f"{name}:({kind}){value}" for name, kind, value in fields) + "}"


def mapping(entries: Mapping[Key, Any] | None, render: Callable[[Any], str] = str) -> str:
    """Keys ascending: numbers by value, texts by their bytes."""
    if entries is None:
        return NIL
    return "map[" + " ".join(f"{key}:{render(entries[key])}" for key in sorted(entries)) + "]"


def sequence(items: Iterable[Any] | None, render: Callable[[Any], str] = str) -> str:
    """A slice in its own order; bytes are numbers."""
    if items is None:
        return NIL
    return "[" + " ".join(render(item) for item in items) + "]"


def pointer(rendered: str) -> str:
    """What a pointer inside a map or list points to."""
    return f"<*>{rendered}"
