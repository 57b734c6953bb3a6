"""The cpuset hierarchy of a host, cgroup v1 or v2, as named reads and single writes.

A group is named by its path below the hierarchy's root: `/`, `/kubepods/burstable/podX/ID`.
On v1 every group that holds processes has CPUs of its own; on v2 an empty own value means that
the group inherits its parent's, and the kernel keeps what counts in `cpuset.cpus.effective`.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from typing import Final, Literal

from agent.cgroup.handles import Handles
from agent.model.cpuset import EMPTY, CpuSet, CpuSetError

CPUS: Final = "cpuset.cpus"
MEMS: Final = "cpuset.mems"
_EFFECTIVE: Final = {
    (1, CPUS): "cpuset.effective_cpus",
    (1, MEMS): "cpuset.effective_mems",
    (2, CPUS): "cpuset.cpus.effective",
    (2, MEMS): "cpuset.mems.effective",
}
_OF_V1: Final = {"cpu": "cpu.shares", "cpuset": CPUS, "memory": "memory.limit_in_bytes"}
"""A file that distinguishes a mounted v1 controller from an empty folder of its name."""
_LEAF_LINKS: Final = 2
"""A cgroup's directory has as many links as it has groups in it, and these."""


class CgroupError(Exception):
    """The kernel or the tree refused; the message names file, value and reason."""


class GroupGone(CgroupError):  # noqa: N818 - an event of everyday life, not a fault
    """The group does not exist (any more)."""


class Populated(CgroupError):  # noqa: N818 - a kernel's rule, not a fault
    """The kernel (6.1 does) lets no group inherit again while processes are in or below it."""


class Hierarchy:
    """The cpuset hierarchy of one machine; holds no state but its place and open files (`handles`).
    `root`: the mount point of the cgroup file systems, `proc` a procfs. Of v1 and v2 next to each
    other it is the one with the cpuset controller. Raises CgroupError when neither has it."""

    def __init__(self, root: str = "/sys/fs/cgroup", proc: str = "/proc") -> None:
        self.proc = proc
        self.version: Literal[1, 2]
        found = mounted(root, "cpuset")
        if found is None:
            raise CgroupError(
                f"no cpuset controller below {root!r}: neither 'cpuset' as a cgroup v1 mount, nor "
                "the word cpuset in the 'cgroup.controllers' of a cgroup v2 mount"
            )
        self.version, self.path = found
        self.handles = Handles()

    def close(self) -> None:
        """Closes the files that stay open; the next use opens them again."""
        self.handles.close()

    def own_cpus(self, group: str) -> CpuSet:
        """The content of `cpuset.cpus`: on v2 empty for a group that inherits."""
        return self._own(group, CPUS)

    def own_mems(self, group: str) -> CpuSet:
        """The NUMA nodes in `cpuset.mems`: on v2 empty for a group that inherits."""
        return self._own(group, MEMS)

    def effective_cpus(self, group: str) -> CpuSet:
        """The CPUs that processes of the group may really use (online ones only)."""
        return self._effective(group, CPUS)

    def effective_mems(self, group: str) -> CpuSet:
        """The NUMA nodes that processes of the group may really use."""
        return self._effective(group, MEMS)

    def exists(self, group: str) -> bool:
        return os.path.isdir(self._directory(group))

    def children(self, group: str) -> tuple[str, ...]:
        """The groups right below, sorted."""
        directory = self._directory(group)
        try:
            if os.stat(directory).st_nlink == _LEAF_LINKS:
                return ()
            with os.scandir(directory) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise self._error("list", directory, group, error) from error
        base = group.rstrip("/")
        return tuple(f"{base}/{name}" for name in sorted(names))

    def processes(self, group: str) -> tuple[int, ...]:
        """Process ids in the group itself, not below it."""
        directory = self._directory(group)
        path = f"{directory}/cgroup.procs"
        try:
            with open(path, "rb") as file:
                return tuple(map(int, file.read().split()))
        except OSError as error:
            raise self._error("read", path, directory, error) from error

    def write(self, group: str, cpus: CpuSet) -> None:
        """Set `cpuset.cpus` in one write(2); an empty set is a ValueError."""
        if not cpus:
            raise ValueError(f"an empty cpuset is never written ({group!r})")
        self._write(group, cpus)

    def inherit(self, group: str) -> None:
        """Let a v2 group use its parent's CPUs again. Raises Populated.

        v1 knows no such thing: ValueError."""
        if self.version == 1:
            raise ValueError(f"a cgroup v1 cpuset can't inherit ({group!r})")
        try:
            self._write(group, EMPTY)
        except CgroupError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
                raise Populated(str(error)) from cause
            raise

    def group_of(self, pid: int) -> str | None:
        """The group of a process; None when it is gone, or outside of our cgroup namespace."""
        path = f"{self.proc}/{pid}/cgroup"
        try:
            with open(path, "rb") as file:
                lines = os.fsdecode(file.read()).split("\n")  # names may hold any other byte
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise CgroupError(f"cannot read {path!r}: {error.strerror}") from error
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            ours = "cpuset" in controllers.split(",") if self.version == 1 else number == "0"
            if ours and group.startswith("/"):
                hidden = group.startswith("/..") or group.endswith(" (deleted)")
                return None if hidden else group
        raise CgroupError(f"{path!r} names no group of the cgroup v{self.version} cpuset hierarchy")

    def _own(self, group: str, name: str) -> CpuSet:
        # A v2 group without the file: its parent does not hand the controller down.
        return self._read(group, name) or EMPTY

    def _effective(self, group: str, name: str) -> CpuSet:
        effective = _EFFECTIVE[self.version, name]
        while True:
            cpus = self._read(group, effective)
            if cpus is not None:
                return cpus
            if self.version == 1:  # kernels before 3.17 have no such file
                return self._own(group, name)
            if group == "/":
                raise CgroupError(f"{self._directory(group)!r} has no {effective}")
            group = group.rpartition("/")[0] or "/"

    def _read(self, group: str, name: str) -> CpuSet | None:
        """None when the group exists and the file does not."""
        path = f"{self._directory(group)}/{name}"
        try:
            return _set(self.handles.read(path))
        except CpuSetError as error:
            raise CgroupError(f"cannot understand {path!r}: {error}") from error
        except OSError as error:
            if error.errno == errno.ENOENT and self.exists(group):
                return None
            raise self._error("read", path, group, error) from error

    def _write(self, group: str, cpus: CpuSet) -> None:
        path = f"{self._directory(group)}/{CPUS}"
        try:
            self.handles.write(path, _line(cpus))
        except OSError as error:
            raise self._error(f"write '{cpus}' to", path, group, error) from error

    def _error(self, verb: str, path: str, group: str, error: OSError) -> CgroupError:
        gone = error.errno == errno.ENODEV or not self.exists(group)
        kind = GroupGone if gone else CgroupError
        return kind(f"cannot {verb} {path!r}: {error.strerror}")

    def _directory(self, group: str) -> str:
        return self.path + below(group)


