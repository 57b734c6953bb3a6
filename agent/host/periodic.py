"""What a daemon does again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Periodic:
    """A thread that runs a step and pauses, until it is stopped. An exception of a step ends it
    (see `agent.host.ending`). A thread that waits for events alone does not use it."""

    def __init__(
        self,
        name: str,
        period_seconds: float,
        step: Callable[[], None],
        least_seconds: float = 0.0,
    ) -> None:
        """From the end of one step to the beginning of the next pass `period_seconds`, or
        `least_seconds` where `hurry` was called."""
        self._least = least_seconds
        self._rest = max(0.0, period_seconds - least_seconds)
        self._step = step
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """From any thread: the next step begins as soon as it may."""
        self._hurried.set()

    def stop(self, wait_seconds: float | None = None) -> None:
        """Returns when a step that is under way has ended, or after `wait_seconds`."""
        self._stopped.set()
        self._hurried.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._hurried.clear()
            self._step()
            if not self._stopped.wait(self._least):
                self._hurried.wait(self._rest)
