"""Announced pods and containers: a frontend has reported them, and the runtime does not list them
yet."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from agent.hooks.requests import announced
from agent.model.notifications import ContainerAnnounced, PodAnnounced
from agent.model.pods import Pod

PATIENCE_SECONDS = 300.0
"""An announced pod keeps its claim for so long: a kubelet gives RunPodSandbox 4 minutes."""
MOST = 256
"""Kept pods, and containers: a kubelet makes a few at a time. The oldest are dropped first."""


class Announced:
    """Keeps a pod from its notification until the runtime lists it, its sandbox fails or
    PATIENCE_SECONDS pass."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[Pod, float]] = {}

    def add(self, notification: PodAnnounced, now_seconds: float, wall_nanoseconds: int) -> None:
        """A repeated notification keeps the first time, so that the pod's order among others
        stays."""
        known = self._pods.get(notification.uid)
        created_at = known[0].created_at if known else wall_nanoseconds
        self._pods[notification.uid] = (
            announced(notification, created_at),
            now_seconds + PATIENCE_SECONDS,
        )
        if len(self._pods) > MOST:
            del self._pods[next(iter(self._pods))]

    def drop(self, uid: str) -> None:
        """The sandbox failed."""
        self._pods.pop(uid, None)

    def missing_from(self, listed: Collection[str], now_seconds: float) -> tuple[Pod, ...]:
        """The announced pods that are not listed. Drops the others, and those that took too
        long."""
        self._pods = {
            uid: (pod, until)
            for uid, (pod, until) in self._pods.items()
            if uid not in listed and until > now_seconds
        }
        return tuple(pod for pod, _ in self._pods.values())


class AnnouncedContainer(msgspec.Struct, frozen=True):
    """`created_at` (of its first notification) in nanoseconds since 1970."""

    uid: str
    name: str
    shares: int
    created_at: int


class AnnouncedContainers:
    """Keeps a container from its notification until the runtime lists it, its creation fails or
    PATIENCE_SECONDS pass."""

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str], tuple[AnnouncedContainer, float]] = {}

    def add(
        self, notification: ContainerAnnounced, now_seconds: float, wall_nanoseconds: int
    ) -> None:
        """A repeated notification keeps the first time."""
        key = notification.pod.uid, notification.name
        known = self._containers.get(key)
        created_at = known[0].created_at if known else wall_nanoseconds
        container = AnnouncedContainer(*key, notification.shares, created_at)
        self._containers[key] = container, now_seconds + PATIENCE_SECONDS
        if len(self._containers) > MOST:
            del self._containers[next(iter(self._containers))]

    def drop(self, uid: str, name: str) -> None:
        """The creation failed."""
        self._containers.pop((uid, name), None)

    def missing_from(
        self, pods: Collection[Pod], now_seconds: float
    ) -> tuple[AnnouncedContainer, ...]:
        """The announced containers of these pods that none of them has. Drops the others, and those
        that took too long."""
        present = {(pod.uid, each.name) for pod in pods for each in pod.containers}
        uids = {pod.uid for pod in pods}
        self._containers = {
            key: (container, until)
            for key, (container, until) in self._containers.items()
            if key not in present and key[0] in uids and until > now_seconds
        }
        return tuple(container for container, _ in self._containers.values())
