"""Makes the snapshots of this folder from the tarballs of hwloc's tests.

    python tests/data/sysfs/shorten.py UPSTREAM.tar.bz2...

A tarball keeps what describes the hardware: the CPUs, NUMA nodes, PCI devices and the devices of a
class below them. What names the machine, its network, its users or its jobs is left out or
replaced, and so are the owners and times of the tarball's members. The same input gives the same
bytes.
"""

from __future__ import annotations

import bz2
import io
import itertools
import re
import sys
import tarfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent

KEPT: Final = re.compile(
    r"sys/devices/(system/(cpu|node)|pci[^/]*|cpu_[^/]*|platform|LNXSYSTM:00)(/|$)"
    r"|sys/bus/(pci|node|dax|cpu)(/|$)"
    r"|sys/class/(net|infiniband|block|ve|dax|fpga\w*|misc)(/|$)"
    r"|sys/block(/|$)"
    r"|sys/kernel/mm/hugepages(/|$)"
    r"|proc/(cpuinfo|meminfo|cmdline|hwloc-nofile-info|driver/nvidia/.*)$"
)
"""Paths below the snapshot's root."""

DROPPED: Final = re.compile(
    r"/node[0-9]+/memory[0-9]+$"  # a thousand links that no test reads
    r"|/cpufreq(/|$)|/cpuidle(/|$)|/thermal_throttle(/|$)|/microcode(/|$)|/crash_notes(_size)?$"
    r"|/power(/|$)|/statistics(/|$)|/usb[0-9]+(/|$)|/tty(/|$)|/counters(/|$)"
    r"|/(config|rom|vpd|resource[0-9]+(_wc)?|localbus_info|trans_table|time_in_state)$"
    r"|/(serial|uuid|unique_id|ppin)$"
)

REPLACED: Final = re.compile(
    r"/(address|broadcast|node_guid|sys_image_guid|node_desc|gids/[0-9]+)$"
)
"""Digits and letters of these become 0, 1, 2 and so on in hexadecimal."""

IDENTIFYING: Final = re.compile(
    rb"^HostName: .*\n?|^(Serial|Hardware serial)\s*:.*\n?"
    rb"|\b(root|BOOT_IMAGE|LANG|rd\.[a-z.]+|ip|console)=\S+ ?",
    re.MULTILINE | re.IGNORECASE,
)
"""Parts of /proc/cpuinfo, /proc/cmdline and of what hwloc noted."""


def shortened(upstream: bytes) -> bytes:
    """The tarball without identifiers of machine and people."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(upstream)) as source,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as target,
    ):
        for member in sorted(source, key=lambda each: each.name):
            _, _, path = member.name.removeprefix("./").partition("/")
            if path and not _kept(path):
                continue
            content = b""
            if member.isreg() or member.islnk():
                file = source.extractfile(member)
                content = _cleaned(path, file.read() if file else b"")
            target.addfile(_plain(member, len(content)), io.BytesIO(content))
    return bz2.compress(plain.getvalue())


def _kept(path: str) -> bool:
    return KEPT.match(path) is not None and DROPPED.search(f"/{path}") is None


def _cleaned(path: str, content: bytes) -> bytes:
    if REPLACED.search(path):
        digits = itertools.cycle(b"0123456789abcdef")
        return re.sub(rb"[0-9A-Za-z]", lambda _: bytes([next(digits)]), content)
    return IDENTIFYING.sub(b"", content) if path.startswith("proc/") else content


def _plain(member: tarfile.TarInfo, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(member.name.removeprefix("./"))
    made.type = tarfile.REGTYPE if member.islnk() else member.type
    made.linkname = member.linkname if member.issym() else ""
    made.mode = 0o755 if member.isdir() else 0o644
    made.size = size
    return made


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        (HERE / path.name).write_bytes(shortened(path.read_bytes()))


if __name__ == "__main__":
    main()
