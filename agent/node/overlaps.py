"""Containers that run on CPUs which are another pod's own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpuset import CpuSet
from agent.model.pods import ContainerState, Pod
from agent.model.qos import QoS
from agent.model.snapshot import Owner


class Overlap(msgspec.Struct, frozen=True):
    """`container_id` of pod `title` holds `cpus` that belong to pod `owner`."""

    container_id: str
    title: str
    owner: str
    owner_uid: str
    cpus: str


def find(
    pods: tuple[Pod, ...], owners: tuple[Owner, ...], holds: Mapping[str, CpuSet]
) -> tuple[Overlap, ...]:
    """`holds`: by container id, the CPUs it holds (or will start with); unknown ones are left
    out."""
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
                        Overlap(container.id, pod.title, owner.title, owner.uid, str(common))
                    )
    return tuple(found)


def may_hold(uid: str, qos: QoS, owner: Owner) -> bool:
    """Whether a pod may be on an owner's CPUs."""
    return owner.uid == uid or (qos is QoS.BE and owner.qos is not QoS.LSE)


def started(pods: tuple[Pod, ...]) -> frozenset[str]:
    """The uids of pods of which a container runs."""
    return frozenset(
        pod.uid
        for pod in pods
        if any(each.state is ContainerState.RUNNING for each in pod.containers)
    )
