"""Unbound kernel work leaves the CPUs of owners: the mask of all workqueues. A workqueue that has a
mask of its own runs on what both have, and on the first alone if they have nothing in common, so
that is not written (Documentation/core-api/workqueue.rst; kernel/workqueue.c,
wqattrs_actualize_cpumask)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, GroupGone
from agent.cgroup.journal import OriginalValue
from agent.cgroup.limits import WORKQUEUE_CPUS
from agent.cgroup.machine_files import MachineFiles
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.node.features import Key, WantedFiles
from agent.node.quiet.moment import QuietMoment

_MASK: Final[Key] = ("/", WORKQUEUE_CPUS)


class Workqueues:
    """`root`: is where the host's files are.
    `entry`: returns the entry of a file in the journal."""

    name = "workqueues"

    def __init__(self, root: str, entry: Callable[[str, str], OriginalValue | None]) -> None:
        self._files = MachineFiles(root)
        self._entry = entry

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        if not moment.quiet(self.name):
            return WantedFiles()
        left = moment.left(self.name)
        if not left:
            return WantedFiles(problem="owners have all CPUs, and unbound work needs some")
        try:
            text = self._files.read(*_MASK)
            entry = self._entry(*_MASK)
            original = CpuSet.parse(text if entry is None else limits.original(entry, text))
        except GroupGone:
            return WantedFiles(problem=f"this kernel has no {self._files.path(*_MASK)}")
        except CgroupError:  # which the write has, too
            original = EMPTY
        return WantedFiles({_MASK: str(original & left or left)})
