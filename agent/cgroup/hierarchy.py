"""The cgroup hierarchies of a host, v1, v2 or both: named reads and single writes.

A group is named by its path below the hierarchy's root: `/`, `/kubepods/burstable/podX/ID`. It has
the same path in each hierarchy: runtimes and the kubelet place it so. On a hybrid host some
controllers are v1 mounts and the others in the v2 tree.

On v1 every group that holds processes has CPUs of its own; on v2 an empty own value means that the
group inherits its parent's, and the kernel keeps the CPUs in force in `cpuset.cpus.effective`.

Files of the kernel stay open between reads: opening a path takes ten times as long as reading a
cpuset, and a node has hundreds of them. For a file whose group was removed the kernel answers
ENODEV. Its path is then opened again, in case a new group has that name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Literal, Protocol

from agent.cgroup import lines
from agent.host import files
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError

CPUS: Final = "cpuset.cpus"
MEMS: Final = "cpuset.mems"
OOM_SCORE_ADJ: Final = "oom_score_adj"
"""A file of each process of a group (`cgroup.oom_scores`), which groups do not have."""
_EFFECTIVE: Final = {
    (1, CPUS): "cpuset.effective_cpus",
    (1, MEMS): "cpuset.effective_mems",
    (2, CPUS): "cpuset.cpus.effective",
    (2, MEMS): "cpuset.mems.effective",
}
_OF_V1: Final = {
    "blkio": "blkio.throttle.io_service_bytes",
    "cpu": "cpu.shares",
    "cpuacct": "cpuacct.usage",
    "cpuset": CPUS,
    "memory": "memory.limit_in_bytes",
}
"""A file that distinguishes a mounted v1 controller from an empty folder of its name."""
_ONLINE: Final = "../sys/devices/system/cpu/online"
_LEAF_LINKS: Final = 2
"""A cgroup's directory has as many links as it has groups in it, and these."""


class CgroupError(Exception):
    """A read or write failed; the message names file, value and reason."""


class GroupGone(CgroupError):  # noqa: N818 - groups come and go, this is not a fault
    """The group does not exist (any more)."""


class NotNested(CgroupError):  # noqa: N818 - a rule of the kernel, not a fault
    """v1 gives no CPUs to a group that its parent lacks, and takes none that a group in it has."""


class Populated(CgroupError):  # noqa: N818 - a rule of the kernel, not a fault
    """The kernel (as 6.1) lets no group inherit again while processes are in or below it."""


