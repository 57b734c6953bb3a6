"""Groups of a test in the cgroups of this machine, with helpers that do not use the code under
test."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from agent.model.cpu.cpuset import CpuSet


class RealGroups:
    """Groups below `top` in the hierarchies of some controllers."""

    def __init__(self, mounts: Mapping[str, tuple[int, str]], top: str = "") -> None:
        """`mounts`: the version and the path of each controller's hierarchy; `top`: by default a
        new name."""
        self.top = top or f"/topolet-test-{uuid.uuid4().hex[:8]}"
        self.processes: list[subprocess.Popen[str]] = []
        self._mounts = mounts
        self._folders: list[Path] = []
        self.make()

    def make(self, name: str = "", cpus: CpuSet | None = None) -> str:
        """A group with these CPUs: by default its parent's on v1, inheriting on v2. Below a group
        with processes, v2 lets it have no controller."""
        group = self.top + name
        for controller, (version, path) in self._mounts.items():
            folder = Path(path + group)
            if version == 2 and not (name and (folder.parent / "cgroup.procs").read_text()):
                (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
            if not folder.exists():
                folder.mkdir()
                self._folders.append(folder)
            if version == 1 and controller == "cpuset":
                for file in ("cpuset.mems", "cpuset.cpus"):
                    (folder / file).write_text((folder.parent / file).read_text())
        if cpus is not None:
            self.path(group, "cpuset.cpus").write_text(str(cpus))
        return group

    def path(self, group: str, file: str) -> Path:
        _, path = self._mounts[file.partition(".")[0]]
        return Path(path + group, file)

    def own(self, group: str) -> CpuSet:
        return CpuSet.parse(self.path(group, "cpuset.cpus").read_text())

    def process(self, group: str, *command: str) -> subprocess.Popen[str]:
        """A process in the group, by default one that sleeps."""
        enter = "".join(
            f"echo $$ >{path}{group}/cgroup.procs && " for _, path in self._mounts.values()
        )
        process = subprocess.Popen(
            ["sh", "-c", f'{enter} echo in && exec "$@"', "sh", *(command or ("sleep", "1000"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        return process

    def remove(self, group: str) -> None:
        for folder in [each for each in self._folders if str(each).endswith(group)]:
            os.rmdir(folder)
            self._folders.remove(folder)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for folder in reversed(self._folders):
            os.rmdir(folder)
