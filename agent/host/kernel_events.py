"""The kernel's events: changes in directories by inotify(7), the process that writes a file by
fanotify(7), and devices that appear and disappear by netlink(7), NETLINK_KOBJECT_UEVENT. The
standard library has no binding of inotify and fanotify, so libc is called."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Container, Iterable
from typing import Final

import msgspec

_MODIFY: Final = 0x2
_ADD: Final = 0x1
_CLOSE_ON_EXEC: Final = 0x1
_HERE: Final = -100
_EVENT: Final = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata: its length, three fields of its layout, the mask, a descriptor of
the file, and the process."""
_FANOTIFY_BYTES: Final = 4096


def first_writer(paths: Iterable[str], seconds: float, ignored: Container[int]) -> int | None:
    """The first process, but those `ignored`, that writes one of the files within this time; None
    if none does. Missing files are left out. Raises PermissionError without CAP_SYS_ADMIN, and
    OSError where the kernel has no fanotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.fanotify_init(_CLOSE_ON_EXEC, os.O_RDONLY | os.O_CLOEXEC)
    if queue < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        for path in paths:
            libc.fanotify_mark(queue, _ADD, ctypes.c_uint64(_MODIFY), _HERE, os.fsencode(path))
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([queue], [], [], left)
            for pid in _writers(queue) if ready else ():
                if pid not in ignored:
                    return pid
        return None
    finally:
        os.close(queue)


def _writers(queue: int) -> list[int]:
    found, text = [], os.read(queue, _FANOTIFY_BYTES)
    while text:
        length, *_, file, pid = _EVENT.unpack_from(text)
        text = text[length:]
        if file >= 0:
            os.close(file)
        if pid:  # 0: of another PID namespace
            found.append(pid)
    return found


MODIFY: Final = 0x2
CLOSE_WRITE: Final = 0x8
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000
"""The kernel removed the watch: the directory is gone."""
IS_DIRECTORY: Final = 0x4000_0000

_ONLY_DIRECTORIES: Final = 0x0100_0000
_HEAD: Final = struct.Struct("=iIII")
_EVENTS_BYTES: Final = 1 << 16


class InotifyEvent(msgspec.Struct, frozen=True):
    watch: int
    """What `Inotify.watch` returned, -1 for OVERFLOW."""
    mask: int
    name: str
    """The name within the directory."""


class Inotify:
    """One queue of events of watched directories; its descriptor never blocks and can be polled.

    Raises OSError where the kernel refuses: no instance or no watch is left, or the directory is
    gone.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")

    def fileno(self) -> int:
        return self._fd

    def watch(self, directory: str, mask: int) -> int:
        """Returns the number of the watch. A directory that is watched already keeps its number and
        gets this mask."""
        path = os.fsencode(directory)
        number = self._libc.inotify_add_watch(self._fd, path, mask | _ONLY_DIRECTORIES)
        return self._checked(number, directory)

    def unwatch(self, number: int) -> None:
        """Ends a watch; does nothing where the kernel has ended it."""
        self._libc.inotify_rm_watch(self._fd, number)

    def read(self) -> list[InotifyEvent]:
        """The received events, oldest first."""
        events: list[InotifyEvent] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                events += _decode(os.read(self._fd, _EVENTS_BYTES))
        return events

    def close(self) -> None:
        os.close(self._fd)

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result


def _decode(raw: bytes) -> list[InotifyEvent]:
    events = []
    at = 0
    while at < len(raw):
        watch, mask, _, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        name = raw[at : at + size].rstrip(b"\0")
        events.append(InotifyEvent(watch, mask, os.fsdecode(name)))
        at += size
    return events


_PROTOCOL: Final = 15
"""NETLINK_KOBJECT_UEVENT."""
_KERNELS_GROUP: Final = 1
"""The multicast group of the kernel's own messages; udev's are in group 2."""
_READ_BYTES: Final = 1 << 14


class Uevents:
    """A netlink socket that receives uevents. Raises OSError if the kernel refuses it."""

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
        """Reads all received uevents. Returns whether one was of these subsystems, or the kernel
        dropped some."""
        found = False
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    found |= subsystem(self._socket.recv(_READ_BYTES)) in subsystems
                except BlockingIOError:
                    raise
                except OSError:  # ENOBUFS: the socket's buffer was full
                    return True
        return found

    def close(self) -> None:
        self._socket.close()


def subsystem(message: bytes) -> str:
    """The subsystem in a message `ACTION@DEVPATH\\0KEY=VALUE\\0...`; "" if it names none."""
    for field in message.split(b"\0")[1:]:
        key, _, value = field.partition(b"=")
        if key == b"SUBSYSTEM":
            return value.decode(errors="replace")
    return ""
