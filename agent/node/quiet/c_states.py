"""The CPUs of owners use no idle state that takes longer to leave than the owner accepts
(Documentation/admin-guide/pm/cpuidle.rst, "Power Management Quality of Service for CPUs").

Two mechanisms exist. The constraint on the latency of a CPU is one value of one file, which means
the same on each machine, and which CRI-O writes too; each governor of cpuidle chooses by it among
the states that the CPU has at that moment. The switches of single states (`cpuidle/stateN/disable`)
would be a file for each state, and a driver that comes later has new ones; so they stay alone."""

from __future__ import annotations

from typing import Final

from agent.cgroup.limits import RESUME_LATENCY
from agent.host.files import Tree
from agent.node.features import Key, WantedFiles
from agent.node.quiet.moment import QuietMoment

_DRIVER: Final = "sys/devices/system/cpu/cpuidle/current_driver"
_NO_LATENCY: Final = "n/a"
"""0 means that every latency is accepted."""


class CStates:
    """`root`: is where the host's files are."""

    name = "c-states"

    def __init__(self, root: str) -> None:
        self._files = Tree(root)

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        latencies: dict[int, int] = {}
        for owner in moment.asking(self.name):
            for cpu in owner.cpus:
                latency_us = owner.wishes.latency_us
                latencies[cpu] = min(latency_us, latencies.get(cpu, latency_us))
        if not latencies:
            return WantedFiles()
        if (self._files.text(_DRIVER) or "none") == "none":
            return WantedFiles(problem="this machine has no cpuidle")
        files: dict[Key, str] = {
            (f"/cpu{cpu}", RESUME_LATENCY): str(latency_us or _NO_LATENCY)
            for cpu, latency_us in latencies.items()
        }
        return WantedFiles(files)
