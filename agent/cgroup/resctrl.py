"""resctrl (Documentation/filesystems/resctrl.rst) as values of groups, so that they are written,
journalled and given back as files of cgroups are.

| file               | group           | content                                                   |
|--------------------|-----------------|-----------------------------------------------------------|
| `resctrl.schemata` | a control group | its parts of L3 caches and memory bandwidth, the lines    |
|                    | (`/BE`)         | with spaces between them. Empty: there is no such group.  |
|                    |                 | A write makes the group, a write of nothing removes it    |
| `resctrl.group`    | a cgroup        | the control groups of the threads in and below it, with   |
|                    |                 | commas between them. A write moves them all to the first  |

The root group is `/`. The lines of `schemata` for other caches stay as they are. The kernel moves
the tasks of a group that is removed to the root group."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from agent.cgroup.hierarchy import CgroupError, GroupGone, Hierarchy, below
from agent.cgroup.limits import RESCTRL_GROUP
from agent.host import files

FOLDER: Final = "sys/fs/resctrl"
ROOT: Final = "/"
_NOT_GROUPS: Final = frozenset({"info", "mon_data", "mon_groups"})
BANDWIDTH: Final = "MB"
CACHES: Final = ("L3", "L3CODE", "L3DATA")
_ROUNDS: Final = 5
"""A thread that has not moved yet may start others meanwhile."""
_MAX_BYTES: Final = 1 << 16
_MAX_TASKS_BYTES: Final = 1 << 26


class ControlGroups:
    """The control groups of a machine. It keeps which group has which threads until `look`.

    `path`: the mount point.
    `hierarchy`: tells the threads of cgroups."""

    def __init__(self, path: str, hierarchy: Hierarchy) -> None:
        self.path = path
        self._hierarchy = hierarchy
        self._groups: dict[int, str] | None = None
        self.full = False
        """Whether the kernel had no group left when it was last asked for one."""

    def mounted(self) -> bool:
        return os.path.exists(f"{self.path}/schemata")

    def names(self) -> frozenset[str]:
        """The control groups besides the root group; empty if resctrl is not mounted. Raises
        CgroupError."""
        try:
            with os.scandir(self.path) as entries:
                return frozenset(
                    each.name
                    for each in entries
                    if each.name not in _NOT_GROUPS and each.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise CgroupError(f"cannot list {self.path!r}: {error.strerror}") from error

    def groups(self) -> dict[int, str]:
        """By thread, its control group, without the threads of the root group. Raises
        CgroupError."""
        if self._groups is None:
            self._groups = {
                thread: f"/{name}" for name in sorted(self.names()) for thread in self._tasks(name)
            }
        return self._groups

    def threads(self, group: str) -> tuple[int, ...]:
        """The threads in the cgroup and below it. Raises CgroupError, GroupGone."""
        return self._hierarchy.threads_below(group)

    def look(self) -> None:
        self._groups = None

    def has(self, group: str, file: str) -> bool:
        return self._hierarchy.exists(group) if file == RESCTRL_GROUP else self.mounted()

    def read(self, group: str, file: str) -> str:
        """Raises CgroupError, and GroupGone for a cgroup without threads, or without resctrl."""
        if self._groups is None and not self.mounted():
            raise GroupGone(f"resctrl is not mounted on {self.path!r}")
        if file != RESCTRL_GROUP:
            return self._schemata(group)
        groups, threads = self.groups(), self.threads(group)
        if not threads:
            raise GroupGone(f"no thread is in {group!r}")
        return ",".join(sorted({groups.get(thread, ROOT) for thread in threads}))

    def write(self, group: str, file: str, text: str) -> None:
        """Raises CgroupError, GroupGone."""
        self._groups = None
        if file == RESCTRL_GROUP:
            self._move(group, text.partition(",")[0])
        elif text:
            self._set(group, text)
        else:
            self._remove(group)

    def _schemata(self, group: str) -> str:
        path = f"{self._directory(group)}/schemata"
        try:
            return _of_file(files.read(path, _MAX_BYTES).decode("ascii", "replace"))
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CgroupError(f"cannot read {path!r}: {error.strerror}") from error
        except ValueError as error:
            raise CgroupError(f"cannot understand {path!r}: {error}") from error

    def _set(self, group: str, text: str) -> None:
        directory = self._directory(group)
        is_new = not os.path.isdir(directory)
        try:
            if is_new:
                os.mkdir(directory)
                self.full = False
        except OSError as error:
            self.full = error.errno in (errno.ENOSPC, errno.EBUSY)
            raise self._error("make", directory, error) from error
        try:
            _write(f"{directory}/schemata", "".join(f"{line}\n" for line in text.split(" ")))
        except OSError as error:
            refusal = self._error(f"give {text!r} to", directory, error)
            if is_new:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
            raise refusal from error

    def _error(self, verb: str, path: str, error: OSError) -> CgroupError:
        """With the kernel's own words about the last call that it has refused."""
        words = ""
        with contextlib.suppress(OSError):
            status = files.read(f"{self.path}/info/last_cmd_status", _MAX_BYTES)
            words = status.decode("ascii", "replace").strip()
        more = "" if words in ("", "ok") else f" ({words})"
        return CgroupError(f"cannot {verb} {path!r}: {error.strerror}{more}")

    def _remove(self, group: str) -> None:
        directory = self._directory(group)
        try:
            os.rmdir(directory)
            self.full = False
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._error("remove", directory, error) from error

    def _move(self, group: str, to: str) -> None:
        path = f"{self._directory(to)}/tasks"
        moved: set[int] = set()
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                for _ in range(_ROUNDS):
                    threads = set(self.threads(group)) - moved
                    if not threads:
                        break
                    for thread in sorted(threads):
                        with contextlib.suppress(ProcessLookupError):  # it has ended
                            os.write(handle, f"{thread}\n".encode())
                    moved |= threads
            finally:
                os.close(handle)
        except OSError as error:
            raise self._error(f"move {group!r} to", path, error) from error

    def _tasks(self, name: str) -> Iterator[int]:
        """Raises CgroupError."""
        path = f"{self.path}/{name}/tasks"
        try:
            yield from map(int, files.read(path, _MAX_TASKS_BYTES).split())
        except FileNotFoundError:
            return
        except OSError as error:
            raise CgroupError(f"cannot read {path!r}: {error.strerror}") from error

    def _directory(self, group: str) -> str:
        return self.path + below(group)


def parts(text: str) -> dict[str, dict[int, int]]:
    """The values of L3 caches and memory bandwidth in a content of `schemata`, by line and domain.
    Raises ValueError."""
    values = {}
    for line in text.split("\n"):
        name, _, rest = line.strip().partition(":")
        if name in CACHES or name == BANDWIDTH:
            pairs = (pair.partition("=") for pair in rest.split(";"))
            base = 10 if name == BANDWIDTH else 16
            values[name] = {int(domain): int(value, base) for domain, _, value in pairs}
    return values


def _of_file(text: str) -> str:
    """The content of `resctrl.schemata` for that of `schemata`. Raises ValueError."""
    return " ".join(
        f"{name}:"
        + ";".join(
            f"{domain}={value}" if name == BANDWIDTH else f"{domain}={value:x}"
            for domain, value in sorted(values.items())
        )
        for name, values in sorted(parts(text).items())
    )


def _write(path: str, text: str) -> None:
    """One write(2). Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode("ascii"))
    finally:
        os.close(handle)
