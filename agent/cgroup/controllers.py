"""The files of the cpu, memory and cpuset controllers, each where its hierarchy is mounted.

On a hybrid host some are v1 mounts and the others in the v2 tree. A group has the same path in each
hierarchy: that is how runtimes and the kubelet place them.
"""

from __future__ import annotations

import errno
import os
from typing import Final, Literal

from agent.cgroup.handles import Handles
from agent.cgroup.hierarchy import CgroupError, GroupGone, below, mounted

Controller = Literal["cpu", "cpuset", "memory"]
_ALL: Final[tuple[Controller, ...]] = ("cpu", "cpuset", "memory")


class Controllers:
    """The controllers of one machine; holds no state but their place and open files. `handles`:
    shared with the Hierarchy, so that both together stay within the limit of open files. Raises
    CgroupError when `root` can't be listed."""

    def __init__(self, root: str = "/sys/fs/cgroup", handles: Handles | None = None) -> None:
        self._mounts: dict[str, tuple[Literal[1, 2], str]] = {
            each: found for each in _ALL if (found := mounted(root, each))
        }
        self._handles = handles or Handles()

    def close(self) -> None:
        """Closes the files that stay open; the next use opens them again."""
        self._handles.close()

    def version(self, controller: Controller) -> Literal[1, 2] | None:
        """None where the machine has the controller in neither."""
        found = self._mounts.get(controller)
        return found and found[0]

    def missing(self) -> tuple[Controller, ...]:
        """Controllers that the machine has in neither version."""
        return tuple(each for each in _ALL if each not in self._mounts)

    def has(self, group: str, file: str) -> bool:
        """Whether the group exists in the hierarchy that the file belongs to."""
        try:
            return os.path.isdir(self._directory(group, file))
        except CgroupError:
            return False

    def read(self, group: str, file: str) -> str | None:
        """Without the line end; None when the group exists and the file does not. Raises
        CgroupError, GroupGone."""
        path = f"{self._directory(group, file)}/{file}"
        try:
            return self._handles.read(path).decode("ascii", "replace").strip()
        except OSError as error:
            if error.errno == errno.ENOENT and self.has(group, file):
                return None
            raise self._error("read", path, group, file, error) from error

    def write(self, group: str, file: str, text: str) -> None:
        """One write(2). Raises CgroupError, GroupGone."""
        path = f"{self._directory(group, file)}/{file}"
        try:
            self._handles.write(path, f"{text}\n".encode("ascii"))
        except OSError as error:
            raise self._error(f"write '{text}' to", path, group, file, error) from error

    def _error(self, verb: str, path: str, group: str, file: str, error: OSError) -> CgroupError:
        gone = error.errno == errno.ENODEV or not self.has(group, file)
        kind = GroupGone if gone else CgroupError
        return kind(f"cannot {verb} {path!r}: {error.strerror}")

    def _directory(self, group: str, file: str) -> str:
        found = self._mounts.get(file.partition(".")[0])
        if found is None or "/" in file:
            raise CgroupError(f"this machine has no controller for {file!r}")
        return found[1] + below(group)
