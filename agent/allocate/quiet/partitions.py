"""Which cgroups become isolated cpuset partitions (Documentation/admin-guide/cgroup-v2.rst).

A partition takes its CPUs from all groups outside of it, and the groups beside it must not name
them. If everything in a pod runs on the pod's own CPUs, the pod's group is the partition: new
containers begin in it. If sidecars or the pause container run elsewhere, each container with own
CPUs is one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union


class OwnerGroups(msgspec.Struct, frozen=True):
    """An owner that asks for partitions."""

    title: str
    pod: str
    """The pod's group."""
    containers: Mapping[str, CpuSet]
    """By group, the running containers with own CPUs."""
    own: CpuSet
    """The own CPUs of all its containers, also of those that do not run yet."""
    others: tuple[CpuSet | None, ...] = ()
    """The CPUs of its pause and other containers; None for one whose CPUs the agent does not
    set."""
    refused: str = ""
    """Why its CPUs can't be isolated; "" for no reason."""


class IsolatedGroups(msgspec.Struct, frozen=True):
    """The groups that become partitions, and sentences about owners that get none."""

    groups: Mapping[str, CpuSet] = {}
    refusals: tuple[str, ...] = ()


def isolation(owners: Collection[OwnerGroups]) -> IsolatedGroups:
    """The partitions of these owners. They are disjoint: of two pods with the same CPUs neither is
    isolated."""
    groups: dict[str, CpuSet] = {}
    refusals = []
    for owner in owners:
        shared = owner.own & union(other.own for other in owners if other is not owner)
        if owner.refused:
            refusals.append(f"{owner.title}: {owner.refused}")
        elif shared:
            refusals.append(f"{owner.title}: another pod has the CPUs {shared} too")
        elif all(cpus is not None and cpus <= owner.own for cpus in owner.others):
            groups[owner.pod] = owner.own
        elif _overlap(owner):
            refusals.append(
                f"{owner.title}: its containers share CPUs {_overlap(owner)}, and something in the "
                "pod runs elsewhere"
            )
        else:
            groups.update(owner.containers)
    return IsolatedGroups(groups, tuple(refusals))


def _overlap(owner: OwnerGroups) -> CpuSet:
    """The CPUs of more than one container of which one has CPUs of its own."""
    taken, overlap = union(cpus or EMPTY for cpus in owner.others), EMPTY
    for cpus in owner.containers.values():
        overlap |= taken & cpus
        taken |= cpus
    return overlap