class Hierarchy:
    """The cpuset hierarchy of one machine. It keeps no values, only open files (`handles`). Where
    both v1 and v2 are mounted, it is the one that has the cpuset controller.

    `root`: the mount point of the cgroup file systems.
    `proc`: a procfs.

    Raises CgroupError when neither has the controller."""

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
        # A v2 group without the file: its parent does not enable the controller for it.
        return self._read(group, CPUS) or EMPTY

    def effective_cpus(self, group: str) -> CpuSet:
        """The CPUs that the group's processes can use, online ones only."""
        return self._effective(group, CPUS)

    def machine_cpus(self) -> CpuSet:
        """The online CPUs of the machine. The root of v2 does not have those of partitions."""
        cpus = self.effective_cpus("/")
        if self.version == 2:
            with contextlib.suppress(OSError, CpuSetError):
                cpus |= _set(files.read(os.path.join(self.proc, _ONLINE), _READ_BYTES))
        return cpus

    def effective_mems(self, group: str) -> CpuSet:
        """The NUMA nodes that the group's processes can use."""
        return self._effective(group, MEMS)

    def exists(self, group: str) -> bool:
        return os.path.isdir(self._directory(group))

    def children(self, group: str) -> tuple[str, ...]:
        """The child groups, sorted. Raises CgroupError, GroupGone."""
        return _children(self._directory(group), group)

    def processes(self, group: str) -> tuple[int, ...]:
        """The processes in the group itself, without those of groups in it. Raises CgroupError,
        GroupGone."""
        path = f"{self._directory(group)}/cgroup.procs"
        try:
            with open(path, "rb") as file:
                return tuple(map(int, file.read().split()))
        except OSError as error:
            raise _error("read", path, self.exists(group), error) from error

    def threads(self, group: str) -> tuple[int, ...]:
        """The threads in the group itself, the first ones of many, without those of groups in it.
        Raises CgroupError, GroupGone."""
        path = f"{self._directory(group)}/{'tasks' if self.version == 1 else 'cgroup.threads'}"
        try:
            text = self.handles.read(path)
        except OSError as error:
            raise _error("read", path, self.exists(group), error) from error
        # The last number of a text that does not end in a line end is cut.
        return tuple(map(int, text[: text.rfind(b"\n") + 1].split()))

    def threads_below(self, group: str) -> tuple[int, ...]:
        """All threads in the group and in the groups in it. Raises CgroupError, GroupGone."""
        directory = self._directory(group)
        path = f"{directory}/{'tasks' if self.version == 1 else 'cgroup.threads'}"
        try:
            # One read(2) returns a page at most.
            with open(path, "rb", buffering=0) as file:
                threads = tuple(map(int, file.readall().split()))
        except OSError as error:
            raise _error("read", path, self.exists(group), error) from error
        children = _children(directory, group)
        return threads + tuple(each for child in children for each in self.threads_below(child))

    def write(self, group: str, cpus: CpuSet) -> None:
        """Sets `cpuset.cpus` in one write(2). Raises CgroupError, GroupGone, and ValueError for an
        empty set."""
        if not cpus:
            raise ValueError(f"an empty cpuset is never written ({group!r})")
        self._write(group, cpus)

    def inherit(self, group: str) -> None:
        """Lets a v2 group use its parent's CPUs again. Raises CgroupError and its kinds, and
        ValueError on v1, where a group can't inherit."""
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
        """The group of a process; None if it has ended, or is outside this cgroup namespace. Raises
        CgroupError."""
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
            of_cpusets = "cpuset" in controllers.split(",") if self.version == 1 else number == "0"
            if of_cpusets and group.startswith("/"):
                hidden = group.startswith("/..") or group.endswith(" (deleted)")
                return None if hidden else group
        raise CgroupError(f"{path!r} names no group of the cgroup v{self.version} cpuset hierarchy")

    def _effective(self, group: str, name: str) -> CpuSet:
        effective = _EFFECTIVE[self.version, name]
        while True:
            cpus = self._read(group, effective)
            if cpus is not None:
                return cpus
            if self.version == 1:  # kernels before 3.17 have no such file
                return self._read(group, name) or EMPTY
            if group == "/":
                raise CgroupError(f"{self._directory(group)!r} has no {effective}")
            group = group.rpartition("/")[0] or "/"

    def _read(self, group: str, name: str) -> CpuSet | None:
        """The CPUs in the file, None when the group exists and the file does not."""
        path = f"{self.path}{below(group)}/{name}"
        try:
            return _set(self.handles.read(path))
        except CpuSetError as error:
            raise CgroupError(f"cannot understand {path!r}: {error}") from error
        except OSError as error:
            if error.errno == errno.ENOENT and self.exists(group):
                return None
            raise _error("read", path, self.exists(group), error) from error

    def _write(self, group: str, cpus: CpuSet) -> None:
        path = f"{self.path}{below(group)}/{CPUS}"
        try:
            self.handles.write(path, _line(cpus))
        except OSError as error:
            reason = _error(f"write '{cpus}' to", path, self.exists(group), error)
            if self.version == 1 and error.errno in (errno.EACCES, errno.EBUSY):
                raise NotNested(str(reason)) from error
            raise reason from error

    def _directory(self, group: str) -> str:
        return self.path + below(group)


class GroupValues(Protocol):
    """Values of the kernel that have the name of a group and a file, but no file in the cgroup."""

    def look(self) -> None:
        """The values are read after this as they are then."""

    def has(self, group: str, file: str) -> bool:
        """Whether the value can exist."""

    def read(self, group: str, file: str) -> str:
        """The value. Raises CgroupError, GroupGone."""

    def write(self, group: str, file: str, text: str) -> None:
        """Raises CgroupError, GroupGone."""


Controller = Literal["cpu", "cpuset", "memory"]
_ALL: Final[tuple[Controller, ...]] = ("cpu", "cpuset", "memory")


