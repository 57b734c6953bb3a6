"""The end of a daemon: by SIGTERM or SIGINT, once, or by a fault of one of its threads. A daemon
without one of its threads does less than it promises without a sign, so it ends, and its supervisor
starts it again."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Within it the signals call `stop`; from its end on they are ignored.

    `timeout` and an impatient Ctrl-C signal twice: what `stop` wakes may be closed by then.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: self._stop())

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


log = logging.getLogger(__name__)


class FaultError(RuntimeError):
    """A thread has failed; the message names it."""


class Faults:
    """Within it a thread that ends by an exception is logged and calls `stop`; the first one is
    raised as FaultError at the end."""

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
        name = args.thread.name if args.thread is not None else "one that is gone"
        log.critical(
            "thread %s: a fault of ours: %r", name, args.exc_value, exc_info=args.exc_value
        )
        if self._first is None:
            self._first = FaultError(f"thread {name} has failed: {args.exc_value!r}")
        self._stop()
