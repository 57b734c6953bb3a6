"""Where the host's own processes run while owners ask for quiet CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpu.cpuset import CpuSet


class HostGroup(msgspec.Struct, frozen=True):
    """A group of processes that is not a pod's."""

    cpus: CpuSet
    """Its own CPUs without the agent; empty if it inherits."""
    has_pods: bool = False
    """Whether groups in it are those of pods, so that it must keep its CPUs."""


def narrowed(groups: Mapping[str, HostGroup], left: CpuSet) -> dict[str, CpuSet]:
    """The CPUs of each group of the host: those of its own that are left, else all that are left to
    the group above it. A group in which there are pods is not among them, nor is one in it if that
    has none of the CPUs that are left.

    `groups`: has each group above one of these, except `/`."""
    rooms = {"": left}
    wanted = {}
    for name in sorted(groups, key=lambda each: each.count("/")):
        group, room = groups[name], rooms[name.rpartition("/")[0]]
        own = group.cpus & room
        if group.has_pods:
            rooms[name] = own if group.cpus else room
        else:
            rooms[name] = own or room
            if room:
                wanted[name] = rooms[name]
    return wanted


def stuck(groups: Mapping[str, HostGroup], wanted: Mapping[str, CpuSet]) -> tuple[str, ...]:
    """The groups that stay where they are, because the group above has no CPU that is left."""
    return tuple(
        name for name, group in groups.items() if not group.has_pods and name not in wanted
    )
