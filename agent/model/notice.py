"""The file in which a container reads its changing CPUs; its folder is mounted read-only."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError

MOUNTED_AT: Final = "/run/topolet"
"""The folder's path in containers."""
FOLDER: Final = "containers"
"""Below the state folder, with a folder for each pod, and in that one for each container."""
FILE_NAME: Final = "cpus"


class Notice(msgspec.Struct, frozen=True):
    """What a pod is told about its CPUs."""

    cpus: str
    """A list in the kernel's form."""
    generation: int
    """It grows by one with each change."""


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
    from urllib.parse import quote  # a quarter of a megabyte that only cpu-policy dynamic needs

    return quote(text, safe="").replace(".", "%2E")
