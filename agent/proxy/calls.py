"""What is remembered of a request, whatever door it came through, from its arrival to its reply."""

from __future__ import annotations

import time
from typing import Final

from agent.hooks.requests import CreateContainer, UpdateContainer, announced
from agent.model.device_allocation import DEVICE_ALLOCATED
from agent.model.doorbell import ContainerFailed, Look, Ring
from agent.proxy.bell import Bell

RING_AGAIN_SECONDS: Final = 0.1


class Waiting:
    """A request that may be held until `deadline` (monotonic seconds); while it is, it rings the
    agent again and again but not at every question."""

    def __init__(self, started: float, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self._deadline = started + patience_seconds
        self._rung_at = 0.0

    @property
    def late(self) -> bool:
        return time.monotonic() >= self._deadline

    def ring(self, bell: Bell, ring: Ring) -> None:
        now = time.monotonic()
        if now - self._rung_at >= RING_AGAIN_SECONDS:
            self._rung_at = now
            bell.ring(ring)


class Creation:
    """One container from the request to make it to what came of that."""

    def __init__(self, request: CreateContainer, waiting: Waiting) -> None:
        self.request = request
        self.waiting = waiting
        self.pod_title = f"pod {request.pod.namespace}/{request.pod.name}"
        self.qos = announced(request.pod, 0).qos
        """For the failure policy: LSR also where a node-local policy gives the container CPUs."""
        self.grant: int | None = None
        self.kept: tuple[str, ...] = ()
        self.announced = False
        """Whether the agent holds CPUs for the container alone."""

    @property
    def allocated(self) -> bool:
        """Whether a scheduler gave its pod devices."""
        return DEVICE_ALLOCATED in self.request.pod.annotations

    def failed(self) -> Ring:
        """What the agent hears when it does not come to be."""
        pod = self.request.pod
        return ContainerFailed(pod.uid, self.request.container_name) if self.announced else Look()


class Update:
    """One request to change a container, until its reply."""

    def __init__(self, request: UpdateContainer, waiting: Waiting) -> None:
        self.request = request
        self.waiting = waiting


class Unread:
    """A creation that goes on though nobody could look into it; `grant` stands for whatever CPUs
    it may hold."""

    def __init__(self, grant: int) -> None:
        self.grant = grant
