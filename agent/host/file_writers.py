"""Which process writes a file, by fanotify(7). The standard library has no binding of it, so libc
is called."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections.abc import Container, Iterable
from typing import Final

_MODIFY: Final = 0x2
_ADD: Final = 0x1
_CLOSE_ON_EXEC: Final = 0x1
_HERE: Final = -100
_EVENT: Final = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata: its length, three fields of its layout, the mask, a descriptor of
the file, and the process."""
_EVENTS_BYTES: Final = 4096


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
    found, text = [], os.read(queue, _EVENTS_BYTES)
    while text:
        length, *_, file, pid = _EVENT.unpack_from(text)
        text = text[length:]
        if file >= 0:
            os.close(file)
        if pid:  # 0: of another PID namespace
            found.append(pid)
    return found
