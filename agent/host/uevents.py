"""The kernel's events of devices that appear and disappear (netlink(7), NETLINK_KOBJECT_UEVENT)."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_PROTOCOL: Final = 15
_KERNELS_GROUP: Final = 1
_READ_BYTES: Final = 1 << 14


class Uevents:
    """Raises OSError where the kernel has no such socket for us."""

    def __init__(self) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, _PROTOCOL)
        try:
            self._socket.bind((0, _KERNELS_GROUP))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, subsystems: frozenset[str]) -> bool:
        """Whether something came of these subsystems, or was lost; takes all that came."""
        news = False
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    news |= subsystem(self._socket.recv(_READ_BYTES)) in subsystems
                except BlockingIOError:
                    raise
                except OSError:  # ENOBUFS: more came than the socket holds
                    return True
        return news

    def close(self) -> None:
        self._socket.close()


def subsystem(message: bytes) -> str:
    """Of a message `ACTION@DEVPATH\\0KEY=VALUE\\0...`; "" when it names none."""
    for field in message.split(b"\0")[1:]:
        key, _, value = field.partition(b"=")
        if key == b"SUBSYSTEM":
            return value.decode(errors="replace")
    return ""
