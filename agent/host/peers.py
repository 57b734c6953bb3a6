"""The processes that are connected to a unix socket (sock_diag(7))."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_SHOW_NAME: Final = 1
_SHOW_PEER: Final = 4
_NAME: Final = 0
_PEER: Final = 2
_DONE: Final = 3
_ERROR: Final = 2
_ESTABLISHED: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_MESSAGE: Final = struct.Struct("=BBBxIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_READ_BYTES: Final = 1 << 16


def of(path: str, proc: str = "/proc") -> tuple[str, ...]:
    """Other processes at the far end of connections to the listening socket at `path`, as `name
    (PID)`, sorted; none when the kernel does not report them."""
    try:
        far_ends = {
            peer for name, peer in _sockets() if name.rstrip("\0") == path and peer is not None
        }
    except OSError:
        return ()
    if not far_ends:
        return ()
    links = {f"socket:[{inode}]" for inode in far_ends}
    return tuple(sorted(_holders(proc, links)))


def _sockets() -> Iterator[tuple[str, int | None]]:
    """Name and the peer's inode of every connected unix socket. Raises OSError."""
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 1 << _ESTABLISHED, 0,
                       _SHOW_NAME | _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)  # fmt: skip
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as it:
        size = _HEADER.size + len(body)
        it.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        while True:
            data = it.recv(_READ_BYTES)
            at = 0
            while at < len(data):
                size, kind, _, _, _ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel does not tell of unix sockets")
                start = at + _HEADER.size + _MESSAGE.size
                yield _read(data[start : at + size])
                at += (size + 3) & ~3


def _read(attributes: bytes) -> tuple[str, int | None]:
    name, peer = "", None
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        size, kind = _ATTRIBUTE.unpack_from(attributes, at)
        value = attributes[at + _ATTRIBUTE.size : at + size]
        if kind == _NAME:
            name = os.fsdecode(value)
        elif kind == _PEER:
            (peer,) = struct.unpack("=I", value)
        at += max((size + 3) & ~3, _ATTRIBUTE.size)
    return name, peer


def _holders(proc: str, links: set[str]) -> Iterator[str]:
    own = os.getpid()
    for entry in os.listdir(proc):
        if not entry.isdigit() or int(entry) == own:
            continue
        folder = f"{proc}/{entry}"
        try:
            held = any(
                _target(f"{folder}/fd/{each}") in links for each in os.listdir(f"{folder}/fd")
            )
            if held:
                with open(f"{folder}/comm") as file:
                    yield f"{file.read().strip()} ({entry})"
        except OSError:
            continue


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
