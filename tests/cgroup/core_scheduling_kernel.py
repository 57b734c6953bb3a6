"""A library with the prctl(2) of a kernel that has core scheduling, which the binding of the agent
loads in place of libc."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Final

from tests.discover.fakenvml import compile_c

SOURCE: Final = Path(__file__).resolve().parent / "core_scheduling_kernel.c"
_LINES: Final = 4096


class _Line(ctypes.Structure):
    _fields_ = [("thread", ctypes.c_int), ("forbidden", ctypes.c_int), ("cookie", ctypes.c_ulong)]


class _Table(ctypes.Structure):
    _fields_ = [
        ("refusal", ctypes.c_int),
        ("commands", ctypes.c_int),
        ("last", ctypes.c_ulong),
        ("lines", _Line * _LINES),
    ]


class SchedCoreKernel:
    """The cookies of the threads of this machine, as the library has them."""

    def __init__(self, folder: Path) -> None:
        self.library = str(folder / "prctl.so")
        path = folder / "cookies"
        path.write_bytes(bytes(ctypes.sizeof(_Table)))
        messages = compile_c(
            "-shared", "-fPIC", f'-DTABLE="{path}"', "-o", self.library, str(SOURCE)
        )
        assert not messages, messages
        with path.open("r+b") as file:
            self._table = _Table.from_buffer(mmap.mmap(file.fileno(), 0))

    @property
    def commands(self) -> int:
        """The number of calls that changed a cookie."""
        return int(self._table.commands)

    def refuse(self, number: int) -> None:
        """Every call fails with this errno from now on; 0 for none."""
        self._table.refusal = number

    def forbid(self, thread: int) -> None:
        """The caller may not see the thread."""
        self._line(thread).forbidden = 1

    def cookie(self, thread: int) -> int:
        return int(self._line(thread).cookie)

    def set(self, thread: int, cookie: int) -> None:
        """As another program does."""
        self._line(thread).cookie = cookie

    def cookies(self) -> dict[int, int]:
        """By thread, without those that have none."""
        return {line.thread: line.cookie for line in self._table.lines if line.cookie}

    def _line(self, thread: int) -> _Line:
        for line in self._table.lines:
            if line.thread in (0, thread):
                line.thread = thread
                return line
        raise AssertionError("the table is full")
