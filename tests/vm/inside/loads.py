"""Loads of tests in the guest: a disk to read, and processes that use memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.vm import guest
from tests.waiting import eventually

MIB = 1 << 20
DISK = Path("/dev/vda")
DISK_MB = 256
GROW = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(b"x") * (int(line) << 20))
    print("grown", flush=True)
"""
"""Uses so many megabytes more for each line."""


def load_disk() -> None:
    """Loads the driver of the disk, in which all bytes are zero."""
    image = guest.kernel()
    assert image is not None
    subprocess.run(["modprobe", "-d", str(image.parents[1]), "virtio_blk"], check=True)
    eventually("the disk is there", DISK.exists)


def grow(process: subprocess.Popen[str], megabytes: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{megabytes}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "grown\n"
