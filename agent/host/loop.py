"""One epoll loop for a process without threads: descriptors, timers, stop."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
HANG_UP: Final = select.EPOLLHUP

_MAX_EVENTS: Final = 64
"""The most events that one poll returns; by default each poll allocates memory for a thousand."""

OnReady = Callable[[int], None]
"""Takes the epoll events that are ready."""


class Timer:
    """Due once at `when` (monotonic seconds) unless cancelled."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Callbacks run one after the other in the thread of the loop; none may block. A callback may
    get an outdated event (its descriptor was drained, or reuses an old number): read and write
    without blocking, and rely on the result. An exception of a callback ends `run`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, OnReady] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopped = False
        self._calls: deque[Callable[[], None]] = deque()
        self._open = threading.Lock()
        """Held while the wake-up descriptor is written to, or closed."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.register(self._wake, READ, self._woken)

    def register(self, fd: int, events: int, on_ready: OnReady) -> None:
        """Level-triggered; errors and hang-ups are always reported."""
        self._epoll.register(fd, events)
        self._ready[fd] = on_ready

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """To be called before the descriptor is closed."""
        del self._ready[fd]
        self._epoll.unregister(fd)

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Calls once at `when` (monotonic seconds), or as soon as possible after it."""
        timer = Timer(when, call)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self.at(time.monotonic() + seconds, call)

    def call(self, function: Callable[[], None]) -> None:
        """Calls once, soon; safe in threads. Does nothing after `close`."""
        with self._open:
            if self._wake >= 0:
                self._calls.append(function)
                os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """`run` returns after the callback in progress; safe in signal handlers and threads."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Runs until `stop`; returns at once if `stop` was called before."""
        poll, ready, timers, now = self._epoll.poll, self._ready, self._timers, time.monotonic
        while not self._stopped:  # as `step`, without its calls, which would delay every event
            seconds = -1.0
            if timers and (seconds := timers[0][0] - now()) <= 0:
                self._run_timers()
                seconds = 0
            for fd, events in poll(seconds, _MAX_EVENTS):
                if fd in ready:
                    ready[fd](events)

    def run_on(self, until: Callable[[], bool], seconds: float) -> None:
        """Runs again after a stop, until the condition holds, this number of seconds has passed, or
        `stop` is called again."""
        self._stopped = False
        end = time.monotonic() + seconds
        while not self._stopped and not until() and (left := end - time.monotonic()) > 0:
            self.step(left)

    def step(self, seconds: float) -> None:
        """Waits at most `seconds` (-1: for ever) for events and timers, and handles them."""
        ready = self._ready
        if self._timers:
            seconds = self._until_timer(seconds)
        for fd, events in self._epoll.poll(seconds, _MAX_EVENTS):
            on_ready = ready.get(fd)
            if on_ready is not None:
                on_ready(events)
        if self._timers:
            self._run_timers()

    def close(self) -> None:
        with self._open:
            self._epoll.close()
            os.close(self._wake)
            self._wake = -1

    def _woken(self, events: int) -> None:
        os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()

    def _until_timer(self, seconds: float) -> float:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return seconds
        until = max(self._timers[0][0] - time.monotonic(), 0)
        return until if seconds < 0 else min(until, seconds)

    def _run_timers(self) -> None:
        now = time.monotonic()
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            if timer.call is not None:
                timer.call()
