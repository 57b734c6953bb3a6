"""A model of the kernel's cpuset rules, v1 and v2, and a hierarchy on top of it.

`test_kernel.py` compares it with the real kernel. Not modelled: `cpuset.mems` (always set),
partitions, deadline tasks and `cpuset.cpu_exclusive` (off, as kubelet and runtimes leave it).
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping

from agent.cgroup.hierarchy import Handles, Hierarchy
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError


class Kernel:
    """Groups by path; `cpus`: their own values, and the online CPUs of `/`.

    Operations raise the OSError of the kernel. `clears_used`: whether a v2 group with processes
    may inherit again (6.1 refuses). As with the memory controller, a v2 group has children or
    processes, not both.
    """

    def __init__(
        self,
        version: int,
        cpus: Mapping[str, CpuSet],
        possible: CpuSet | None = None,
        *,
        clears_used: bool = False,
    ) -> None:
        self.version = version
        self.cpus = dict(cpus)
        self.possible = self.cpus["/"] if possible is None else possible
        self.processes: dict[str, int] = {}
        self.clears_used = clears_used

    def children(self, group: str) -> list[str]:
        return [each for each in self.cpus if each != "/" and posixpath.dirname(each) == group]

    def effective(self, group: str) -> CpuSet:
        """The CPUs that its processes may use."""
        own = self._own(group)
        if group == "/":
            return own
        if self.version == 1:
            return own & self.cpus["/"]
        parent = self.effective(posixpath.dirname(group))
        return (own & parent) or parent

    def make(self, group: str) -> None:
        self._own(posixpath.dirname(group))
        if group in self.cpus:
            raise _error(errno.EEXIST)
        if self.version == 2 and self.processes.get(posixpath.dirname(group)):
            # A group with processes cannot enable a controller for its children.
            raise _error(errno.EBUSY)
        self.cpus[group] = EMPTY

    def remove(self, group: str) -> None:
        self._own(group)
        if self.children(group) or self.processes.get(group):
            raise _error(errno.EBUSY)
        del self.cpus[group]

    def attach(self, group: str) -> None:
        """Adds a process."""
        self._own(group)
        if self.version == 2 and self.children(group):
            raise _error(errno.EBUSY)
        if not self.effective(group):
            raise _error(errno.ENOSPC)
        self.processes[group] = self.processes.get(group, 0) + 1

    def detach(self, group: str) -> None:
        """Removes a process."""
        self.processes[group] -= 1

    def write(self, group: str, text: str) -> None:
        """`cpuset.cpus`."""
        own = self._own(group)
        if group == "/":
            raise _error(errno.EACCES)
        try:
            cpus = CpuSet.parse(text)
        except CpuSetError:
            raise _error(errno.EINVAL) from None
        if not cpus <= self.possible:
            raise _error(errno.ERANGE)
        if self.version == 1 and not cpus <= self.cpus["/"]:
            raise _error(errno.EINVAL)
        if cpus == own:
            return
        if self.version == 1:
            if any(not self.cpus[each] <= cpus for each in self.children(group)):
                raise _error(errno.EBUSY)
            if not cpus <= self.cpus[posixpath.dirname(group)]:
                raise _error(errno.EACCES)
        clears = own and not cpus
        if clears and self._populated(group) and not (self.version == 2 and self.clears_used):
            raise _error(errno.ENOSPC)
        self.cpus[group] = cpus

    def set_online(self, cpus: CpuSet) -> None:
        """Takes CPUs offline or online: v1 forgets those that went offline, v2 does not. A v1 group
        that loses its last CPU gets its parent's."""
        self.cpus["/"] = cpus
        if self.version == 1:
            for group in sorted(self.cpus, key=lambda each: each.count("/")):
                own = self.cpus[group]
                if own and group != "/":
                    self.cpus[group] = (own & cpus) or self.cpus[posixpath.dirname(group)]

    def _own(self, group: str) -> CpuSet:
        if group not in self.cpus:
            raise _error(errno.ENOENT)
        return self.cpus[group]

    def _populated(self, group: str) -> bool:
        return any(
            count and f"{each}/".startswith(f"{group}/") for each, count in self.processes.items()
        )


class ModelFiles(Handles):
    """The files of a model kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def read(self, path: str) -> bytes:
        group, name = posixpath.split(path)
        own = name == "cpuset.cpus"
        cpus = self.kernel.cpus.get(group or "/") if own else self.kernel.effective(group or "/")
        if cpus is None or (own and not group and self.kernel.version == 2):
            raise _error(errno.ENOENT)
        return f"{cpus}\n".encode()

    def write(self, path: str, data: bytes) -> None:
        self.kernel.write(posixpath.dirname(path) or "/", data.decode())


class ModelHierarchy(Hierarchy):
    """Real reads and writes, on a model kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.version = 1 if kernel.version == 1 else 2
        self.path = ""
        self.proc = "/nowhere"
        self.handles = ModelFiles(kernel)

    def children(self, group: str) -> tuple[str, ...]:
        return tuple(sorted(self.kernel.children(group)))

    def exists(self, group: str) -> bool:
        return group in self.kernel.cpus


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def related(a: str, b: str) -> bool:
    """Whether one group is the other, or an ancestor of it."""
    return f"{a}/".startswith(f"{b}/") or f"{b}/".startswith(f"{a}/")
