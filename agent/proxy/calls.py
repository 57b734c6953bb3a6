"""What the gate remembers of a call, from its arrival to its reply."""

from __future__ import annotations

import time
from typing import Final

from agent.hooks import requests
from agent.model.doorbell import ContainerFailed, Look, Ring
from agent.proxy.bell import Bell

RING_AGAIN_SECONDS: Final = 0.1


class Creation:
    """One CreateContainer from its arrival to its reply."""

    def __init__(self, request: requests.CreateContainer) -> None:
        self.request = request
        self.pod_title = f"pod {request.pod.namespace}/{request.pod.name}"
        self.qos = requests.announced(request.pod, 0).qos
        """For the failure policy: LSR also where a node-local policy gives the container CPUs."""
        self.grant: int | None = None
        self.kept: tuple[str, ...] = ()
        self.waiting = Waiting()
        self.announced = False
        """Whether the agent holds CPUs for the container alone."""

    def failed(self) -> Ring:
        """What the agent hears when it does not come to be."""
        pod = self.request.pod
        return ContainerFailed(pod.uid, self.request.container_name) if self.announced else Look()


class Waiting:
    """A held call, which rings the agent again and again but not at every question."""

    def __init__(self) -> None:
        self._rung_at = 0.0

    def ring(self, bell: Bell, ring: Ring) -> None:
        now = time.monotonic()
        if now - self._rung_at >= RING_AGAIN_SECONDS:
            self._rung_at = now
            bell.ring(ring)


class Update:
    """One UpdateContainerResources from its arrival to its reply."""

    def __init__(self, request: requests.UpdateContainer) -> None:
        self.request = request
        self.waiting = Waiting()


class Ending:
    """A container or sandbox that stops or goes, or a sandbox that changes: nothing is rewritten,
    and the agent looks when it is done. `removed`: the container that is gone then."""

    def __init__(self, removed: str) -> None:
        self.removed = removed


class Unread:
    """A CreateContainer that goes on though its hook could not do its work; `grant` stands for
    whatever CPUs it may hold."""

    def __init__(self, grant: int) -> None:
        self.grant = grant
