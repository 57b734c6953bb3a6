"""SIGTERM and SIGINT end a daemon, once."""

from __future__ import annotations

import signal
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
