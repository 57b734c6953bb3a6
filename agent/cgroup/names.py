"""What kubelet and container runtimes call their cgroups, under both cgroup drivers.

The cgroupfs driver names plain folders (`/kubepods/burstable/podX/ID`). The systemd driver names
units: a slice's name spells out its whole path (`a-b.slice` lies in `a.slice`), and a container is
a scope in its pod's slice (`cri-containerd-ID.scope`). The kubelet writes `_` for each `-` of a
pod's uid there.
"""

from __future__ import annotations

from typing import Final

SCOPE_PREFIXES: Final = ("cri-containerd", "crio", "docker")
"""What containerd, CRI-O and Docker put before a container's id in a scope's name."""

_SLICE: Final = ".slice"
_KUBEPODS: Final = "kubepods"
# Where a container goes whose pod names no parent; containerd's is its namespace.
_DEFAULT_PARENTS: Final = {"cri-containerd": "/k8s.io", "crio": "/crio", "docker": "/docker"}
_DEFAULT_SLICE: Final = "system.slice"
# Not Docker's: kubelets run in its containers (RKE).
_CRI_PARENTS: Final = ("k8s.io", "crio")
_CRI_SCOPES: Final = ("cri-containerd-", "crio-")


def slice_group(unit: str) -> str | None:
    """The group of a systemd slice: `a-b.slice` is `/a.slice/a-b.slice`, `-.slice` the root.

    None for what systemd would refuse as a slice.
    """
    stem = unit.removesuffix(_SLICE)
    if stem == "-":
        return "/"
    words = stem.split("-")
    if stem == unit or "/" in unit or "" in words:
        return None
    return "".join(f"/{'-'.join(words[: end + 1])}{_SLICE}" for end in range(len(words)))


def of_pods(group: str) -> bool:
    """Whether the group is at or below the root of the kubelet's pods under any --cgroup-root
    (`/a/kubepods`, `/a.slice/a-kubepods.slice`), or at or below a container of containerd's CRI or
    of CRI-O: a kubelet with --cgroups-per-qos=false makes no such root."""
    return any(map(_of_pods, group.split("/")))


def _of_pods(name: str) -> bool:
    if name.endswith(_SLICE):
        return _KUBEPODS in name.removesuffix(_SLICE).split("-")
    return name in (_KUBEPODS, *_CRI_PARENTS) or name.startswith(_CRI_SCOPES)


def container_groups(
    cgroup_parent: str, container_id: str, prefixes: tuple[str, ...] = SCOPE_PREFIXES
) -> tuple[str, ...]:
    """Every group that the container may be in, likeliest first; none for a malformed parent.
    `cgroup_parent` is the sandbox's in CRI: a folder, a slice, or a path of slices. An empty one
    means the runtimes' defaults."""
    last = cgroup_parent.rstrip("/").rpartition("/")[2]
    if not cgroup_parent:
        plain = [
            _plain(_DEFAULT_PARENTS[each], each, container_id)
            for each in prefixes
            if each in _DEFAULT_PARENTS
        ]
        scopes = [f"/{_DEFAULT_SLICE}/{each}-{container_id}.scope" for each in prefixes]
        return (*plain, *scopes)
    if last.endswith(_SLICE):
        parent = slice_group(last)
        if parent is None:
            return ()
        return tuple(f"{parent.rstrip('/')}/{each}-{container_id}.scope" for each in prefixes)
    parent = "/" + cgroup_parent.strip("/")
    return tuple(dict.fromkeys(_plain(parent, each, container_id) for each in prefixes))


def from_cgroups_path(cgroups_path: str) -> str | None:
    """The group that an OCI runtime makes of `linux.cgroupsPath`: a path, or `slice:prefix:name`
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
