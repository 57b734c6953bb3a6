"""From what a runtime tells of a container to its cpuset cgroup."""

from __future__ import annotations

from agent.cgroup import names
from agent.cgroup.hierarchy import Hierarchy
from agent.runtime.cri import Placement


class Locator:
    """Where its spec says, else by the names that runtimes give, else where its process is."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy

    def group_of(self, container_id: str, placement: Placement, cgroup_parent: str) -> str | None:
        """None while it has no group. Raises CgroupError for a process that can't be read."""
        named = names.from_cgroups_path(placement.cgroups_path)
        candidates = names.container_groups(cgroup_parent, container_id)
        for group in (*((named,) if named else ()), *candidates):
            if self._hierarchy.exists(group):
                return group
        return self._hierarchy.group_of(placement.pid) if placement.pid else None
