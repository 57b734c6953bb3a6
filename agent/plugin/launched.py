"""A plugin that the runtime starts itself: its socket, name and index come from there."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import msgspec

_NAMES = ("NRI_PLUGIN_SOCKET", "NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX")


class LaunchError(Exception):
    """What the runtime gave is no socket."""


class Launched(msgspec.Struct, frozen=True):
    """`socket` is connected."""

    socket: socket.socket
    name: str
    index: str


def launched(environment: MutableMapping[str, str]) -> Launched | None:
    """None for one that somebody else started; the variables are removed. Raises LaunchError."""
    number, name, index = (environment.pop(each, "") for each in _NAMES)
    if not number:
        return None
    try:
        it = socket.socket(fileno=int(number))
        os.set_inheritable(it.fileno(), False)
    except (OSError, ValueError) as error:
        raise LaunchError(f"NRI_PLUGIN_SOCKET={number} is no socket: {error}") from None
    return Launched(it, name, index)
