"""What the kubelet's PodResources API told last, for the agent's looks: asked on a thread of its
own, so that no look waits for a kubelet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.kubelet.podresources import NotServedError, PodResourcesClient, PodResourcesError
from agent.model.podresources import Allocatable, PodResources

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
LEAST_SECONDS: Final = 1.0
"""Between two questions: all clients of a kubelet share its 100 calls a second."""
ANSWER_SECONDS: Final = 10.0
"""What other clients wait for an answer (peers.md §1.5)."""


class Told(msgspec.Struct, frozen=True):
    """`allocatable` is None from a kubelet that does not serve it. `asked_at`: on the monotonic
    clock, in seconds; what happened later may be missing."""

    pods: tuple[PodResources, ...]
    allocatable: Allocatable | None
    asked_at: float


class PodResourcesView:
    """Asks every `period_seconds`, and `least_seconds` after the last time when `ask` is called.

    `told` never waits: None until a kubelet has answered, then its last good answer, also while it
    is away or its answers are none; what it gave to pods outlives it. `happened` is called, from
    the thread, after an answer that differs from the one before. An empty `socket_path` is never
    asked, and has no thread.
    """

    def __init__(
        self,
        socket_path: str,
        happened: Callable[[], None] | None = None,
        period_seconds: float = PERIOD_SECONDS,
        least_seconds: float = LEAST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._client = PodResourcesClient(socket_path, answer_seconds)
        self._happened = happened
        self._least_seconds = least_seconds
        self._rest_seconds = max(0.0, period_seconds - least_seconds)
        self._answer_seconds = answer_seconds
        self._told: Told | None = None
        self._said: set[tuple[type[PodResourcesError], str]] = set()
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if socket_path:
            self._thread = threading.Thread(target=self._run, name="pod-resources", daemon=True)
            self._thread.start()

    def told(self) -> Told | None:
        """The last good answer."""
        return self._told

    def ask(self) -> None:
        """Something has changed: the kubelet is asked soon."""
        self._asked.set()

    def close(self) -> None:
        """Ends the thread, after the question under way."""
        self._closed.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(2 * self._answer_seconds)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._asked.clear()
            self._look()
            if not self._closed.wait(self._least_seconds):
                self._asked.wait(self._rest_seconds)
        self._client.close()

    def _look(self) -> None:
        asked_at = time.monotonic()
        try:
            told = Told(self._client.pods(), self._allocatable(), asked_at)
        except PodResourcesError as error:
            self._say(error)
            return
        last, self._told = self._told, told
        self._said = {key for key in self._said if key[0] is NotServedError}
        differs = last is None or last.pods != told.pods or last.allocatable != told.allocatable
        if differs and self._happened is not None:
            self._happened()

    def _allocatable(self) -> Allocatable | None:
        try:
            return self._client.allocatable()
        except NotServedError as error:
            self._say(error)
            return None

    def _say(self, error: PodResourcesError) -> None:
        """Each kind of trouble once, until the next good answer."""
        key = type(error), error.method
        if key not in self._said:
            self._said.add(key)
            # Without any answer yet there may be no kubelet here, or it does not know the API.
            level = logging.INFO if self._told is None else logging.WARNING
            log.log(level, "no word from the kubelet on what its pods hold: %s", error)
