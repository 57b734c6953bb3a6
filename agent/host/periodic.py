"""What a daemon does again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Periodic:
    """A thread that takes a step and pauses, until it is stopped. An exception of a step ends it
    (see `faults`). What waits for news, not for time, has a thread of its own."""

    def __init__(self, name: str, period_seconds: float, step: Callable[[], None]) -> None:
        """`period_seconds`: from the end of one step to the beginning of the next."""
        self._period = period_seconds
        self._step = step
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when a step that is under way has ended."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._step()
            self._stopped.wait(self._period)
