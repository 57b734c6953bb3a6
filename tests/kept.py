"""How much memory an action leaves allocated."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def kept_bytes(action: Callable[[], object]) -> int:
    """The allocated bytes of Python objects, without those of C libraries."""
    gc.collect()
    tracemalloc.start()
    try:
        action()
        # The first one does nothing while another thread collects.
        gc.collect()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
