"""The agent's snapshot, re-read when its file changes."""

from __future__ import annotations

import logging
import os

from agent.model import snapshot as snapshots
from agent.model.snapshot import Snapshot

log = logging.getLogger(__name__)


class SnapshotFile:
    """Keeps the last good snapshot while the file is torn; one of another boot counts as none.

    The agent replaces the file and never removes it: a file that went was given up on purpose.
    """

    def __init__(self, path: str, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._stamp: tuple[int, int, int] | None = None
        self._current: Snapshot | None = None
        self.unreadable = 0

    def current(self) -> Snapshot | None:
        """None when there is none. Costs one stat(2) while nothing changes."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._stamp = self._current = None
            return None
        except OSError:
            return self._current
        stamp = found.st_mtime_ns, found.st_ino, found.st_size
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        return self._current

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                new = snapshots.decode(file.read())
        except (OSError, snapshots.SnapshotError) as error:
            self.unreadable += 1
            log.warning("keeping the last snapshot: %s: %s", self._path, error)
            return
        self._current = new if new.boot_id == self._boot_id else None
