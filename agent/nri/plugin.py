"""What a session asks the plugin, and what it answers: the one interface between the two."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from agent.hooks.carriers import Carried
from agent.hooks.requests import Changes, CreateContainer, UpdateContainer, Verdict
from agent.model.notifications import PodAnnounced
from agent.model.verdict import Refuse
from agent.nri.messages import NriContainer


class PluginCall:
    """One request for a container, from its first try to its answer. `budget_seconds`: how long the
    answer may be Wait, from `started` (monotonic seconds) on. Of a container to create: `mounted`:
    whether it mounts a path, `carried` reads the devices that it names. `state` is the plugin's."""

    __slots__ = ("budget_seconds", "carried", "container", "mounted", "request", "started", "state")

    def __init__(
        self,
        container: NriContainer,
        request: CreateContainer | UpdateContainer,
        budget_seconds: float,
        mounted: frozenset[str] = frozenset(),
        carried: Callable[[], Carried] = Carried,
    ) -> None:
        self.container = container
        self.mounted = mounted
        self.carried = carried
        self.request = request
        self.started = time.monotonic()
        self.budget_seconds = budget_seconds
        self.state: object = None


class Plugin(Protocol):
    """No method may block: every container of the node would wait."""

    def synchronize(self, containers: Sequence[NriContainer]) -> Mapping[str, Changes]:
        """Replaces all containers by these; returns the changes by id."""
        ...

    def pod_announced(self, pod: PodAnnounced) -> None:
        """Its sandbox was created; its containers will follow."""
        ...

    def create(self, call: PluginCall) -> Verdict:
        """Asked for each container before it is made, and again while the answer is Wait."""
        ...

    def update(self, call: PluginCall) -> Verdict:
        """Asked before a container is changed, and again while the answer is Wait."""
        ...

    def unhooked(
        self, method: str, call: PluginCall | None, reason: str, detail: str
    ) -> Refuse | None:
        """A request that went wrong in the plugin, or (without a call) can't be read, or is held
        when the plugin ends: refused, or let pass unchanged. `reason` is `hook_error`, `irregular`
        or `late`."""
        ...

    def abandoned(self, call: PluginCall) -> None:
        """The session ended while the call was held."""
        ...

    def created(self, container: NriContainer) -> None: ...

    def updated(self, container: NriContainer) -> None: ...

    def ended(self, container: NriContainer) -> None:
        """The container was stopped, removed or both, each with a call, also when it was never
        created."""
        ...


class PluginStats:
    """Counters over all sessions; `held_now` is a gauge."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.adjusted = 0
        self.refused = 0
        self.held_now = 0
        self.slowest_seconds = 0.0
