"""Events about pods and Nodes (events.k8s.io/v1), for people.

An object has one Event for each reason and note; repetitions extend its series (Kubernetes, Event
Series, KEP 383). A thread sends Events at a bounded rate and keeps those that the API server can't
take yet; when it keeps MAX_EVENTS of them, it drops new ones. The API server deletes an Event after
an hour by default, so the caller records a lasting cause again.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from agent.host.log_once import Problem
from agent.kube.errors import (
    ForbiddenError,
    NotFoundError,
    RejectedError,
    StoreError,
)
from agent.kube.schedule import Backoff
from agent.kube.transport import Transport, segment

MAX_EVENTS: Final = 1000
"""Events that are kept, including those that were sent."""
AGAIN_SECONDS: Final = 60.0
"""The time between two updates of the series of one Event."""
BURST: Final = 20
"""Events that may be sent without a pause; after these, one in REFILL_SECONDS."""
REFILL_SECONDS: Final = 5.0
MAX_NOTE: Final = 1024
MAX_INSTANCE: Final = 128
"""Bytes of a note and of a reporting instance that the API server takes (Kubernetes,
pkg/apis/core/validation/events.go)."""

log = logging.getLogger(__name__)


class Regarding(NamedTuple):
    """A pod, or a Node (without namespace), by the API's uid."""

    namespace: str
    name: str
    uid: str
    kind: str = "Pod"


class EventKey(NamedTuple):
    """The identity of one Event."""

    regarding: Regarding
    reason: str
    note: str
    normal: bool = False
    """Its type is Normal, not Warning."""

    @property
    def namespace(self) -> str:
        """The namespace of the Event; the API server accepts only this one for objects without
        namespace."""
        return self.regarding.namespace or "default"


class _Series:
    """An Event that may occur several times."""

    def __init__(self) -> None:
        self.count = 0
        """The number of occurrences."""
        self.sent = 0
        """The number of occurrences that the API server has."""
        self.due = 0.0


class Recorder:
    """Records warnings and normal Events; warnings are sent first. Any thread may call `record` and
    `inform`, which never block. The thread starts at the first Event, since most nodes never have
    one.

    `controller`, `instance`, `action`: fields of every Event.
    `results`: called with `written`, `failed` or `dropped` for each Event."""

    def __init__(
        self,
        transport: Transport,
        controller: str,
        instance: str,
        action: str,
        results: Callable[[str], None] = lambda result: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._controller = controller
        self._instance = instance[:MAX_INSTANCE]
        self._action = action
        self._results = results
        self._clock = clock
        self._changed = threading.Condition()
        self._series: dict[EventKey, _Series] = {}
        self._tokens = float(BURST)
        self._filled = clock()
        self._not_before = 0.0
        self._backoff = Backoff(random.random)
        self._closed = False
        self._problem = Problem(log, "can't send an Event: ")
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def record(self, regarding: Regarding, reason: str, note: str) -> None:
        """Records one occurrence of a warning, the first or another one."""
        self._record(EventKey(regarding, reason, _cut(note)))

    def inform(self, regarding: Regarding, reason: str, note: str) -> None:
        self._record(EventKey(regarding, reason, _cut(note), normal=True))

    def _record(self, key: EventKey) -> None:
        with self._changed:
            series = self._series.pop(key, None)
            if series is None and not self._make_room():
                self._results("dropped")
                return
            series = self._series[key] = series or _Series()
            series.count += 1
            if self._thread.ident is None and not self._closed:
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Drops the Events that were not sent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _make_room(self) -> bool:
        """Drops the oldest Event that was sent if MAX_EVENTS are kept. Returns whether another
        Event can be kept."""
        if len(self._series) < MAX_EVENTS:
            return True
        oldest = next((key for key, series in self._series.items() if series.sent), None)
        if oldest is None:
            return False
        del self._series[oldest]
        return True

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, series, count = found
            result = "written"
            try:
                self._send(key, first=not series.sent, count=count)
                self._problem.clear()
            except (ForbiddenError, NotFoundError, RejectedError) as error:
                result = "failed"
                self._problem.report(str(error))
            except StoreError as error:
                self._postpone(key, error)
                self._problem.report(str(error))
                continue
            with self._changed:
                self._backoff.reset()
                series.sent, series.due = count, self._clock() + AGAIN_SECONDS
            self._results(result)

    def _postpone(self, key: EventKey, error: StoreError) -> None:
        """Moves the Event behind the others, because the API server may accept those."""
        with self._changed:
            self._not_before = self._clock() + self._backoff.next(error.retry_after_seconds)
            if (series := self._series.pop(key, None)) is not None:
                self._series[key] = series

    def _next(self) -> tuple[EventKey, _Series, int] | None:
        """Waits until an Event is due and the rate limit allows it. Returns the Event's key, its
        series and the number of occurrences to send; None when closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                self._tokens = min(BURST, self._tokens + (now - self._filled) / REFILL_SECONDS)
                self._filled = now
                waiting = [
                    (key, each) for key, each in self._series.items() if each.count > each.sent
                ]
                due = min((each.due for _, each in waiting), default=None)
                if due is None:
                    self._changed.wait()
                    continue
                at = max(due, self._not_before)
                if self._tokens < 1:
                    at = max(at, now + (1 - self._tokens) * REFILL_SECONDS)
                if at > now:
                    self._changed.wait(at - now)
                    continue
                self._tokens -= 1
                ready = [each for each in waiting if each[1].due <= now]
                key, series = min(ready, key=lambda each: each[0].normal)
                return key, series, series.count
            return None

    def _send(self, key: EventKey, *, first: bool, count: int) -> None:
        """Creates the Event, or updates its series. Raises KubeError, AccessError."""
        events = f"/apis/events.k8s.io/v1/namespaces/{segment(key.namespace)}/events"
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        name = _name(key)
        path = f"{events}/{segment(name)}"
        series = {"series": {"count": max(count, 2), "lastObservedTime": now}}
        if first:
            try:
                self._transport.create(events, self._event(key, name, now))
            except RejectedError:
                # An earlier agent has created it.
                self._transport.merge(path, series)
        else:
            try:
                self._transport.merge(path, series)
            except NotFoundError:
                self._transport.create(events, self._event(key, name, now))

    def _event(self, key: EventKey, name: str, now: str) -> dict[str, Any]:
        regarding = {"apiVersion": "v1", "kind": key.regarding.kind, "name": key.regarding.name}
        if key.regarding.namespace:
            regarding["namespace"] = key.regarding.namespace
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": key.namespace},
            "eventTime": now,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": self._action,
            "type": "Normal" if key.normal else "Warning",
            "reason": key.reason,
            "note": key.note,
            "regarding": {**regarding, "uid": key.regarding.uid},
        }


def _cut(note: str) -> str:
    return note.encode()[:MAX_NOTE].decode(errors="ignore")


def _name(key: EventKey) -> str:
    """The name is the same after a restart of the agent."""
    text = "\0".join((key.regarding.uid, key.reason, key.note))
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{key.regarding.name[:_MAX_OBJECT_NAME].rstrip('-.')}.{digest}"


_JOIN_SECONDS: Final = 2.0
_MAX_OBJECT_NAME: Final = 253 - len(".") - 16
"""Characters of the object's name in an Event's name, which is a DNS subdomain."""
