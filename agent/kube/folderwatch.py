"""A Watch of files: standalone mode has no server that would tell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from agent.kube.errors import StoreError
from agent.kube.mirror import Metadata, Mirror, as_type
from agent.kube.objects import Changed, Key

T = TypeVar("T")
log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0

Read = Callable[[], Iterable[tuple[Metadata, bytes]]]
"""All objects that are followed, as JSON. Raises StoreError."""


class FolderWatch(Generic[T]):
    """Reads again every second; while that fails, what was known stays."""

    def __init__(
        self,
        read: Read,
        type_: type[T],
        changed: Changed[T],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._read = read
        self._changed = changed
        self._period = period_seconds
        self._mirror: Mirror[T] = Mirror(as_type(type_))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of a folder", daemon=True)
        self.synced = False
        self.trouble: str | None = None

    def objects(self) -> dict[Key, T]:
        return self._mirror.values()

    def start(self) -> None:
        """Reads for the first time at once."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            self._look()

    def _look(self) -> None:
        try:
            changes = self._mirror.replace(
                [
                    (metadata.key, self._mirror.understood(metadata, text))
                    for metadata, text in self._read()
                ]
            )
        except StoreError as error:
            if str(error) != self.trouble:
                log.error("%s", error)
            self.trouble = str(error)
            return
        self.trouble = None
        if (changes or not self.synced) and not self._stopped.is_set():
            self._changed(changes)
        self.synced = True
