"""Watches objects of the API server on one thread and one connection, at a bounded rate.

Whatever the server answers, a watch sends at most five requests in ten seconds (`schedule`). After
an outage it sends a request within seconds once the server answers any request of the process. Each
change is reported once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import msgspec

from agent.host.log_once import Problem
from agent.kube import errors, wire
from agent.kube.errors import (
    GoneError,
    MalformedError,
    RejectedError,
    ServerError,
    StoreError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.objects import Change, Changed, Known, Mirror, ObjectKey, Read, WatchedMetadata
from agent.kube.schedule import Schedule, WatchPace
from agent.kube.transport import Query, Transport
from agent.kube.wire import Stream, WatchEvent

T = TypeVar("T")
log = logging.getLogger(__name__)

# The least length of the first watch, which sends all existing objects.
INITIAL_SECONDS: Final = 300.0
# A watch that lasted this long proves that the server can serve it.
HEALTHY_SECONDS: Final = 10.0
# A watch without an event or bookmark for this time may wait for a version that the server has not
# reached, since it was restored from a backup.
SILENT_SECONDS: Final = 240.0


class ListWatch(Generic[T]):
    """A watch of the objects at `path` that `select` matches: WatchList if the server has it,
    otherwise list and watch.

    `first_seconds`: the wait before the first request, which `begin` ends."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        select: Query,
        read: Read[T],
        changed: Changed[T],
        *,
        first_seconds: float = 0.0,
        pace: WatchPace | None = None,
    ) -> None:
        self.path = path
        self._select = dict(select)
        self._changed = changed
        self._first_seconds = first_seconds
        self._pace = pace or WatchPace()
        self._stream = Stream(transport)
        self._mirror: Mirror[T] = Mirror(read)
        self._schedule = Schedule(self._pace.random, self._pace.cap_seconds)
        self._reachability = transport.reachability
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._begins = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"watch {path}", daemon=True)
        self._version: str | None = None
        self._lists_only = False
        self._list_next = False
        self._relist = False
        self._caught_up = False
        self._breaks_at_request = 0
        self.breaks = 0
        """Counts failures and calls of `mark_behind`."""
        self._touched_at = self._received_at = self._pace.clock()
        self.synced = False
        self._problem = Problem(log, f"watch of {path}: ")
        self.syncs = 0

    def objects(self) -> dict[ObjectKey, T]:
        return self._mirror.values()

    @property
    def version(self) -> str | None:
        """The resourceVersion up to which all changes were reported; None while it is unknown."""
        return self._version

    @property
    def problem(self) -> str | None:
        return self._problem.text

    @property
    def age_seconds(self) -> float:
        """The time since the last response, event or bookmark of the server."""
        return max(0.0, self._pace.clock() - self._touched_at)

    @property
    def caught_up(self) -> bool:
        """Whether all changes were reported. False after a failure, until a list, or the caller's
        comparison (`mark_caught_up`), proves it."""
        return self._caught_up

    def resync(self) -> None:
        """Lists everything again, as of now or later; `syncs` grows when that is reported. Any
        thread may call it."""
        with self._lock:
            # Under the lock, so that the list that follows is not interrupted.
            self._relist = True
            self._woken.set()
            self._stream.interrupt()

    def mark_behind(self) -> None:
        """The watch must prove again that it has reported all changes. Any thread may call it."""
        with self._lock:
            self.breaks += 1
            self._caught_up = False

    def mark_caught_up(self, breaks: int) -> None:
        """All changes were reported, unless `breaks` has grown since. Any thread may call it."""
        with self._lock:
            self._caught_up = self._caught_up or breaks == self.breaks

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> None:
        """Somebody waits for the first answer. Any thread may call it."""
        self._begins.set()

    def stop(self) -> None:
        self._stopped.set()
        self._begins.set()
        self._woken.set()
        self._stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def run(self) -> None:
        """The body of the thread; returns when the watch is stopped."""
        self._reachability.listen(self._woken.set)
        try:
            self._run()
        finally:
            self._reachability.ignore(self._woken.set)
            self._stream.drop()

    def _run(self) -> None:
        if self._first_seconds > 0:
            self._pace.wait(self._begins, self._first_seconds)
        while not self._stopped.is_set():
            self._rest(self._schedule.wait(self._pace.clock()))
            if self._stopped.is_set():
                return
            with self._lock:
                self._woken.clear()
                if self._relist:
                    self._relist, self._version = False, None
                self._breaks_at_request = self.breaks
            self._schedule.sends(self._pace.clock())
            error: StoreError | None = None
            try:
                if self._step():
                    continue
            except StoreError as failure:
                if self._relist:
                    continue
                error = failure
                self._failed(error)
            self._pause(error)

    def _pause(self, error: StoreError | None) -> None:
        """Pauses after a request that failed, or that succeeded and ended too soon."""
        version_unusable = _makes_version_unusable(error)
        if version_unusable:
            self._version = None
        seconds = self._schedule.after(error, version_unusable=version_unusable)
        if isinstance(error, TooManyRequestsError):
            self._rest(seconds)
            return
        until = self._pace.clock() + seconds
        if seconds and self._pace.wait(self._woken, seconds) and not self._relist:
            now = self._pace.clock()
            early = self._pace.return_seconds * self._pace.random()
            self._rest(min(until - now, early) if self._schedule.end_early(now) else until - now)

    def _rest(self, seconds: float) -> None:
        if seconds > 0:
            self._pace.wait(self._stopped, seconds)

    def _step(self) -> bool:
        """Sends the next request, list or watch. Returns whether another may follow at once."""
        if self._version is None and (self._lists_only or self._list_next):
            self._list()
            return True
        return self._watch()

    def _failed(self, error: StoreError) -> None:
        if self._stopped.is_set():
            return
        self.mark_behind()
        self._problem.report(str(error))

    def _served(self) -> None:
        if self._problem.clear():
            log.info("watch of %s continues", self.path)

    def _progressed(self) -> None:
        self._served()
        self._schedule.progressed()

    def _list(self) -> None:
        def take(raw: msgspec.Raw) -> tuple[ObjectKey, Known[T] | None]:
            return self._decoded(wire.metadata(f"list of {self.path}", raw), raw)

        def page(path: str, query: Query) -> bytes:
            body = self._stream.get(path, query)
            self._touch()
            return body

        # The first list may come from the server's cache, since nothing was reported yet.
        from_cache = not self.syncs
        listed = wire.listed(self.path, self._select, page, take, from_cache=from_cache)
        self._list_next = False
        self._sync(listed.found, listed.version, fresh=not from_cache)

    def _watch(self) -> bool:
        request = f"watch of {self.path}"
        began = self._pace.clock()
        initial = self._version is None
        least_seconds = INITIAL_SECONDS if initial else 1.0
        requested_seconds = max(self._pace.watch_seconds, least_seconds)
        server_seconds = max(1, int(requested_seconds * (0.8 + 0.4 * self._pace.random())))
        seconds = server_seconds + self._pace.grace_seconds
        try:
            continues = requested_seconds <= self._pace.watch_seconds
            received = self._follow(self._watch_query(server_seconds), seconds, continues=continues)
        except RejectedError:
            self._lists_only = self._lists_only or initial
            raise
        except StoreError:
            self._list_next = self._version is None
            if self._pace.clock() - began >= HEALTHY_SECONDS:
                self._schedule.progressed()
            raise
        if self._version is None:
            self._list_next = True
            raise UnreachableError(f"{request}: ended before all existing objects were sent")
        if not continues:
            return True
        # The server has its own clock, and counts whole seconds.
        if self._pace.clock() - began < min(HEALTHY_SECONDS, server_seconds - 1):
            if not received:
                raise UnreachableError(f"{request}: ended at once")
            self.mark_behind()
            return False
        self._touch()
        self._progressed()
        if self._pace.clock() - self._received_at >= SILENT_SECONDS:
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

    def _follow(self, query: Query, seconds: float, *, continues: bool) -> bool:
        """Processes events until the server ends the watch. Returns whether there were any. Without
        `continues` it ends the watch itself when it has all existing objects."""
        received = False
        initial: dict[ObjectKey, Known[T] | None] | None = None
        if self._version is None:
            initial = {}
        lines = self._stream.lines(
            self.path, query, seconds, silence_seconds=None if initial is not None else seconds
        )
        if initial is None:
            self._served()
        self._touch()
        with contextlib.closing(lines):
            if self._relist:
                raise UnreachableError(f"watch of {self.path}: a new list was requested")
            for line in lines:
                if self._stopped.is_set():
                    break
                self._touch()
                event, metadata = self._event(line)
                self._received_at, received = self._touched_at, True
                if initial is None:
                    self._receive(event, metadata)
                elif event.type != "BOOKMARK":
                    key, known = self._decoded(metadata, event.object)
                    initial[key] = known
                elif wire.ends_initial(metadata):
                    self._sync(initial.items(), metadata.resource_version, fresh=True)
                    initial = None
                    if not continues:
                        break
                    self._stream.allow_silence(seconds)
        return received

    def _touch(self) -> None:
        self._touched_at = self._pace.clock()

    def _event(self, line: bytes) -> tuple[WatchEvent, WatchedMetadata]:
        request = f"watch of {self.path}"
        event = wire.event(request, line)
        if event.type == "ERROR":
            raise errors.refusal(request, errors.status_of(bytes(event.object)))
        return event, wire.metadata(request, event.object)

    def _receive(self, event: WatchEvent, metadata: WatchedMetadata) -> None:
        if wire.not_newer(metadata.resource_version, self._version):
            return
        if event.type == "DELETED":
            self._report(self._mirror.drop(metadata.key))
        elif event.type in ("ADDED", "MODIFIED"):
            self._report(self._mirror.put(metadata, bytes(event.object)))
        self._version = metadata.resource_version
        self._progressed()

    def _decoded(
        self, metadata: WatchedMetadata, raw: msgspec.Raw
    ) -> tuple[ObjectKey, Known[T] | None]:
        return metadata.key, self._mirror.decoded(metadata, bytes(raw))

    def _sync(
        self, objects: Iterable[tuple[ObjectKey, Known[T] | None]], version: str, *, fresh: bool
    ) -> None:
        """Replaces the objects by those of a list. `fresh`: the list has all changes that were made
        before it was requested."""
        self._report(self._mirror.replace(objects), first=not self.syncs)
        self._version = version
        self._received_at = self._pace.clock()
        self.syncs += 1
        if fresh:
            self.mark_caught_up(self._breaks_at_request)
        self.synced = True
        self._served()

    def _report(self, changes: list[Change[T]], *, first: bool = False) -> None:
        if (changes or first) and not self._stopped.is_set():
            self._changed(changes)


def _makes_version_unusable(error: StoreError | None) -> bool:
    """Whether another watch from the same version would fail in the same way."""
    return isinstance(error, GoneError | MalformedError | RejectedError) or (
        isinstance(error, ServerError) and error.future_version
    )


_JOIN_SECONDS = 2.0
