"""Reads the current limits of a group."""

from __future__ import annotations

from agent.cgroup import limits
from agent.cgroup.hierarchy import MEMS, Controller, Controllers
from agent.model.linux_resources import LinuxResources

_FILES: dict[Controller, tuple[str, ...]] = {
    "cpu": (limits.QUOTA, limits.MAX, limits.SHARES, limits.WEIGHT),
    "memory": (limits.MEMORY, limits.MEMORY_MAX),
    "cpuset": (MEMS,),
}


def current_limits(controllers: Controllers, group: str) -> LinuxResources:
    """A value is None if the machine has no file for it. Raises CgroupError or GroupGone."""
    texts = {
        file: text
        for controller, files in _FILES.items()
        if controllers.version(controller) is not None
        for file in files
        if (text := controllers.read(group, file)) is not None
    }
    return limits.parsed(controllers, group, texts)
