"""The disks of the machine by the names that strategies have for them: from sysfs and the mounts of
the host, without /dev, which the agent does not need. Limits of cgroups are for whole disks, so a
partition stands for its disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from agent.host import files
from agent.host.files import Tree

_BLOCK: Final = "sys/class/block"
_DEVICE: Final = re.compile(r"/dev/([A-Za-z0-9][A-Za-z0-9_.!/+:-]{0,254})")
_MAPPED: Final = "/dev/mapper/"
_MOUNTS: Final = "proc/1/mountinfo"
_MAX_MOUNTS_BYTES: Final = 16 << 20
_VOLUME: Final = re.compile(
    rb"^\d+ \d+ (\d+:\d+) \S+ \S*/pods/([^/\s]+)/volumes/[^/\s]+/([^/\s]+)(?:/mount)? ", re.M
)
"""A line of mountinfo: `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT ...` (proc(5)). The kubelet mounts
the volumes of a pod at `pods/UID/volumes/PLUGIN/NAME`, those of CSI at `mount` in it."""


class DiskError(Exception):
    """The name is not that of a disk of this machine; the message says why."""


class Disks:
    """`root`: where the host's /sys and /proc are. Numbers are MAJOR:MINOR. All methods raise
    OSError for files that can't be read."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)

    def of_device(self, path: str) -> str:
        """The number of the disk of `/dev/NAME`, as the kernel names it, or of `/dev/mapper/NAME`.
        Raises DiskError."""
        match = _DEVICE.fullmatch(path)
        if match is None:
            raise DiskError(f"{path!r} is not the path of a device (such as '/dev/sda')")
        if path.startswith(_MAPPED):
            mapped = path.removeprefix(_MAPPED)
            for name in self._mapped():
                if self._tree.text(f"{_BLOCK}/{name}/dm/name") == mapped:
                    return self._number(name)
            raise DiskError(f"this machine has no {path!r}")
        return self._number(match[1].replace("/", "!"))

    def of_volume_group(self, group: str) -> tuple[str, ...]:
        """The numbers of the disks below the logical volumes of LVM that are in use, sorted. Raises
        DiskError."""
        prefix = group.replace("-", "--") + "-"  # LVM doubles each in names
        names = {
            disk
            for name in self._mapped()
            if (self._tree.text(f"{_BLOCK}/{name}/dm/uuid") or "").startswith("LVM-")
            and re.match(
                re.escape(prefix) + "(?!-)", self._tree.text(f"{_BLOCK}/{name}/dm/name") or ""
            )
            for disk in self._below(name, set())
        }
        if not names:
            raise DiskError(f"this machine uses no volume group {group!r}")
        return tuple(sorted({self._number(name) for name in names}))

    def pod_volumes(self) -> dict[tuple[str, str], str]:
        """By the uid of a pod and the name of a volume in the kubelet's folder (that of its
        PersistentVolume, if it has one), the number of the device that is mounted."""
        text = files.read(self._tree.path(_MOUNTS), _MAX_MOUNTS_BYTES)
        return {
            (os.fsdecode(uid), os.fsdecode(name)): number.decode()
            for number, uid, name in _VOLUME.findall(text)
        }

    def of_number(self, number: str) -> str:
        """The number of the disk of a device. Raises DiskError for a file system without one, as on
        a network."""
        link = self._tree.link(f"sys/dev/block/{number}")
        if link is None:
            raise DiskError(f"{number} is not a disk of this machine")
        return self._number(link.rpartition("/")[2])

    def uses_bfq(self, number: str) -> bool:
        """Whether the disk has the I/O scheduler BFQ."""
        text = self._tree.text(f"sys/dev/block/{number}/queue/scheduler") or ""
        return "[bfq]" in text.split()

    def _mapped(self) -> Iterator[str]:
        return (name for name in sorted(self._tree.names(_BLOCK)) if name.startswith("dm-"))

    def _below(self, name: str, seen: set[str]) -> Iterator[str]:
        if name in seen:
            return
        seen.add(name)
        slaves = self._tree.names(f"{_BLOCK}/{name}/slaves")
        if not slaves:
            yield name
        for slave in slaves:
            yield from self._below(slave, seen)

    def _number(self, name: str) -> str:
        link = self._tree.link(f"{_BLOCK}/{name}") or ""
        if self._tree.exists(f"{_BLOCK}/{name}/partition"):
            name = os.path.basename(os.path.dirname(link))
        number = self._tree.text(f"{_BLOCK}/{name}/dev")
        if number is None:
            raise DiskError(f"/sys/class/block has no {name!r}")
        return number
