"""A daemon in which a thread has failed goes on with less than it promises, and nobody sees it: it
is better ended, and begun anew by who watches over it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

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
