"""Pods and containers that the proxy announced and the runtime does not list yet."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from agent.hooks.requests import announced
from agent.model.doorbell import ContainerComes, PodComes
from agent.model.pods import Pod

PATIENCE_SECONDS = 300.0
"""How long an announced pod keeps its claim: a kubelet gives RunPodSandbox 4 minutes."""


class Announced:
    """Keeps a pod from its ring until the runtime lists it, its sandbox failed or patience ends."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[Pod, float]] = {}

    def add(self, ring: PodComes, now_seconds: float, wall_nanoseconds: int) -> None:
        """A pod that rings again keeps its first moment, so its rank among others stays."""
        known = self._pods.get(ring.uid)
        created_at = known[0].created_at if known else wall_nanoseconds
        self._pods[ring.uid] = announced(ring, created_at), now_seconds + PATIENCE_SECONDS

    def drop(self, uid: str) -> None:
        """Its sandbox did not come to be."""
        self._pods.pop(uid, None)

    def missing_from(self, listed: Collection[str], now_seconds: float) -> tuple[Pod, ...]:
        """The announced pods whose uid is not listed; the others, and late ones, are forgotten."""
        self._pods = {
            uid: (pod, until)
            for uid, (pod, until) in self._pods.items()
            if uid not in listed and until > now_seconds
        }
        return tuple(pod for pod, _ in self._pods.values())


class AnnouncedContainer(msgspec.Struct, frozen=True):
    """`created_at` (of its first ring) in nanoseconds since 1970."""

    uid: str
    name: str
    shares: int
    created_at: int


class AnnouncedContainers:
    """Keeps a container from its ring until the runtime has it, its creation failed or patience
    ends."""

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str], tuple[AnnouncedContainer, float]] = {}

    def add(self, ring: ContainerComes, now_seconds: float, wall_nanoseconds: int) -> None:
        """One that rings again keeps its first moment."""
        key = ring.pod.uid, ring.name
        known = self._containers.get(key)
        created_at = known[0].created_at if known else wall_nanoseconds
        container = AnnouncedContainer(*key, ring.shares, created_at)
        self._containers[key] = container, now_seconds + PATIENCE_SECONDS

    def drop(self, uid: str, name: str) -> None:
        """It did not come to be."""
        self._containers.pop((uid, name), None)

    def missing_from(
        self, pods: Collection[Pod], now_seconds: float
    ) -> tuple[AnnouncedContainer, ...]:
        """Those of these pods that none of them has; the others, and late ones, are forgotten."""
        present = {(pod.uid, each.name) for pod in pods for each in pod.containers}
        uids = {pod.uid for pod in pods}
        self._containers = {
            key: (container, until)
            for key, (container, until) in self._containers.items()
            if key not in present and key[0] in uids and until > now_seconds
        }
        return tuple(container for container, _ in self._containers.values())
