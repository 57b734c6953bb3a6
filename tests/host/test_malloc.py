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


BLOCKS = """
import ctypes
from agent.host import malloc
{}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def rss_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
def block():
    where = libc.malloc(8 << 20)
    ctypes.memset(where, 1, 8 << 20)
    return ctypes.c_void_p(where)
before = rss_mb()
libc.free(block())  # the first one that is freed teaches the C library what is usual
blocks = [block() for _ in range(2)]
libc.malloc(500_000)  # stays, above them
for each in blocks:
    libc.free(each)
print(rss_mb() - before)
"""


def kept_mb(first: str) -> float:
    words = [sys.executable, "-c", BLOCKS.format(first)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
def test_large_blocks_go_back_to_the_kernel() -> None:
    assert kept_mb("") > 4
    assert kept_mb("malloc.return_large_blocks()") < 1
