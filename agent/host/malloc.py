"""The C library's allocator."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""malloc.h of glibc."""

LARGE_BYTES = 1 << 20


def one_arena() -> None:
    """All threads that begin later share one heap: each would take one of its own, which keeps
    what it once needed, and under the interpreter's lock they hardly ever meet. Nothing happens
    where the C library has no such switch."""
    _mallopt(_M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """Returns blocks of LARGE_BYTES and more to the kernel when they are freed. By default the C
    library raises this threshold to the size of the largest block freed so far (mallopt(3))."""
    _mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def _mallopt(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
