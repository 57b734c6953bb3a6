"""The C library's allocator."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""malloc.h of glibc."""


def one_arena() -> None:
    """All threads that begin later share one heap: each would take one of its own, which keeps
    what it once needed, and under the interpreter's lock they hardly ever meet. Nothing happens
    where the C library has no such switch."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
