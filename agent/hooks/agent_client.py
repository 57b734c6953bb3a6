"""The agent's client in the frontends: reads the snapshot again when the file changes, and notifies
the agent by datagrams. While no agent runs, the last snapshot stays valid and notifications are
dropped."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections import deque

import msgspec

from agent.host import files
from agent.host.locks import FrontendSession
from agent.host.log_once import Problem
from agent.model import snapshot as snapshots
from agent.model.notifications import (
    ContainerAnnounced,
    Created,
    Notification,
    PodAnnounced,
    encode,
)
from agent.model.snapshot import Snapshot

MAX_KEPT = 1024
"""The most notifications that are kept to be sent later."""

log = logging.getLogger(__name__)


def read_snapshot(path: str) -> Snapshot:
    """Reads the file once. Raises OSError, and SnapshotError for an invalid or too large file."""
    try:
        return snapshots.decode(files.read(path, snapshots.MAX_BYTES))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise snapshots.SnapshotError(str(error.strerror)) from error
        raise


class SnapshotFile:
    """The agent's snapshot, by its file. While the file can't be decoded, the last valid snapshot
    counts. A snapshot of another boot counts as none, and so does a missing file: the agent
    replaces the file and never removes it, so that somebody removed it on purpose."""

    def __init__(self, path: str, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._stamp: tuple[int, int, int] | None = None
        self._current: Snapshot | None = None
        self._problem = Problem(log, "keeping the last snapshot: ")
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
            new = read_snapshot(self._path)
        except OSError as error:
            self._stamp = None  # the file may be valid: it is read at the next call
            self._report(str(error))
        except snapshots.SnapshotError as error:
            self._report(f"{self._path}: {error}")
        else:
            self._problem.text = None
            self._current = new if new.boot_id == self._boot_id else None
            if self._current is None:
                log.info("%s is of another boot: waiting for the agent", self._path)

    def _report(self, error: str) -> None:
        self.unreadable += 1
        self._problem.report(error)


class Notifier:
    """Sends notifications to the agent and never blocks. A datagram that can't be delivered is
    dropped and counted, except one that says which values a creation replaced (Created): it is
    kept and sent later, because `topolet restore` needs these values."""

    def __init__(self, path: str, session: FrontendSession | None = None) -> None:
        """`session`: announcements name it, for a frontend whose held calls end with its process.
        The agent drops them when the session has ended."""
        self._path = path
        self._session = session
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._kept: deque[bytes] = deque(maxlen=MAX_KEPT)
        self.sent = 0
        self.undelivered = 0

    def notify(self, notification: Notification) -> bool:
        """Sends one datagram, and then the kept ones. Returns whether the first was delivered."""
        self.sent += 1
        datagram = encode(self._with_session(notification))
        if self._send(datagram):
            while self._kept and self._send(self._kept[0]):
                self._kept.popleft()
            return True
        self.undelivered += 1
        if isinstance(notification, Created):
            self._kept.append(datagram)
        return False

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _with_session(self, notification: Notification) -> Notification:
        if isinstance(notification, PodAnnounced):
            return msgspec.structs.replace(notification, session=self._session)
        if isinstance(notification, ContainerAnnounced):
            pod = msgspec.structs.replace(notification.pod, session=self._session)
            return msgspec.structs.replace(notification, pod=pod)
        return notification

    def _send(self, datagram: bytes) -> bool:
        try:
            self._socket.sendto(datagram, self._path)
        except OSError:
            return False
        return True
