"""The agent's snapshot, re-read when its file changes."""

from __future__ import annotations

import errno
import logging
import os

from agent.host import files
from agent.model import snapshot as snapshots
from agent.model.snapshot import Snapshot

log = logging.getLogger(__name__)


class SnapshotFile:
    """Keeps the last valid snapshot while the file is torn. A snapshot of another boot counts as
    none. The agent replaces the file and never removes it: a missing file was removed on
    purpose."""

    def __init__(self, path: str, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._stamp: tuple[int, int, int] | None = None
        self._current: Snapshot | None = None
        self._error = ""
        self.unreadable = 0

    def current(self) -> Snapshot | None:
        """None without a snapshot. Costs one stat(2) while nothing changes."""
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
            new = snapshots.decode(files.read(self._path, snapshots.MOST_BYTES))
        except OSError as error:
            if error.errno != errno.EFBIG:
                self._stamp = None  # the file may be right: it is read at the next question
            self._keep(str(error))
        except snapshots.SnapshotError as error:
            self._keep(f"{self._path}: {error}")
        else:
            self._error = ""
            self._current = new if new.boot_id == self._boot_id else None
            if self._current is None:
                log.info("%s is of another boot: waiting for the agent", self._path)

    def _keep(self, error: str) -> None:
        self.unreadable += 1
        if error != self._error:
            self._error = error
            log.warning("keeping the last snapshot: %s", error)
