"""Replacing a file so that a reader, or a crash, sees the old bytes or the new, never a mixture."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def replace(path: Path, data: bytes, durable: bool = False, mode: int = 0o644) -> None:
    """Put `data` at `path` in one step; when `durable`, return only with name and bytes on disk.

    The mode does not depend on the umask. Raises OSError and leaves the old file as it was.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(scratch, flags, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    if durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
