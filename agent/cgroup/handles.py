"""Files of the kernel that stay open, so that reading one again is one system call.

Looking a path up and opening it costs ten times what reading a cpuset does, and a node has hundreds
of them. A kept file can't lie: the kernel answers ENODEV for one whose group was removed, and then
its path is opened again, which finds a new group of that name or none.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from typing import Final

_READ_BYTES: Final = 65_536  # a CPU list of 8,192 lone ids is shorter
_FEW: Final = 64
_MAY_NOT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Handles:
    """Reads and writes by path; those used last stay open, half as many as the process may have.

    Files of groups that were removed are closed each time that as many more are open as were before
    it, so that pods that come and go leave none behind.

    Only files of the kernel are kept: those that have content and no size. Others may be replaced
    by a file of the same name, and are opened each time. Not for several threads.
    """

    def __init__(self, limit: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = soft // 2 if limit is None else limit
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._read_only: set[str] = set()
        self._close_removed_at = _FEW

    def read(self, path: str) -> bytes:
        """The content. Raises OSError."""
        kept = self._kept.get(path)
        if kept is not None:
            try:
                data = os.pread(kept, _READ_BYTES, 0)
            except OSError as error:
                self._drop(path)
                if error.errno != errno.ENODEV:
                    raise
            else:
                self._kept.move_to_end(path)
                return data
        return self._read_first(path)

    def write(self, path: str, data: bytes) -> None:
        """One write(2). Raises OSError."""
        kept = None if path in self._read_only else self._kept.get(path)
        if kept is not None:
            try:
                os.pwrite(kept, data, 0)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                self._drop(path)
            else:
                return
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)

    def close(self) -> None:
        """Closes what is open; the next use opens again."""
        for path in list(self._kept):
            self._drop(path)

    def _read_first(self, path: str) -> bytes:
        writable = True
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _MAY_NOT:
                raise
            writable = False
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        keep = False
        try:
            data = os.pread(handle, _READ_BYTES, 0)
            keep = bool(data) and os.fstat(handle).st_size == 0 and self._limit > 0
        finally:
            if not keep:
                os.close(handle)
        if keep:
            if len(self._kept) >= self._close_removed_at:
                self._close_removed()
            if len(self._kept) >= self._limit:
                self._drop(next(iter(self._kept)))
            self._kept[path] = handle
            if not writable:
                self._read_only.add(path)
        return data

    def _close_removed(self) -> None:
        for path, handle in list(self._kept.items()):
            try:
                os.pread(handle, 1, 0)
            except OSError:
                self._drop(path)
        self._close_removed_at = max(_FEW, 2 * len(self._kept))

    def _drop(self, path: str) -> None:
        os.close(self._kept.pop(path))
        self._read_only.discard(path)
