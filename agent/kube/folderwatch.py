"""A watch of files, for standalone mode without a server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from agent.kube.errors import StoreError
from agent.kube.mirror import Metadata, Mirror
from agent.kube.objects import Changed, ObjectKey, Read

T = TypeVar("T")
log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0

Found = Callable[[], Iterable[tuple[Metadata, bytes]]]
"""All objects that are followed, as JSON. Raises StoreError."""


class FolderWatch(Generic[T]):
    """Reads again every second; while that fails, what was known stays."""

    def __init__(
        self,
        found: Found,
        read: Read[T],
        changed: Changed[T],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._found = found
        self._changed = changed
        self._period = period_seconds
        self._mirror: Mirror[T] = Mirror(read)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of a folder", daemon=True)
        self._read_at = time.monotonic()
        self.synced = False
        self.trouble: str | None = None

    @property
    def age_seconds(self) -> float:
        """Since the last read of the folder that succeeded."""
        return time.monotonic() - self._read_at

    def objects(self) -> dict[ObjectKey, T]:
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
                    for metadata, text in self._found()
                ]
            )
        except StoreError as error:
            if str(error) != self.trouble:
                log.error("%s", error)
            self.trouble = str(error)
            return
        self.trouble = None
        self._read_at = time.monotonic()
        if (changes or not self.synced) and not self._stopped.is_set():
            self._changed(changes)
        self.synced = True
