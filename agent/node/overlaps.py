"""Which pods run on which CPUs, and which containers run on CPUs that another pod owns."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.pools import Decision
from agent.allocate.shares import sidecars
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.pods import ContainerState, Pod
from agent.model.qos import QoS
from agent.model.snapshot import Owner


class ContainerOverlap(msgspec.Struct, frozen=True):
    """Container `container_id` of pod `title` holds `cpus` that pod `owner` owns."""

    container_id: str
    title: str
    owner: str
    owner_uid: str
    cpus: str


def find(
    pods: tuple[Pod, ...], owners: tuple[Owner, ...], holds: Mapping[str, CpuSet]
) -> tuple[ContainerOverlap, ...]:
    """`holds`: by container id, the CPUs that it holds or will start with; containers that are
    missing there are ignored."""
    owned = [(owner, owner.cpus) for owner in owners]
    found = []
    for pod in pods:
        for container in pod.containers:
            cpus = holds.get(container.id)
            if cpus is None:
                continue
            for owner, own in owned:
                if may_hold(pod.uid, pod.qos, owner):
                    continue
                if common := cpus & own:
                    found.append(
                        ContainerOverlap(
                            container.id, pod.title, owner.title, owner.uid, str(common)
                        )
                    )
    return tuple(found)


def may_hold(uid: str, qos: QoS, owner: Owner) -> bool:
    """Whether a pod may run on an owner's CPUs."""
    return owner.uid == uid or (qos is QoS.BE and owner.qos is not QoS.LSE)


def started(pods: tuple[Pod, ...]) -> frozenset[str]:
    """The uids of pods with a running container."""
    return frozenset(
        pod.uid
        for pod in pods
        if any(each.state is ContainerState.RUNNING for each in pod.containers)
    )


def settled(decision: Decision, before: Mapping[str, CpuSet]) -> tuple[Owner, ...]:
    """The owners without the CPUs that this decision adds to running pods: other containers may
    still run there. `before`: by pod uid, the CPUs of the last decision's owners. A new owner has
    its CPUs before it starts, except under a node-local policy."""
    local = {each.uid for each in decision.local_owners}
    found = []
    for owner in decision.owners:
        first = EMPTY if owner.uid in local else owner.cpus
        cpus = owner.cpus & before.get(owner.uid, first)
        found.append(msgspec.structs.replace(owner, cpuset=str(cpus)))
    return tuple(found)


def running_on(pods: tuple[Pod, ...], holds: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """By pod uid, the CPUs of its running containers, without side-cars that stay in a pool."""
    running = {}
    for pod in pods:
        aside = sidecars(pod)
        running[pod.uid] = union(
            holds[each.id]
            for each in pod.containers
            if each.state is ContainerState.RUNNING and each.id in holds and each.name not in aside
        )
    return {uid: cpus for uid, cpus in running.items() if cpus}
