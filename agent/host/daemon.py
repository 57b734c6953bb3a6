"""The life of a daemon: its service manager, its repeating threads, its allocator and its end.

A daemon ends on SIGTERM or SIGINT, or when one of its threads fails: without that thread it would
silently do only a part of its work. Its supervisor starts it again.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.host.loop import Loop


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""malloc.h of glibc."""
LARGE_BYTES = 1 << 20
NOTIFY_SECONDS = 5.0

log = logging.getLogger(__name__)


class ServiceManager:
    """Notifies systemd (sd_notify(3)); does nothing without a manager. It removes its variables
    from the environment, because children must not inherit them."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._path = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", "")
        period = environment.pop("WATCHDOG_USEC", "")
        self.watchdog_seconds: float | None = None
        """The interval in which the manager expects `alive`, None for never."""
        if self._path and period.isdigit() and int(period) and pid in ("", str(os.getpid())):
            self.watchdog_seconds = int(period) / 1e6

    def ready(self) -> None:
        """Waits up to NOTIFY_SECONDS for room in the manager's queue: without this notification the
        manager ends the daemon."""
        self._notify("READY=1", NOTIFY_SECONDS)

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def alive(self) -> None:
        self._notify("WATCHDOG=1")

    def keep_alive(self, loop: Loop) -> None:
        """Notifies the watchdog from the loop, twice in each interval."""
        if self.watchdog_seconds is not None:
            self.alive()
            loop.after(self.watchdog_seconds / 2, lambda: self.keep_alive(loop))

    def _notify(self, text: str, wait_seconds: float = 0.0) -> None:
        if not self._path:
            return
        path = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as it:
            it.settimeout(wait_seconds)
            it.sendto(text.encode(), path)


def seconds_to_boundary(now: float, period_seconds: float) -> float:
    """The time from `now`, in seconds, until the clock is a multiple of the period; never 0."""
    return period_seconds - now % period_seconds


class Periodic:
    """A thread that runs a step and pauses, until it is stopped. An exception of a step ends it
    (`Faults`). Threads that only wait for events do not use it.

    A step begins when the monotonic clock is a multiple of the period, so that the threads of a
    process wake together: when one thread wakes alone, the caches of its CPU have lost the data of
    the process, and loading it again takes longer than most steps."""

    def __init__(
        self,
        name: str,
        period_seconds: float,
        step: Callable[[], None],
        settle_seconds: float = 0.0,
    ) -> None:
        """The pause between two steps is at most `period_seconds`. `hurry` shortens it, but to no
        less than `settle_seconds` from that call and from the last step: one step follows the
        events of one change."""
        self._period = period_seconds
        self._settle = min(settle_seconds, period_seconds)
        self._step = step
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._at_once = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self, *, at_once: bool = False) -> None:
        """From any thread: shortens the pause before the next step.

        `at_once`: the next step does not wait for `settle_seconds`, because somebody waits for
            it."""
        if at_once:
            self._at_once.set()
        self._hurried.set()

    def stop(self, wait_seconds: float | None = None) -> None:
        """Returns when a step in progress has ended, or after `wait_seconds`."""
        self._stopped.set()
        self._at_once.set()
        self._hurried.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._hurried.clear()
            self._at_once.clear()
            self._step()
            rest = seconds_to_boundary(time.monotonic(), self._period)
            if self._hurried.wait(max(rest, self._settle)):
                self._at_once.wait(self._settle)


class Ending:
    """A context in which SIGTERM and SIGINT call `stop`. After it they are ignored: timeout(1) and
    a second Ctrl-C send a signal twice, and what `stop` wakes may be closed by then."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: self._stop())

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


class FaultError(RuntimeError):
    """A thread has failed; the message names it."""


class Faults:
    """A context that logs each thread that ends by an exception, and calls `stop`. At its end it
    raises FaultError for the first one."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._first: FaultError | None = None

    def __enter__(self) -> None:
        self._before = threading.excepthook
        threading.excepthook = self._failed

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        threading.excepthook = self._before
        if error is None and self._first is not None:
            raise self._first

    def _failed(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "unknown"
        log.critical("thread %s: internal error: %r", name, args.exc_value, exc_info=args.exc_value)
        if self._first is None:
            self._first = FaultError(f"thread {name} has failed: {args.exc_value!r}")
        self._stop()


def freeze_garbage() -> None:
    """Excludes the current objects from garbage collection, which takes half a second with 100,000
    pods. Most of these objects live long."""
    gc.collect()
    gc.freeze()


def use_one_malloc_arena() -> None:
    """Makes the threads that start later share one malloc arena. By default each thread has its own
    arena, which keeps the memory that the thread once needed; under the interpreter's lock threads
    rarely allocate at the same time. Does nothing if the C library does not have mallopt(3)."""
    _mallopt(_M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """Returns blocks of LARGE_BYTES and more to the kernel when they are freed. By default the C
    library raises this threshold to the size of the largest block freed so far (mallopt(3))."""
    _mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def use_batch_scheduling() -> None:
    """Gives this thread, and those that start later, the policy SCHED_BATCH (sched(7)): they do not
    preempt the process that wakes them, so that a notification does not delay its sender by the
    work that it causes. They still get their share of a busy CPU. Does nothing where a filter of
    system calls forbids it."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _mallopt(parameter: int, value: int) -> None:
    import ctypes  # only for daemons that call this

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
