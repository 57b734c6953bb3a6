"""Pods that claim CPUs of a node: in which order they are heard, and who has its CPUs already."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.pods import Pod
from agent.model.qos import QoS


class Claimant(msgspec.Struct, frozen=True):
    """`keeps`: it owned these CPUs, or it runs on exactly them and nobody does who may not share
    them. `keeps_reserved`: and not just because they are the pool that it would share."""

    pod: Pod
    wish: CpuSet
    keeps: bool
    keeps_reserved: bool


class Places(msgspec.Struct, frozen=True):
    """Where pods run while nobody owns CPUs: what all but SYSTEM pods share, and what these do
    (empty: the same)."""

    online: CpuSet
    shared: CpuSet
    system: CpuSet

    def of(self, pod: Pod) -> CpuSet:
        """Where the pod runs."""
        return (self.system if pod.qos is QoS.SYSTEM else EMPTY) or self.shared


def in_order(
    claims: Collection[tuple[Pod, CpuSet]],
    places: Places,
    pods: Collection[Pod],
    owned_before: Mapping[str, CpuSet],
    running_on: Mapping[str, CpuSet],
) -> list[Claimant]:
    """Who owned its CPUs before, or some of them, or runs on them already, first, then the older
    pod."""
    online = places.online

    def ranked(pod: Pod, wish: CpuSet) -> tuple[tuple[bool, bool, bool, bool, int, str], Claimant]:
        owned = wish & online <= owned_before.get(pod.uid, EMPTY)
        runs = running_on.get(pod.uid) == wish & online
        alone = runs and not wish & union(
            running_on.get(other.uid, EMPTY)
            for other in pods
            if other.uid != pod.uid and (other.qos is not QoS.BE or pod.qos is QoS.LSE)
        )
        proven = owned or (alone and not shares(pod, wish & online))
        had = bool(wish & owned_before.get(pod.uid, EMPTY))
        rank = (not owned, not had, not alone, not runs, pod.created_at, pod.uid)
        return rank, Claimant(pod, wish, owned or alone, proven)

    def shares(pod: Pod, place: CpuSet) -> bool:
        """Whether the pod would run there too if it owned nothing."""
        owned = union(
            wish
            for other, wish in claims
            if running_on.get(other.uid) == wish & online and not wish & place
            if pod.qos is not QoS.BE or other.qos is QoS.LSE
        )
        return place == places.of(pod) - owned

    ordered = sorted((ranked(*claim) for claim in claims), key=lambda each: each[0])
    return [claimant for _, claimant in ordered]