# A pass asks for the same few values and the same groups again and again.
@lru_cache(maxsize=1_024)
def below(group: str) -> str:
    """The group's folder, relative to that of `/`. Raises CgroupError for an invalid group."""
    if group == "/":
        return ""
    head, *parts = group.split("/")
    if head or "\0" in group or not parts or not {"", ".", ".."}.isdisjoint(parts):
        raise CgroupError(f"{group!r} is no path of a cgroup (such as '/kubepods/podX')")
    return group


@lru_cache(maxsize=1_024)
def _line(cpus: CpuSet) -> bytes:
    return f"{cpus}\n".encode("ascii")


@lru_cache(maxsize=1_024)
def _set(text: bytes) -> CpuSet:
    return CpuSet.parse(text.decode("ascii", "replace"))


def mounted(root: str, controller: str) -> tuple[Literal[1, 2], str] | None:
    """The version of `cpu`, `cpuset` or `memory` and the folder of its group `/`. Of v1 and v2 next
    to each other it is the one with the controller. Raises CgroupError."""
    for path in _v1_mounts(root, controller):
        if os.path.exists(f"{path}/{_OF_V1[controller]}"):
            return 1, path
    for path in (root, f"{root}/unified"):
        try:
            with open(f"{path}/cgroup.controllers", encoding="ascii", errors="replace") as file:
                controllers = file.read().split()
        except OSError:
            continue
        if controller in controllers:
            return 2, path
    return None


def _v1_mounts(root: str, controller: str) -> list[str]:
    """`cpuset`, and mounts shared with other controllers (`cpu,cpuset`)."""
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise CgroupError(f"cannot list {root!r}: {error.strerror}") from error
    return [f"{root}/{name}" for name in names if controller in name.split(",")]
