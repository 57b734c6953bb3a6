"""From what a runtime tells of a container to its cpuset cgroup."""

from __future__ import annotations

import logging

from agent.cgroup import names
from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.runtime.cri import Placement

log = logging.getLogger(__name__)


class Locator:
    """Where its spec says, else by the names that runtimes give, else where its process is, if
    that place bears its name."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy

    def group_of(self, container_id: str, placement: Placement, cgroup_parent: str) -> str | None:
        """None while it has no group, or one that can't be found out."""
        named = names.from_cgroups_path(placement.cgroups_path)
        groups = [named] if named else []
        groups += names.container_groups(cgroup_parent, container_id)
        for group in groups:
            if self._hierarchy.exists(group):
                return group
        if not placement.pid:
            return None
        try:
            found = self._hierarchy.group_of(placement.pid)
        except CgroupError as error:
            log.warning("container %s: %s", container_id, error)
            return None
        # A number given to another process meanwhile, or a group that many share, is not ours.
        return found if found is not None and container_id in found else None
