"""The host's names of cgroups, for a reader in a cgroup namespace of its own.

`/proc/PID/cgroup` shows a group relative to the root of the reader's cgroup namespace: from
`/kubepods/podA/x` the group `/kubepods/podB/y` is `/../../podB/y`, without the word kubepods
(cgroup_namespaces(7)). Runtimes give pods such a namespace on v2.
"""

from __future__ import annotations

import os
import re
from typing import Final

from agent.cgroup.hierarchy import Hierarchy

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
"""mountinfo's notation for blanks and some other characters in a path (proc(5))."""


def absolute(group: str, own: str) -> str | None:
    """`own`: the root of the reader's namespace. None for a path that leaves the hierarchy."""
    parts = group.split("/")[1:]
    above = [each for each in own.split("/") if each]
    while parts and parts[0] == "..":
        if not above:
            return None
        above.pop()
        parts.pop(0)
    if not group.startswith("/") or ".." in parts:
        return None
    return "/" + "/".join([*above, *(each for each in parts if each)])


def own_root(hierarchy: Hierarchy, proc_self: str = "/proc/self") -> str | None:
    """The root of this process's cgroup namespace, as a group of the hierarchy: `/` outside of any.

    A runtime mounts this root in each container. The inode number finds the same folder in the
    host's mount. None where nothing mounts it.
    """
    wanted = {
        (found.st_dev, found.st_ino)
        for path in _roots(hierarchy.version, f"{proc_self}/mountinfo")
        if (found := _stat(path)) is not None
    }
    if not wanted:
        return None
    for folder, _, _ in os.walk(hierarchy.path):
        found = _stat(folder)
        if found is not None and (found.st_dev, found.st_ino) in wanted:
            return folder[len(hierarchy.path.rstrip("/")) :] or "/"
    return None


def _roots(version: int, mountinfo: str) -> list[str]:
    """The mount points of our namespace's root. A line of mountinfo: `ID PARENT MAJOR:MINOR ROOT
    MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS`."""
    found = []
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().split("\n")
    except OSError:
        return []
    for line in lines:
        mount, dash, system = line.partition(" - ")
        fields, kinds = mount.split(" "), system.split(" ")
        if not dash or len(fields) < 5 or len(kinds) < 3 or fields[3] != "/":
            continue
        of_v1 = kinds[0] == "cgroup" and "cpuset" in kinds[2].split(",")
        if kinds[0] == "cgroup2" if version == 2 else of_v1:
            found.append(_OCTAL.sub(lambda each: chr(int(each[1], 8)), fields[4]))
    return found


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
