"""Watches a kind that a cluster may not have."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Generic, TypeVar

from agent.kube import objects
from agent.kube.errors import StoreError
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change, Changed, ChangeKind, Discovery, Kind, Read
from agent.kube.schedule import WatchPace
from agent.kube.transport import Query, Transport

T = TypeVar("T")
log = logging.getLogger(__name__)


class KindWatch(Generic[T]):
    """Watches a kind that may not exist, may be added or removed, and may change its version. When
    its version changes, all its objects are reported as deleted, and then as added.

    `select` and `first_seconds` are those of ListWatch."""

    def __init__(
        self,
        transport: Transport,
        discovery: Discovery,
        kind: Kind,
        read: Read[T],
        changed: Changed[T],
        pace: WatchPace | None = None,
        *,
        select: Query = MappingProxyType({}),
        first_seconds: float = 0.0,
    ) -> None:
        self._transport = transport
        self._discovery = discovery
        self._kind = kind
        self._read = read
        self._changed = changed
        self._pace = pace or WatchPace()
        self._select = select
        self._first_seconds = first_seconds
        self._watch: ListWatch[T] | None = None
        self._version: str | None = None
        self._discovered = False
        self._checked_at = self._pace.clock()
        self._error: str | None = None

    @property
    def resource(self) -> str:
        return self._kind.plural

    @property
    def age_seconds(self) -> float:
        """The age of the watch, as in ListWatch; for a kind that does not exist, the time since the
        API server reported this."""
        watch = self._watch
        if watch is not None:
            return watch.age_seconds
        return max(0.0, self._pace.clock() - self._checked_at)

    @property
    def watch(self) -> ListWatch[T] | None:
        """None if the kind does not exist, or if it is not known yet whether it exists."""
        return self._watch

    @property
    def synced(self) -> bool:
        """Whether all existing objects were reported, or the kind does not exist."""
        watch = self._watch
        return self._discovered and (watch is None or watch.synced)

    @property
    def problem(self) -> str | None:
        watch = self._watch
        return self._error or (watch.problem if watch is not None else None)

    def check(self) -> None:
        """Starts, stops or restarts the watch. Never raises."""
        if self._watch is None or self._watch.problem is not None:
            self._discovery.forget(self._kind)
        try:
            version = self._discovery.version(self._kind)
        except StoreError as error:
            self._error = f"{self._kind.plural}: {error}"
            return
        self._error = None
        self._checked_at = self._pace.clock()
        if version != self._version:
            self._end()
            self._begin(version)
        self._discovered = True

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def _begin(self, version: str | None) -> None:
        self._version = version
        if version is None:
            log.info("the API server has no %s", self._kind.plural)
            return
        path = objects.path(self._kind.group, version, self._kind.plural)
        self._watch = ListWatch(
            self._transport,
            path,
            self._select,
            self._read,
            self._changed,
            first_seconds=self._first_seconds,
            pace=self._pace,
        )
        self._watch.start()

    def _end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
            deleted = watch.objects().items()
            self._changed([Change(ChangeKind.DELETED, key, value) for key, value in deleted])