class Controllers:
    """The controllers of one machine. It keeps no values, only open files.

    `handles`: those of the Hierarchy, so that both together stay within the limit of open files.
    `others`: what else is written and given back in the way of files of cgroups, by the first word
        of its names; made when it is needed first.

    Raises CgroupError when the root can't be listed."""

    def __init__(
        self,
        root: str = "/sys/fs/cgroup",
        handles: Handles | None = None,
        others: Mapping[str, Callable[[], GroupValues]] = {},
    ) -> None:
        self._mounts: dict[str, tuple[Literal[1, 2], str]] = {
            controller: mount for controller in _ALL if (mount := mounted(root, controller))
        }
        # Most hosts with v1 mount both as one.
        if mount := mounted(root, "cpuacct") or self._mounts.get("cpu"):
            self._mounts["cpuacct"] = mount
        if mount := self._mounts.get("cpu"):
            self._mounts[OOM_SCORE_ADJ] = mount
        if mount := mounted(root, "blkio"):
            self._mounts["blkio"] = mount
        # The groups of v2 have PSI also where their controllers are those of v1.
        for path, controllers in _v2_mounts(root):
            self._mounts.setdefault("pressure", (2, path))
            if "io" in controllers:
                self._mounts.setdefault("io", (2, path))
        self._handles = handles or Handles()
        self._others = others
        self._made: dict[str, GroupValues] = {}

    def close(self) -> None:
        """Closes the files that stay open; the next use opens them again."""
        self._handles.close()

    def look(self) -> None:
        """Values that are not read from files of cgroups are those of now, or later."""
        for other in self._made.values():
            other.look()

    def version(self, controller: Controller | Literal["blkio", "io"]) -> Literal[1, 2] | None:
        """The version that has the controller, None for neither."""
        mount = self._mounts.get(controller)
        return mount and mount[0]

    def missing(self) -> tuple[Controller, ...]:
        """Controllers that the machine has in neither version."""
        return tuple(each for each in _ALL if each not in self._mounts)

    def has(self, group: str, file: str) -> bool:
        """Whether the group exists in the hierarchy of the file's controller."""
        if (other := self._other(file)) is not None:
            return other.has(group, file)
        try:
            return os.path.isdir(self._directory(group, file))
        except CgroupError:
            return False

    def children(self, group: str, file: str) -> tuple[str, ...]:
        """The child groups in the hierarchy of the file's controller, sorted. Raises CgroupError,
        GroupGone."""
        return _children(self._directory(group, file), group)

    def read(self, group: str, file: str) -> str | None:
        """Without the line end; None when the group exists and the file does not. `file` may be
        the name of a value (`lines`). Raises CgroupError, GroupGone."""
        if (other := self._other(file)) is not None:
            return other.read(group, file)
        path = f"{self._directory(group, file)}/{lines.file_of(file)}"
        try:
            text = self._handles.read(path).decode("ascii", "replace").strip()
            return lines.value(text, file)
        except OSError as error:
            if error.errno == errno.ENOENT and self.has(group, file):
                return None
            raise _error("read", path, self.has(group, file), error) from error

    def processes(self, group: str, most: int) -> tuple[int, ...]:
        """So many processes of the group and of the groups in it at most. Raises CgroupError,
        GroupGone."""
        pids: list[int] = []
        top = self._directory(group, OOM_SCORE_ADJ)
        for folder, _, _ in os.walk(top):
            path = f"{folder}/cgroup.procs"
            try:
                with open(path, "rb") as file:
                    pids += map(int, file.read().split())
            except OSError as error:
                # A group in it has ended, or is threaded (v2): its processes are those of the top.
                if folder == top or error.errno not in (errno.ENOENT, errno.ENODEV, _THREADED):
                    exists = self.has(group, OOM_SCORE_ADJ)
                    raise _error("read", path, exists, error) from error
            if len(pids) >= most:
                break
        # v2 has 0 for a process that is not in the agent's PID namespace.
        return tuple(pid for pid in pids[:most] if pid)

    def cpu_seconds(self, group: str) -> float | None:
        """The CPU time that the group has used; None if it can't be read."""
        try:
            if self.version("cpu") == 2:
                words = (self.read(group, "cpu.stat") or "").split()
                return int(words[words.index("usage_usec") + 1]) / _MICROSECONDS
            return int(self.read(group, "cpuacct.usage") or "") / _NANOSECONDS
        except (CgroupError, ValueError, IndexError):
            return None

    def write(self, group: str, file: str, text: str) -> None:
        """One write(2). `file` may be the name of a value (`lines`). Raises CgroupError,
        GroupGone, also where a disk is gone."""
        if (other := self._other(file)) is not None:
            other.write(group, file, text)
            return
        path = f"{self._directory(group, file)}/{lines.file_of(file)}"
        text = lines.written(file, text)
        try:
            self._handles.write(path, f"{text}\n".encode("ascii"))
        except OSError as error:
            raise _error(f"write '{text}' to", path, self.has(group, file), error) from error

    def _other(self, file: str) -> GroupValues | None:
        name = file.partition(".")[0]
        if name not in self._others:
            return None
        if name not in self._made:
            self._made[name] = self._others[name]()
        return self._made[name]

    def _directory(self, group: str, file: str) -> str:
        controller, _, name = file.partition(".")
        mount = self._mounts.get("pressure" if name == "pressure" else controller)
        if mount is None or "/" in file:
            raise CgroupError(f"this machine has no controller for {file!r}")
        return mount[1] + below(group)


