"""Unbound kernel work leaves the CPUs of owners: the mask of all workqueues. A workqueue that has a
mask of its own runs on what both have, and on the first alone if they have nothing in common, so
that is not written (Documentation/core-api/workqueue.rst; kernel/workqueue.c,
wqattrs_actualize_cpumask)."""

from __future__ import annotations

import os
from typing import Final

from agent.cgroup.machine_files import WORKQUEUE_CPUS
from agent.node.features import Key, WantedFiles
from agent.node.quiet.moment import QuietMoment

_ALL: Final = "/"


class Workqueues:
    """`root`: is where the host's files are."""

    name = "workqueues"

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, "sys/devices/virtual/workqueue/cpumask")

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        if not moment.quiet(self.name):
            return WantedFiles()
        if not os.path.exists(self._path):
            return WantedFiles(problem=f"this kernel has no {self._path}")
        left = moment.left(self.name)
        if not left:
            return WantedFiles(problem="owners have all CPUs, and unbound work needs some")
        files: dict[Key, str] = {(_ALL, WORKQUEUE_CPUS): str(left)}
        return WantedFiles(files)
