"""A simulated agent: the snapshot file and the notification socket that a frontend uses."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec

from agent.host import files
from agent.model import notifications
from agent.model import snapshot as snapshots
from agent.model.notifications import Notification
from agent.model.snapshot import Snapshot


class SimulatedAgent:
    """Writes the snapshot file and receives notifications."""

    def __init__(self, snapshot: Path, notifier: Path) -> None:
        self._snapshot = snapshot
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(notifier))

    def publish(self, snapshot: Snapshot) -> None:
        """Writes the snapshot as if a pass of the agent began now."""
        now = msgspec.structs.replace(snapshot, listed_at=time.monotonic_ns())
        files.replace(str(self._snapshot), snapshots.encode(now), durable=False)

    def notifications(self) -> list[Notification]:
        """The notifications since the last call."""
        received = []
        while True:
            try:
                received.append(notifications.decode(self._socket.recv(1 << 18)))
            except BlockingIOError:
                return received

    def close(self) -> None:
        self._socket.close()
