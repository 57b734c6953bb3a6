"""Who runs on which CPUs, from what was seen of containers and decided before."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.pools import Decision
from agent.model.annotations import shared_containers
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.pods import ContainerState, Pod
from agent.model.snapshot import LocalOwner, Owner


def settled(decision: Decision, last: Mapping[tuple[str, str], LocalOwner]) -> tuple[Owner, ...]:
    """Owners without what a node-local policy gives them just now: there others may still run."""
    before: dict[str, CpuSet] = {}
    for each in last.values():
        before[each.uid] = before.get(each.uid, EMPTY) | CpuSet.parse(each.cpuset)
    local = {each.uid for each in decision.local_owners}
    return tuple(
        msgspec.structs.replace(owner, cpuset=str(owner.cpus & before.get(owner.uid, EMPTY)))
        if owner.uid in local
        else owner
        for owner in decision.owners
    )


def running_on(pods: tuple[Pod, ...], holds: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """Side-cars that stay on a pool say nothing of their pod's own CPUs."""
    running = {}
    for pod in pods:
        aside = shared_containers(pod.annotations)
        running[pod.uid] = union(
            holds[each.id]
            for each in pod.containers
            if each.state is ContainerState.RUNNING and each.id in holds and each.name not in aside
        )
    return {uid: cpus for uid, cpus in running.items() if cpus}
