"""What disks and network devices have moved, by the counters of the kernel: for the machine, and
for cgroups and network namespaces (Documentation/admin-guide/iostats.rst and cgroup-v2.rst,
proc_pid_net(5))."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec.structs import astuple

from agent.host.files import Tree
from agent.host.processes import Process, ProcessGoneError, UnreadableError

_SECTOR_BYTES: Final = 512
"""In /proc/diskstats, whatever the disk has."""
_FIRST_COUNTER: Final = 3
"""In a line of /proc/diskstats, after the numbers and the name of the disk."""
_LOOPBACK: Final = "lo"
_PAGE_BYTES: Final = 4096


class DiskTraffic(msgspec.Struct, frozen=True):
    """The operations that a disk has completed, without discards and flushes."""

    read_bytes: int
    written_bytes: int
    reads: int
    writes: int


class NetworkTraffic(msgspec.Struct, frozen=True):
    received_bytes: int
    sent_bytes: int
    received_packets: int
    sent_packets: int


class Traffic(msgspec.Struct, frozen=True):
    """The newest counters."""

    disks: Mapping[str, DiskTraffic] = {}
    """Of the machine, by the name of the disk."""
    networks: Mapping[str, NetworkTraffic] = {}
    """Of the machine, by the name of the device."""
    pod_disks: Mapping[tuple[str, str], DiskTraffic] = {}
    """By the uid of the pod and the name of the disk."""
    pod_networks: Mapping[str, NetworkTraffic] = {}
    """By the uid of the pod, with all its devices."""
    unit_disks: Mapping[tuple[str, str], DiskTraffic] = {}
    """By the unit of systemd and the name of the disk."""


def disks(diskstats: str, names: Collection[str]) -> dict[str, tuple[str, DiskTraffic]]:
    """By the number of a disk (`8:0`) its name and counters, from the text of /proc/diskstats.

    `names`: the disks in /sys/block, where a partition is not; there `/` in a name is `!`."""
    by_number = {}
    for line in diskstats.splitlines():
        words = line.split()
        counters = words[_FIRST_COUNTER : _FIRST_COUNTER + 7]
        if len(counters) < 7 or words[2].replace("/", "!") not in names:
            continue
        if all(counter.isdecimal() for counter in counters):
            reads, _, read_sectors, _, writes, _, written_sectors = map(int, counters)
            traffic = DiskTraffic(
                read_sectors * _SECTOR_BYTES, written_sectors * _SECTOR_BYTES, reads, writes
            )
            by_number[f"{words[0]}:{words[1]}"] = words[2], traffic
    return by_number


def disks_of_v2(io_stat: str) -> dict[str, DiskTraffic]:
    """By the number of a disk, from the text of a group's io.stat."""
    by_number = {}
    for line in io_stat.splitlines():
        numbers = [word for word in line.split() if "=" not in word]
        counters = dict(word.split("=", 1) for word in line.split() if "=" in word)
        values = [counters.get(key, "") for key in ("rbytes", "wbytes", "rios", "wios")]
        if numbers and all(value.isdecimal() for value in values):
            # Some kernels list disks without counters in the same line before.
            by_number[numbers[-1]] = DiskTraffic(*map(int, values))
    return by_number


def disks_of_v1(service_bytes: str, serviced: str) -> dict[str, DiskTraffic]:
    """By the number of a disk, from the texts of a group's blkio.throttle.io_service_bytes and
    io_serviced, or of those with the groups in it (`_recursive`)."""
    sizes, operations = _by_operation(service_bytes), _by_operation(serviced)
    return {
        number: DiskTraffic(
            of_disk["Read"],
            of_disk["Write"],
            operations[number]["Read"],
            operations[number]["Write"],
        )
        for number, of_disk in sizes.items()
        if of_disk.keys() >= _BOTH and operations.get(number, {}).keys() >= _BOTH
    }


_BOTH: Final = frozenset({"Read", "Write"})


def _by_operation(text: str) -> dict[str, dict[str, int]]:
    by_number: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        number, _, counter = line.partition(" ")
        operation, _, value = counter.partition(" ")
        if value.isdecimal():
            by_number.setdefault(number, {})[operation] = int(value)
    return by_number


def interfaces(net_dev: str) -> dict[str, NetworkTraffic]:
    """By the name of a device, from the text of a /proc/PID/net/dev."""
    by_name = {}
    for line in net_dev.splitlines():
        name, colon, counters = line.partition(":")
        words = counters.split()
        values = [words[place] for place in _NETWORK_PLACES if place < len(words)]
        if colon and len(values) == len(_NETWORK_PLACES) and all(map(str.isdecimal, values)):
            by_name[name.strip()] = NetworkTraffic(*map(int, values))
    return by_name


_NETWORK_PLACES: Final = (0, 8, 1, 9)


class PodNetworks:
    """Reads the devices in the network namespaces of pods. Everybody may read a process's
    /proc/PID/net, without entering the namespace.

    A file below it has one inode number in each namespace. So it shows that a process is in the
    host's namespace, and that a pid still belongs to the same pod."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._inodes: dict[str, int] = {}
        """By id of the container, of its namespace."""

    def read(self, processes: Mapping[str, tuple[str, int]]) -> dict[str, NetworkTraffic]:
        """The traffic by uid of the pod, without loopback. A pod with the network of the host has
        none, and no pod where that is not known.

        `processes`: by uid, the id of a container or sandbox and its process on the host."""
        ids = {object_id for object_id, _ in processes.values()}
        self._inodes = {key: inode for key, inode in self._inodes.items() if key in ids}
        of_host = self._inode(1)
        traffic = {}
        for uid, (object_id, pid) in processes.items():
            inode = self._inode(pid)
            if inode is None or of_host in (None, inode):
                continue
            if object_id not in self._inodes:
                if not self._is_of(pid, object_id):
                    continue
                self._inodes[object_id] = inode
            if self._inodes[object_id] == inode:
                traffic[uid] = _sum(interfaces(self._text(pid)))
        return traffic

    def _text(self, pid: int) -> str:
        """The whole lines of the first page: some 30 devices. A process may make any number."""
        try:
            page = self._tree.read(f"proc/{pid}/net/dev", _PAGE_BYTES) or b""
        except OSError:  # the process has just ended
            return ""
        return page[: page.rfind(b"\n") + 1].decode("utf-8", "replace")

    def _inode(self, pid: int) -> int | None:
        try:
            return os.stat(self._tree.path(f"proc/{pid}/net/dev")).st_ino
        except OSError:
            return None

    def _is_of(self, pid: int, object_id: str) -> bool:
        try:
            with Process(self._tree.path("proc"), pid) as process:
                return any(object_id in group for group in process.groups().values())
        except (ProcessGoneError, UnreadableError):
            return False


def _sum(by_name: Mapping[str, NetworkTraffic]) -> NetworkTraffic:
    counted = [astuple(traffic) for name, traffic in by_name.items() if name != _LOOPBACK]
    return NetworkTraffic(*map(sum, zip(*counted, (0, 0, 0, 0), strict=True)))
