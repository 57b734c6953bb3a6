from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

HEAPS = """
import ctypes, threading
from agent.host import malloc
{}
libc = ctypes.CDLL(None)
together = threading.Barrier(4)
def take():
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(first: str) -> int:
    words = [sys.executable, "-c", HEAPS.format(first)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
def test_threads_share_one_heap() -> None:
    assert heaps("") > 1
    assert heaps("malloc.one_arena()") == 1
