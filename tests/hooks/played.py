"""The agent's side of the files and sockets that a frontend shares with it, simulated by a test."""

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


class PlayedAgent:
    """`notifications`: those since the last call."""

    def __init__(self, snapshot: Path, notifier: Path) -> None:
        self._snapshot = snapshot
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._ear.bind(str(notifier))

    def publish(self, snapshot: Snapshot) -> None:
        """As after a pass of the agent just now."""
        now = msgspec.structs.replace(snapshot, listed_at=time.monotonic_ns())
        files.replace(str(self._snapshot), snapshots.encode(now), durable=False)

    def notifications(self) -> list[Notification]:
        received = []
        while True:
            try:
                received.append(notifications.decode(self._ear.recv(1 << 18)))
            except BlockingIOError:
                return received

    def close(self) -> None:
        self._ear.close()
