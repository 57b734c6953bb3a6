"""From what a runtime tells of a container to its cpuset cgroup."""

from __future__ import annotations

from agent.cgroup import names
from agent.cgroup.hierarchy import Hierarchy
from agent.runtime.cri import Placement


def group_of(hierarchy: Hierarchy, placement: Placement) -> str | None:
    """Where its spec says, else where its process is; None while there is neither.

    Raises CgroupError for a process whose groups can't be read.
    """
    named = names.from_cgroups_path(placement.cgroups_path)
    if named is not None and hierarchy.exists(named):
        return named
    return hierarchy.group_of(placement.pid) if placement.pid else None
