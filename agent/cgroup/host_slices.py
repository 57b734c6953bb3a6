"""The CPUs of the host's groups (`slice.cpus`): the same file as a pod's `cpuset.cpus`, with a name
of its own, because features write it and passes do not.

The file is written where systemd is the first process, too. An agent in a pod reaches no D-Bus of
the host, and systemd (as 252) takes back what `AllowedCPUs=` has set by an empty write, which the
kernel refuses for a group with processes. What systemd writes when a unit changes, or after
`systemctl daemon-reload`, is another program's value: it counts as the original one, and the agent
writes again when it looks next."""

from __future__ import annotations

from agent.cgroup.hierarchy import Hierarchy
from agent.model.cpu.cpuset import CpuSet


class SliceCpus:
    """`slice.cpus` of the groups of a machine. It keeps nothing."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy

    def look(self) -> None:
        """Each read is of that moment."""

    def has(self, group: str, file: str) -> bool:
        return self._hierarchy.exists(group)

    def read(self, group: str, file: str) -> str:
        """Empty for a v2 group that inherits. Raises CgroupError, GroupGone."""
        return str(self._hierarchy.own_cpus(group))

    def write(self, group: str, file: str, text: str) -> None:
        """Raises CgroupError, GroupGone, and ValueError for an empty set on v1."""
        cpus = CpuSet.parse(text)
        if cpus or self._hierarchy.version == 1:
            self._hierarchy.write(group, cpus)
        else:
            self._hierarchy.inherit(group)
