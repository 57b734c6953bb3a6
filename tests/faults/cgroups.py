"""The cpuset groups of a simulated node: real ones of this machine, or plain files of a larger one.

Plain files accept every write; `illegal` checks the rules. Each file has a fixed size, so that one
write replaces its value, as in the kernel.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from agent.cgroup.hierarchy import CPUS, MEMS, Hierarchy
from agent.model.cpu.cpuset import EMPTY, CpuSet

FILE_BYTES = 128


class PlainCgroups:
    """Plain files of cgroup v1 or v2. `cpus`: the CPUs of the machine."""

    def __init__(self, root: Path, version: int, cpus: CpuSet) -> None:
        self.version = version
        self.root = root
        """The agent's setting for the mount."""
        self.path = root / "cpuset" if version == 1 else root
        self.top = ""
        self.path.mkdir(parents=True)
        if version == 2:
            (root / "cgroup.controllers").write_text("cpuset\n")
        (self.path / CPUS).write_bytes(padded(f"{cpus}\n".encode()))

    def make(self, group: str, cpus: CpuSet | None = None, *, process: bool = False) -> CpuSet:
        """Creates a group as a runtime does: on v1 with its parent's values, or with `cpus`.
        Returns the group's own value."""
        parent = group.rpartition("/")[0]
        own = cpus if cpus is not None else self.own(parent) if self.version == 1 else EMPTY
        # The rename makes the group visible only when its value exists.
        folder = self.path / group[1:]
        hidden = folder.with_name(f".{folder.name}")
        hidden.mkdir()
        (hidden / CPUS).write_bytes(padded(f"{own}\n".encode()))
        hidden.rename(folder)
        return own

    def set(self, group: str, cpus: CpuSet) -> None:
        """Writes the value as a runtime does on an update; ignores errors."""
        with contextlib.suppress(OSError), open(self.path / group[1:] / CPUS, "r+b", 0) as file:
            file.write(padded(f"{cpus}\n".encode()))

    def remove(self, group: str) -> None:
        folder = self.path / group[1:]
        deleted = folder.with_name(f".{folder.name}")
        folder.rename(deleted)
        (deleted / CPUS).unlink()
        deleted.rmdir()

    def own(self, group: str) -> CpuSet:
        return CpuSet.parse((self.path / group[1:] / CPUS).read_text())

    def effective(self, group: str) -> CpuSet:
        """The CPUs that the kernel would allow to its processes."""
        return effective(self.path, self.version, group)

    def groups(self) -> list[str]:
        """The node's groups; parents come before children."""
        found = (f"/{Path(folder).relative_to(self.path)}" for folder, _, _ in os.walk(self.path))
        return sorted(each for each in found if each.startswith(f"{self.top}/") and each != "/.")

    def illegal(self) -> list[str]:
        """Groups with values that the kernel would not have accepted. v2 refuses nothing."""
        if self.version == 2:
            return []
        return [
            f"{group} has '{own}' in '{parent}'"
            for group in self.groups()
            if not (own := self.own(group))
            or not own <= (parent := self.own(group.rpartition("/")[0]))
        ]

    def close(self) -> None:
        """Removes the folder."""


class RealCgroups:
    """Real cgroups below one group of the tests, with a sleeping process in each container."""

    def __init__(self, name: str) -> None:
        self._kernel = Hierarchy()
        self.version = self._kernel.version
        self.path = Path(self._kernel.path)
        self.root = Path("/sys/fs/cgroup")
        self.top = f"/{name}"
        self.cpus = self._kernel.effective_cpus("/")
        self._sleepers: dict[str, int] = {}
        self._made: list[str] = []
        self.make(self.top)

    def make(self, group: str, cpus: CpuSet | None = None, *, process: bool = False) -> CpuSet:
        folder, parent = self.path / group[1:], (self.path / group[1:]).parent
        if self.version == 2 and parent != self.path:
            (parent / "cgroup.subtree_control").write_text("+cpuset")
        folder.mkdir()
        self._made.append(group)
        if self.version == 1:
            (folder / MEMS).write_text((parent / MEMS).read_text())
            (folder / CPUS).write_text((parent / CPUS).read_text())
        if cpus is not None:
            (folder / CPUS).write_text(str(cpus))
        own = self.own(group)
        if process:
            self._sleepers[group] = pid = os.posix_spawnp("sleep", ["sleep", "3600"], os.environ)
            (folder / "cgroup.procs").write_text(str(pid))
        return own

    def set(self, group: str, cpus: CpuSet) -> None:
        with contextlib.suppress(OSError):
            (self.path / group[1:] / CPUS).write_text(str(cpus))

    def remove(self, group: str) -> None:
        pid = self._sleepers.pop(group, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        (self.path / group[1:]).rmdir()
        self._made.remove(group)

    def own(self, group: str) -> CpuSet:
        return CpuSet.parse((self.path / group[1:] / CPUS).read_text())

    def effective(self, group: str) -> CpuSet:
        return self._kernel.effective_cpus(group)

    def groups(self) -> list[str]:
        return sorted(self._made)

    def illegal(self) -> list[str]:
        return []

    def close(self) -> None:
        for pid in self._sleepers.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for folder, _, _ in os.walk(self.path / self.top[1:], topdown=False):
            os.rmdir(folder)
        self._kernel.close()


Cgroups = PlainCgroups | RealCgroups


def padded(text: bytes) -> bytes:
    """The value padded to the size of every plain file."""
    return text.ljust(FILE_BYTES, b"\n")


def effective(path: Path, version: int, group: str) -> CpuSet:
    """The effective CPUs of a group in plain files below `path`; `/` and "" are the root."""
    own = CpuSet.parse((path / group[1:] / CPUS).read_text())
    if version == 1 or group in ("/", ""):
        return own
    parent = effective(path, version, group.rpartition("/")[0])
    return (own & parent) or parent
