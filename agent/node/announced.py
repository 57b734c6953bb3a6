"""Pods that the proxy announced and the runtime does not list yet."""

from __future__ import annotations

from collections.abc import Collection

from agent.hooks.requests import announced
from agent.model.doorbell import PodComes
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
