"""Follows objects of the API server on one thread and one connection, and spares the server.

Whatever it answers, it is asked at most five times in ten seconds while there is no progress; once
it answers again, nothing was lost and nothing is told twice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Final, Generic, TypeVar

import msgspec

from agent.kube import errors, listing, wire
from agent.kube.backoff import Backoff
from agent.kube.errors import (
    GoneError,
    KubeError,
    MalformedError,
    RejectedError,
    ServerError,
    StoreError,
    UnreachableError,
)
from agent.kube.mirror import Known, Metadata, Mirror, Read
from agent.kube.objects import Change, Changed, Key
from agent.kube.pace import Pace
from agent.kube.stream import Stream
from agent.kube.transport import Query, Transport
from agent.kube.wire import Event

T = TypeVar("T")
log = logging.getLogger(__name__)

# A watch that lived so long was none that the server could not serve.
HEALTHY_SECONDS: Final = 10.0


class ListWatch(Generic[T]):
    """A Watch of what `path` lists under `select`: WatchList where it is served, else list and
    watch."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        select: Query,
        read: Read[T],
        changed: Changed[T],
        *,
        first_seconds: float = 0.0,
        pace: Pace | None = None,
    ) -> None:
        """`first_seconds`: how long to wait before the first request."""
        self._path = path
        self._select = dict(select)
        self._changed = changed
        self._first_seconds = first_seconds
        self._pace = pace or Pace()
        self._stream = Stream(transport)
        self._mirror: Mirror[T] = Mirror(read)
        self._backoff = Backoff(self._pace.random)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"watch {path}", daemon=True)
        self._version: str | None = None
        self._asked = 0
        self._lists_only = False
        self._list_next = False
        self._anew = False
        self.synced = False
        self.trouble: str | None = None
        self.syncs = 0

    def objects(self) -> dict[Key, T]:
        return self._mirror.values()

    @property
    def version(self) -> str | None:
        """The resourceVersion up to which all has been told; None while that is not known."""
        return self._version

    def resync(self) -> None:
        """From any thread: lists all anew, as of now or later; `syncs` grows when that is told."""
        self._anew = True
        self._stream.interrupt()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def run(self) -> None:
        """Until it is stopped: the body of the thread."""
        try:
            self._run()
        finally:
            self._stream.drop()

    def _run(self) -> None:
        if self._pace.wait(self._stopped, self._first_seconds):
            return
        while not self._stopped.is_set():
            asked_after: float | None = None
            if self._anew:
                self._anew, self._version = False, None
            try:
                if self._step():
                    continue
            except StoreError as error:
                if self._anew:
                    continue
                if isinstance(error, KubeError):
                    asked_after = error.retry_after_seconds
                    if _spoils_version(error):
                        self._version = None
                self._failed(error)
            if self._pace.wait(self._stopped, self._backoff.next(asked_after)):
                return

    def _step(self) -> bool:
        """The one request that is next, list or watch. True where another may follow at once."""
        self._asked += 1
        if self._version is None and (self._lists_only or self._list_next):
            self._list()
            if self._asked > 1:
                return False
            self._backoff.next()  # the pause that is left out counts
            return True
        return self._watch()

    def _failed(self, error: StoreError) -> None:
        if self._stopped.is_set():
            return
        if str(error) != self.trouble:
            log.warning("watch of %s: %s", self._path, error)
        self.trouble = str(error)

    def _served(self) -> None:
        if self.trouble is not None:
            log.info("watch of %s goes on", self._path)
        self.trouble = None

    def _progressed(self) -> None:
        self._served()
        self._asked = 0
        self._backoff.reset()

    def _list(self) -> None:
        def take(raw: msgspec.Raw) -> tuple[Key, Known[T] | None]:
            return self._understood(wire.metadata(f"list of {self._path}", raw), raw)

        # From the server's memory the first time: we have seen nothing yet.
        listed = listing.listed(
            self._path, self._select, self._stream.get, take, remembered=not self.syncs
        )
        self._list_next = False
        self._sync(listed.found, listed.version)

    def _watch(self) -> bool:
        asked = f"watch of {self._path}"
        server_seconds = self._pace.watch_seconds * (0.8 + 0.4 * self._pace.random())
        seconds = server_seconds + self._pace.grace_seconds
        began = self._pace.clock()
        initial = self._version is None
        try:
            heard = self._follow(self._watch_query(max(1, int(server_seconds))), seconds)
        except RejectedError:
            self._lists_only = self._lists_only or initial
            raise
        except StoreError:
            self._list_next = self._version is None
            if self._healthy_since(began):
                self._backoff.reset()
            raise
        if self._version is None:
            self._list_next = True
            raise UnreachableError(f"{asked}: ends before all was told")
        if not self._healthy_since(began):
            if not heard:
                raise UnreachableError(f"{asked}: ends at once")
            return False
        self._progressed()
        if not heard:
            # So is a watch from a version that the server will only reach one day.
            self._version = None
        return True

    def _watch_query(self, server_seconds: int) -> Query:
        start: dict[str, str] = {}
        if self._version is None:
            start = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            start = {"resourceVersion": self._version}
        return {
            **self._select,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": server_seconds,
            **start,
        }

    def _follow(self, query: Query, seconds: float) -> bool:
        """Takes in what the server tells until it ends; False when that was nothing."""
        heard = False
        initial: list[tuple[Key, Known[T] | None]] | None = None
        if self._version is None:
            initial = []
        lines = self._stream.lines(
            self._path, query, seconds, silence_seconds=None if initial is not None else seconds
        )
        if initial is None:
            self._served()
        with contextlib.closing(lines):
            if self._anew:
                raise UnreachableError(f"watch of {self._path}: all is asked for anew")
            for line in lines:
                if self._stopped.is_set():
                    break
                event, metadata = self._event(line)
                heard = True
                if initial is None:
                    self._heard(event, metadata)
                elif event.type != "BOOKMARK":
                    initial.append(self._understood(metadata, event.object))
                elif wire.ends_initial(metadata):
                    self._sync(initial, metadata.resource_version)
                    initial = None
                    self._stream.allow_silence(seconds)
        return heard

    def _healthy_since(self, began: float) -> bool:
        return self._pace.clock() - began >= HEALTHY_SECONDS

    def _event(self, line: bytes) -> tuple[Event, Metadata]:
        asked = f"watch of {self._path}"
        event = wire.event(asked, line)
        if event.type == "ERROR":
            raise errors.refusal(asked, errors.status_of(bytes(event.object)))
        return event, wire.metadata(asked, event.object)

    def _heard(self, event: Event, metadata: Metadata) -> None:
        if wire.not_newer(metadata.resource_version, self._version):
            return
        if event.type == "DELETED":
            self._tell(self._mirror.drop(metadata.key))
        elif event.type in ("ADDED", "MODIFIED"):
            self._tell(self._mirror.put(metadata, bytes(event.object)))
        self._version = metadata.resource_version
        self._progressed()

    def _understood(self, metadata: Metadata, raw: msgspec.Raw) -> tuple[Key, Known[T] | None]:
        return metadata.key, self._mirror.understood(metadata, bytes(raw))

    def _sync(self, found: list[tuple[Key, Known[T] | None]], version: str) -> None:
        self._tell(self._mirror.replace(found), first=not self.syncs)
        self._version = version
        self.syncs += 1
        self.synced = True
        self._served()

    def _tell(self, changes: list[Change[T]], *, first: bool = False) -> None:
        if (changes or first) and not self._stopped.is_set():
            self._changed(changes)


def _spoils_version(error: KubeError) -> bool:
    """Whether another watch from the same version would end likewise."""
    return isinstance(error, GoneError | MalformedError | RejectedError) or (
        isinstance(error, ServerError) and error.future_version
    )


_JOIN_SECONDS = 2.0
