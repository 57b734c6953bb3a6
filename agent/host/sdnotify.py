"""Notifications to the service manager (sd_notify(3)): ready, stopping, and the watchdog."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from agent.host.loop import Loop


class ServiceManager:
    """Without a manager every notification does nothing. `watchdog_seconds`: the interval in which
    the manager expects `alive`, None for never."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes the variables out of the environment: they are not for children."""
        self._path = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", "")
        period = environment.pop("WATCHDOG_USEC", "")
        self.watchdog_seconds: float | None = None
        if self._path and period.isdigit() and int(period) and pid in ("", str(os.getpid())):
            self.watchdog_seconds = int(period) / 1e6

    def ready(self) -> None:
        self._tell("READY=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def keep_alive(self, loop: Loop) -> None:
        """Notifies the watchdog from the loop, twice in each interval."""
        if self.watchdog_seconds is not None:
            self.alive()
            loop.after(self.watchdog_seconds / 2, lambda: self.keep_alive(loop))

    def _tell(self, text: str) -> None:
        if not self._path:
            return
        path = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as it:
            it.setblocking(False)
            it.sendto(text.encode(), path)
