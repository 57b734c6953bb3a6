"""Detects and names other writers of the cpusets that Topolet sets.

If two plugins set one field, the runtime does not create the container (NRI: pkg/api/owners.go,
Conflict), and only its caller gets an error with the plugins' names. A message about such a
container therefore names all other processes that are connected to the plugins' socket: the kernel
reports the peers of unix sockets (sock_diag(7)).
"""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from agent.host.log_once import CountedWarnings

_BOTH: Final = re.compile(r'plugins "([^"]+)" and "([^"]+)" both tried to set (\w+)')
_PARENTS: Final = "of its parent"
_LOG_AGAIN_SECONDS: Final = 60.0
_READ_AGAIN_SECONDS: Final = 10.0
MAX_NAMES: Final = 64
"""The most writers, by kind of conflict and name, that are counted one by one."""
_NAME_CHARACTERS: Final = 200

log = logging.getLogger(__name__)


def other_plugin(text: str, own: str) -> str | None:
    """The other plugin in an error of the runtime about two plugins; `own`, this plugin's name, if
    both are sessions of this plugin. None for other errors."""
    found = _BOTH.search(text)
    if found is None:
        return None
    others = [name for name in found.groups()[:2] if name != own]
    return others[0] if others else own


class Conflicts:
    """Counts and logs conflicts with other writers. `own`: this plugin's name in the runtime
    (`10-topolet`). `others` returns the processes that may be other plugins now."""

    def __init__(self, own: str, others: Callable[[], Sequence[str]]) -> None:
        self.found: Counter[tuple[str, ...]] = Counter()
        """By kind (`error`, `undone`, `changed`) and the plugin's name, which is "" if it is
        unknown, and `other` for all names after the first MAX_NAMES."""
        self._own = own
        self._others = others
        self._warnings = CountedWarnings(log, _LOG_AGAIN_SECONDS)
        self._names = ""
        self._read_at = -_READ_AGAIN_SECONDS

    def error(self, title: str, text: str) -> None:
        """The runtime refused a change of a container, with the error `text`."""
        name = other_plugin(text, self._own)
        if name is not None:
            self._note("error", name, f"{title}: plugin {name} sets the same fields: {text}")

    def undone(self, title: str) -> None:
        """A container that this plugin adjusted was not created."""
        names = self._suspects()
        text = f"{title}: was not created after the plugin's answer"
        if names:
            text += f"; other plugins are connected, and one of them may set its CPUs too: {names}"
        self._note("undone", names, text)

    def changed(self, title: str, wanted: str, actual: str) -> None:
        """A container has the CPUs `actual` instead of `wanted`; "" means all CPUs of its
        parent."""
        names = self._suspects()
        by = f"; perhaps by {names}" if names else ""
        self._note(
            "changed",
            names,
            f"{title}: CPUs {wanted or _PARENTS} were changed to {actual or _PARENTS}{by}",
        )

    def _suspects(self) -> str:
        now = time.monotonic()
        if now - self._read_at >= _READ_AGAIN_SECONDS:
            self._read_at = now
            self._names = ", ".join(self._others())
        return self._names

    def _note(self, kind: str, name: str, text: str) -> None:
        key = kind, name[:_NAME_CHARACTERS]
        if key not in self.found and len(self.found) >= MAX_NAMES:
            key = kind, "other"
        self._warnings.add(self.found, key, text)


_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_SHOW_NAME: Final = 1
_SHOW_PEER: Final = 4
_NAME: Final = 0
_PEER: Final = 2
_PEER_BYTES: Final = 4
_DONE: Final = 3
_ERROR: Final = 2
_ESTABLISHED: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_MESSAGE: Final = struct.Struct("=BBBxIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_READ_BYTES: Final = 1 << 16


def connected_processes(path: str) -> tuple[str, ...]:
    """The other processes that are connected to the listening socket at `path`, as `name (PID)`,
    sorted; none if the kernel does not report them."""
    try:
        peers = {
            peer for name, peer in _sockets() if name.rstrip("\0") == path and peer is not None
        }
    except OSError:
        return ()
    if not peers:
        return ()
    links = {f"socket:[{inode}]" for inode in peers}
    return tuple(sorted(_holders(links)))


def _sockets() -> Iterator[tuple[str, int | None]]:
    """The name and the inode of the peer of every connected unix socket. Raises OSError."""
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 1 << _ESTABLISHED, 0,
                       _SHOW_NAME | _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)  # fmt: skip
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        size = _HEADER.size + len(body)
        netlink.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        while True:
            data = netlink.recv(_READ_BYTES)
            at = 0
            while at < len(data):
                size, kind, _, _, _ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel does not report unix sockets")
                start = at + _HEADER.size + _MESSAGE.size
                yield socket_attributes(data[start : at + size])
                at += (size + 3) & ~3


def socket_attributes(attributes: bytes) -> tuple[str, int | None]:
    """The name and the inode of the peer in the attributes of one socket."""
    name, peer = "", None
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        size, kind = _ATTRIBUTE.unpack_from(attributes, at)
        value = attributes[at + _ATTRIBUTE.size : at + size]
        if kind == _NAME:
            name = os.fsdecode(value)
        elif kind == _PEER and len(value) == _PEER_BYTES:
            (peer,) = struct.unpack("=I", value)
        at += max((size + 3) & ~3, _ATTRIBUTE.size)
    return name, peer


def _holders(links: set[str]) -> Iterator[str]:
    """The other processes with an open descriptor that is one of the links."""
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == own:
            continue
        folder = f"/proc/{entry}"
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