_MICROSECONDS: Final = 1_000_000
_NANOSECONDS: Final = 1_000_000_000
_READ_BYTES: Final = 65_536  # a CPU list of 8,192 lone ids is shorter
_FEW: Final = 64
_THREADED: Final = errno.EOPNOTSUPP
_MAY_NOT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Handles:
    """Reads and writes by path. The files used last stay open, up to half of the process's limit.

    Each time that the number of open files has doubled, the files of removed groups are closed.

    Only files of the kernel stay open: those that have content but size 0. Any other file may be
    replaced by one of the same name, and is opened each time. For one thread at a time.
    """

    def __init__(self, limit: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = soft // 2 if limit is None else limit
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._read_only: set[str] = set()
        self._close_removed_at = _FEW

    def read(self, path: str) -> bytes:
        """The content. Raises OSError."""
        kept = self._kept.get(path)
        if kept is not None:
            try:
                data = os.pread(kept, _READ_BYTES, 0)
            except OSError as error:
                self._drop(path)
                if error.errno != errno.ENODEV:
                    raise
            else:
                self._kept.move_to_end(path)
                return data
        return self._read_first(path)

    def write(self, path: str, data: bytes) -> None:
        """One write(2). Raises OSError."""
        kept = None if path in self._read_only else self._kept.get(path)
        if kept is not None:
            try:
                os.pwrite(kept, data, 0)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                self._drop(path)
            else:
                return
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)

    def close(self) -> None:
        """Closes all files; the next use opens them again."""
        for path in list(self._kept):
            self._drop(path)

    def _read_first(self, path: str) -> bytes:
        writable = True
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _MAY_NOT:
                raise
            writable = False
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        keep = False
        try:
            data = os.pread(handle, _READ_BYTES, 0)
            keep = bool(data) and os.fstat(handle).st_size == 0 and self._limit > 0
        finally:
            if not keep:
                os.close(handle)
        if keep:
            if len(self._kept) >= self._close_removed_at:
                self._close_removed()
            if len(self._kept) >= self._limit:
                self._drop(next(iter(self._kept)))
            self._kept[path] = handle
            if not writable:
                self._read_only.add(path)
        return data

    def _close_removed(self) -> None:
        for path, handle in list(self._kept.items()):
            try:
                os.pread(handle, 1, 0)
            except OSError:
                self._drop(path)
        self._close_removed_at = max(_FEW, 2 * len(self._kept))

    def _drop(self, path: str) -> None:
        os.close(self._kept.pop(path))
        self._read_only.discard(path)


def _children(directory: str, group: str) -> tuple[str, ...]:
    try:
        if os.stat(directory).st_nlink == _LEAF_LINKS:
            return ()
        with os.scandir(directory) as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise _error("list", directory, os.path.isdir(directory), error) from error
    base = group.rstrip("/")
    return tuple(f"{base}/{name}" for name in sorted(names))


def _error(verb: str, path: str, exists: bool, error: OSError) -> CgroupError:
    """The error of a failed read or write. `exists` says whether the group exists."""
    kind = CgroupError if exists and error.errno != errno.ENODEV else GroupGone
    return kind(f"cannot {verb} {path!r}: {error.strerror}")


def mounted(root: str, controller: str) -> tuple[Literal[1, 2], str] | None:
    """The cgroup version that has the controller (`cpu`, `cpuset`, `memory`, or `blkio` of v1), and
    the folder of its group `/`; None if neither has it. Raises CgroupError."""
    for path in _v1_mounts(root, controller):
        if os.path.exists(f"{path}/{_OF_V1[controller]}"):
            return 1, path
    for path, controllers in _v2_mounts(root):
        if controller in controllers:
            return 2, path
    return None


def _v2_mounts(root: str) -> Iterator[tuple[str, list[str]]]:
    """The folders of the group `/` of v2, with their controllers: one on a real host."""
    for path in (root, f"{root}/unified"):
        try:
            with open(f"{path}/cgroup.controllers", encoding="ascii", errors="replace") as file:
                controllers = file.read().split()
        except OSError:
            continue
        yield path, controllers


def _v1_mounts(root: str, controller: str) -> list[str]:
    """The mounts of a controller: its own, or one with other controllers (`cpu,cpuset`)."""
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise CgroupError(f"cannot list {root!r}: {error.strerror}") from error
    return [f"{root}/{name}" for name in names if controller in name.split(",")]


# The same few groups and values occur in each pass.
@lru_cache(maxsize=1_024)
def below(group: str) -> str:
    """The group's folder, relative to that of `/`. Raises CgroupError for an invalid group."""
    if group == "/":
        return ""
    head, *parts = group.split("/")
    if head or "\0" in group or not parts or not {"", ".", ".."}.isdisjoint(parts):
        raise CgroupError(f"{group!r} is not a cgroup path (such as '/kubepods/podX')")
    return group


@lru_cache(maxsize=1_024)
def _line(cpus: CpuSet) -> bytes:
    return f"{cpus}\n".encode("ascii")


@lru_cache(maxsize=1_024)
def _set(text: bytes) -> CpuSet:
    return CpuSet.parse(text.decode("ascii", "replace"))
