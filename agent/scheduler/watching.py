"""Joins the API server's watches to the cluster's state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from agent.host.periodic import Periodic
from agent.kube import kinds, wire
from agent.kube.discovery import Discovery
from agent.kube.errors import StoreError
from agent.kube.kinds import Kind
from agent.kube.listwatch import ListWatch
from agent.kube.mirror import Read
from agent.kube.objects import Change, Changed, ChangeKind
from agent.kube.pace import Pace
from agent.kube.transport import Transport
from agent.scheduler import decoders
from agent.scheduler.cluster import Cluster
from agent.scheduler.readings import Agents, PodReading

T = TypeVar("T")
log = logging.getLogger(__name__)

# How often it is looked whether a kind that was not there has come, or one that failed has gone.
LOOK_SECONDS: Final = 10.0
# So long a watch may take to tell of what is there already, before all is listed anew.
PATIENCE_SECONDS: Final = 2.0


class KindWatch(Generic[T]):
    """Follows a kind that may not be there, may come, go, and change its version: then all of it
    is told as deleted and added again."""

    def __init__(
        self,
        transport: Transport,
        discovery: Discovery,
        kind: Kind,
        read: Read[T],
        changed: Changed[T],
        pace: Pace,
    ) -> None:
        self._transport = transport
        self._discovery = discovery
        self._kind = kind
        self._read = read
        self._changed = changed
        self._pace = pace
        self._watch: ListWatch[T] | None = None
        self._version: str | None = None
        self._looked = False
        self._trouble: str | None = None

    @property
    def synced(self) -> bool:
        """All that existed has been told, be it that there is no such kind."""
        return self._looked and (self._watch is None or self._watch.synced)

    @property
    def trouble(self) -> str | None:
        watch = self._watch
        return self._trouble or (watch.trouble if watch is not None else None)

    def look(self) -> None:
        """Begins, ends or goes on. Never raises."""
        if self._watch is None or self._watch.trouble is not None:
            self._discovery.forget(self._kind)
        try:
            version = self._discovery.version(self._kind)
        except StoreError as error:
            self._trouble = f"{self._kind.plural}: {error}"
            return
        self._trouble = None
        if version != self._version:
            self._end()
            self._begin(version)
        self._looked = True

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def _begin(self, version: str | None) -> None:
        self._version = version
        if version is None:
            log.info("the API server has no %s", self._kind.plural)
            return
        path = kinds.path(self._kind.group, version, self._kind.plural)
        self._watch = ListWatch(
            self._transport, path, {}, self._read, self._changed, pace=self._pace
        )
        self._watch.start()

    def _end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
            gone = watch.objects().items()
            self._changed([Change(ChangeKind.DELETED, key, value) for key, value in gone])


class Watching:
    """Everything that a scheduler follows, on threads of its own."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        agents: Agents | None = None,
        *,
        pods_changed: Changed[PodReading] | None = None,
        pace: Pace | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`pods_changed` is told after the cluster."""
        pace = pace or Pace()
        discovery = Discovery(transport)
        pods, nodes = (kinds.path("", "v1", each.plural) for each in (kinds.POD, kinds.NODE))
        read_pod = decoders.pods(agents or Agents())
        self._transport = transport
        self._pods_path = pods

        def told(changes: Sequence[Change[PodReading]]) -> None:
            cluster.pods_changed(changes)
            if pods_changed is not None:
                pods_changed(changes)

        self._pods = ListWatch(transport, pods, {}, read_pod, told, pace=pace)
        self._nodes = ListWatch(
            transport, nodes, {}, decoders.node, cluster.nodes_changed, pace=pace
        )
        self._kinds: tuple[KindWatch[Any], ...] = (
            KindWatch(
                transport,
                discovery,
                kinds.TOPOLOGY,
                decoders.topology,
                cluster.topologies_changed,
                pace,
            ),
            KindWatch(
                transport,
                discovery,
                kinds.DEVICE,
                decoders.devices,
                cluster.devices_changed,
                pace,
            ),
        )
        self._looking = Periodic("kinds", look_seconds, self._look)

    @property
    def synced(self) -> bool:
        """Whether all that existed has been told."""
        return self._pods.synced and self._nodes.synced and all(each.synced for each in self._kinds)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why something can't be told now."""
        return tuple(each.trouble for each in self._all() if each.trouble is not None)

    def start(self) -> None:
        self._pods.start()
        self._nodes.start()
        self._looking.start()

    def stop(self) -> None:
        self._looking.stop()
        for each in self._all():
            each.stop()

    def catch_up(self, wait: Callable[[float], bool]) -> bool:
        """Returns True when every pod has been told that was bound before the call; False where
        `wait`, which pauses for so many seconds, says to give up. Raises StoreError."""
        now = self._pods_version()
        waited, syncs = 0.0, None
        while not self._reached(now) and (syncs is None or self._pods.syncs <= syncs):
            if waited >= PATIENCE_SECONDS and self._pods.synced and syncs is None:
                # No event has come since; it may be long until one does.
                syncs = self._pods.syncs
                self._pods.resync()
            if wait(_STEP_SECONDS):
                return False
            waited += _STEP_SECONDS
        return True

    def _all(self) -> tuple[ListWatch[Any] | KindWatch[Any], ...]:
        return (self._pods, self._nodes, *self._kinds)

    def _pods_version(self) -> str:
        """As of now: not from the server's memory."""
        asked = f"GET {self._pods_path}"
        page = wire.page(asked, self._transport.get(self._pods_path, {"limit": 1}))
        return page.metadata.resource_version

    def _reached(self, version: str) -> bool:
        told = self._pods.version
        return self._pods.synced and told is not None and wire.not_newer(version, told)

    def _look(self) -> None:
        for each in self._kinds:
            each.look()


_STEP_SECONDS: Final = 0.02
