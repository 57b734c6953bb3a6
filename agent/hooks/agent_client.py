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

log = logging.getLogger(__name__)


class SnapshotFile:
    """Keeps the last valid snapshot while the file can't be decoded. A snapshot of another boot
    counts as none. The agent replaces the file and never removes it: a missing file was removed on
    purpose."""

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
            new = snapshots.decode(files.read(self._path, snapshots.MAX_BYTES))
        except OSError as error:
            if error.errno != errno.EFBIG:
                self._stamp = None  # the file may be valid: it is read at the next call
            self._keep(str(error))
        except snapshots.SnapshotError as error:
            self._keep(f"{self._path}: {error}")
        else:
            self._problem.text = None
            self._current = new if new.boot_id == self._boot_id else None
            if self._current is None:
                log.info("%s is of another boot: waiting for the agent", self._path)

    def _keep(self, error: str) -> None:
        self.unreadable += 1
        self._problem.report(error)


class Notifier:
    """Never blocks: a datagram that can't be delivered is dropped and counted. Only notifications
    of values that a creation replaced are kept and sent later: a restore needs them."""

    def __init__(self, path: str, session: FrontendSession | None = None) -> None:
        """`session`: for announcements of calls that end with this process."""
        self._path = path
        self._session = session
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._kept: deque[bytes] = deque(maxlen=MAX_KEPT)
        self.sent = 0
        self.undelivered = 0

    def notify(self, notification: Notification) -> bool:
        """Sends one datagram, after the kept ones. Returns whether it was delivered."""
        self.sent += 1
        datagram = encode(self._of_session(notification))
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

    def _of_session(self, notification: Notification) -> Notification:
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
