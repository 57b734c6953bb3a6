"""The file in which a container reads its changing CPUs; its folder is mounted read-only."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError

MOUNTED_AT: Final = "/run/topolet"
"""The folder's path in containers."""
_ABOVE: Final = frozenset({"/run", "/var/run"})
"""In most images one of them is a link to the other."""
FOLDER: Final = "containers"
"""Below the state folder, with a folder for each pod, and in that one for each container."""
FILE_NAME: Final = "cpus"


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file tells a container its CPUs, as lists in the kernel's form."""

    cpus: str
    generation: int
    """It grows by one with each change."""
    own: str | None = None
    """In a mixed container: the CPUs on which nobody else runs."""
    shared: str | None = None
    """In a mixed container: its share of the pool."""
    leaving: str = ""
    """The CPUs that it is about to lose."""


_decoder = msgspec.json.Decoder(Notice)


def of_pod(uid: str) -> str:
    """The pod's folder, below the state folder."""
    return f"{FOLDER}/{_as_name(uid)}"


def folder(uid: str, container_name: str) -> str:
    """The container's folder, below the state folder."""
    return f"{of_pod(uid)}/{_as_name(container_name)}"


def named(folder_name: str) -> str:
    """The pod or container to which such a folder belongs."""
    from urllib.parse import unquote

    return unquote(folder_name)


def taken_paths(mounts: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """The paths in a container where nothing more can be mounted: those of its mounts, and
    MOUNTED_AT if a read-only mount is above it, in which a runtime can't make the folder.

    `mounts`: path and whether it is read-only."""
    taken = set()
    for path, read_only in mounts:
        taken.add(path)
        if read_only and posixpath.normpath(path) in _ABOVE:
            taken.add(MOUNTED_AT)
    return frozenset(taken)


def encode(notice: Notice) -> bytes:
    """JSON, one line."""
    return msgspec.json.encode(notice) + b"\n"


def decode(text: bytes) -> Notice | None:
    """The notice in a text, None if it is invalid."""
    try:
        return bounds.decode(_decoder, text)
    except JsonError:
        return None


def _as_name(text: str) -> str:
    """The text without dots and slashes, which a caller of the runtime may have used."""
    from urllib.parse import quote  # a quarter of a megabyte that not every node needs

    return quote(text, safe="").replace(".", "%2E")
