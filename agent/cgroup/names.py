"""Names of cgroups: those that the kubelet and container runtimes give them under both cgroup
drivers, and the host's names for a reader in a cgroup namespace.

The cgroupfs driver names plain folders (`/kubepods/burstable/podX/ID`). The systemd driver names
units: a slice's name contains its whole path (`a-b.slice` is in `a.slice`), and a container is a
scope in its pod's slice (`cri-containerd-ID.scope`). The kubelet replaces each `-` of a pod's uid
by `_` there.

`/proc/PID/cgroup` shows a group relative to the root of the reader's cgroup namespace: from
`/kubepods/podA/x` the group `/kubepods/podB/y` is `/../../podB/y`, without `kubepods`
(cgroup_namespaces(7)). Runtimes give pods such a namespace on v2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from agent.cgroup.hierarchy import Hierarchy

SCOPE_PREFIXES: Final = ("cri-containerd", "crio", "docker")
"""The prefixes of containerd, CRI-O and Docker before a container's id in a scope's name."""

_SLICE: Final = ".slice"
_MAX_UNIT_CHARACTERS: Final = 255
"""The limit of a name (systemd: src/basic/unit-name.h, UNIT_NAME_MAX). The path of a slice has the
names of all slices above it."""
_KUBEPODS: Final = "kubepods"
# The parent of containers whose pod does not name one; containerd's is its namespace.
_DEFAULT_PARENTS: Final = {"cri-containerd": "/k8s.io", "crio": "/crio", "docker": "/docker"}
_DEFAULT_SLICE: Final = "system.slice"
# Not Docker's: kubelets run in its containers (RKE).
_CRI_PARENTS: Final = ("k8s.io", "crio")
_CRI_SCOPES: Final = ("cri-containerd-", "crio-")


def slice_group(unit: str) -> str | None:
    """The group of a systemd slice: `a-b.slice` is `/a.slice/a-b.slice`, `-.slice` the root.

    None for a name that systemd refuses for a slice.
    """
    stem = unit.removesuffix(_SLICE)
    if stem == "-":
        return "/"
    words = stem.split("-")
    if stem == unit or "/" in unit or "" in words or len(unit) > _MAX_UNIT_CHARACTERS:
        return None
    return "".join(f"/{'-'.join(words[: end + 1])}{_SLICE}" for end in range(len(words)))


def of_pods(group: str) -> bool:
    """Whether the group is at or below the root of the kubelet's pods under any --cgroup-root
    (`/a/kubepods`, `/a.slice/a-kubepods.slice`), or at or below a container of containerd's CRI or
    of CRI-O: a kubelet with --cgroups-per-qos=false does not create such a root."""
    return any(map(_of_pods, group.split("/")))


def _of_pods(name: str) -> bool:
    if name.endswith(_SLICE):
        return _KUBEPODS in name.removesuffix(_SLICE).split("-")
    return name in (_KUBEPODS, *_CRI_PARENTS) or name.startswith(_CRI_SCOPES)


def pod_group(cgroup_parent: str, uid: str) -> str | None:
    """The group of a pod, by the sandbox's `cgroup_parent` in CRI; None if that is not the pod's
    own group, as under a kubelet with --cgroups-per-qos=false."""
    path, _, name = cgroup_parent.rstrip("/").rpartition("/")
    own = f"pod{uid}".replace("-", "_")
    if not name.removesuffix(_SLICE).replace("-", "_").endswith(own):
        return None
    return slice_group(name) if name.endswith(_SLICE) else from_cgroups_path(f"/{path}/{name}")


def container_groups(
    cgroup_parent: str, container_id: str, prefixes: tuple[str, ...] = SCOPE_PREFIXES
) -> tuple[str, ...]:
    """Every group that the container may be in, likeliest first; none for a malformed parent.

    `cgroup_parent`: of the sandbox, in CRI: a folder, a slice, or a path of slices; empty for the
        runtime's default."""
    last = cgroup_parent.rstrip("/").rpartition("/")[2]
    if not cgroup_parent:
        plain = [
            _plain(_DEFAULT_PARENTS[prefix], prefix, container_id)
            for prefix in prefixes
            if prefix in _DEFAULT_PARENTS
        ]
        scopes = [f"/{_DEFAULT_SLICE}/{prefix}-{container_id}.scope" for prefix in prefixes]
        return (*plain, *scopes)
    if last.endswith(_SLICE):
        parent = slice_group(last)
        if parent is None:
            return ()
        return tuple(f"{parent.rstrip('/')}/{prefix}-{container_id}.scope" for prefix in prefixes)
    parent = "/" + cgroup_parent.strip("/")
    return tuple(dict.fromkeys(_plain(parent, prefix, container_id) for prefix in prefixes))


def from_cgroups_path(cgroups_path: str) -> str | None:
    """The group that an OCI runtime creates for `linux.cgroupsPath`: a path, or `slice:prefix:name`
    for the systemd driver (no slice means `system.slice`, a name that is a slice needs no prefix).
    None for an empty or a relative path, which depends on the runtime's own group."""
    parts = cgroups_path.split(":")
    if len(parts) != 3 or "/" in parts[2]:
        clean = [part for part in cgroups_path.split("/") if part not in ("", ".")]
        absolute = cgroups_path.startswith("/") and ".." not in clean
        return "/" + "/".join(clean) if absolute else None
    unit, prefix, name = parts
    unit = unit.rstrip("/").rpartition("/")[2] or _DEFAULT_SLICE
    parent = slice_group("-.slice" if unit == "-" else unit)
    if parent is None or not name:
        return None
    scope = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    return f"{parent.rstrip('/')}/{name if name.endswith(_SLICE) else scope}"


def _plain(parent: str, prefix: str, container_id: str) -> str:
    # CRI-O keeps its prefix without systemd too.
    name = f"crio-{container_id}" if prefix == "crio" else container_id
    return f"{parent.rstrip('/')}/{name}"


_OCTAL: Final = re.compile(r"\\([0-7]{3})")
"""mountinfo's notation for blanks and some other characters in a path (proc(5))."""


def absolute(group: str, own: str) -> str | None:
    """The group on the host, of a group that `/proc/PID/cgroup` shows to a process whose cgroup
    namespace has the root `own`. None for a path that leaves the hierarchy."""
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


def of_cpuset(groups: Mapping[str, str]) -> str | None:
    """The group of a process in v1's cpuset hierarchy, else in v2; None if it is in neither.

    `groups`: the process's groups, by the controllers of their hierarchy."""
    of_v1 = (group for names, group in groups.items() if "cpuset" in names.split(","))
    return next(of_v1, groups.get(""))


def own_root(hierarchy: Hierarchy, proc_self: str = "/proc/self") -> str | None:
    """The root of this process's cgroup namespace, as a group of the hierarchy: `/` in the host's
    namespace. None if that root is not mounted.

    A runtime mounts this root in each container. Its inode number identifies the same folder in the
    host's mount.
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
    """The mount points of this namespace's root. A line of mountinfo: `ID PARENT MAJOR:MINOR ROOT
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
    except (OSError, ValueError):
        return None  # ValueError: a path with a NUL
