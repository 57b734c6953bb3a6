"""A service manager for the proxy, like systemd: it owns the proxy's socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from tests.integration.harness import TestNode
from tests.waiting import DEADLINE_SECONDS

_BOOT = """
import os, sys
os.dup2(int(sys.argv.pop(1)), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
from agent.__main__ import main
sys.exit(main())
"""


class ServiceManager:
    """Owns the socket, starts the proxy and receives its notifications."""

    def __init__(self, node: TestNode) -> None:
        self._node = node
        self.listening = socket.socket(socket.AF_UNIX)
        node.state.mkdir(exist_ok=True)
        self.listening.bind(node.cri_socket)
        self.listening.listen(128)
        self._notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify = str(node.folder / "notify.sock")
        self._notifications.bind(self._notify)
        self._notifications.settimeout(DEADLINE_SECONDS)
        self._proxy: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        descriptor = self.listening.fileno()
        with (self._node.folder / "proxy.log").open("ab") as log:
            self._proxy = subprocess.Popen(
                [
                    *(sys.executable, "-c", _BOOT, str(descriptor), "proxy"),
                    f"--runtime-endpoint=unix://{self._node.containerd.socket}",
                    f"--state-dir={self._node.state}",
                    "--http=",
                ],
                pass_fds=[descriptor],
                env={**os.environ, "NOTIFY_SOCKET": self._notify, "WATCHDOG_USEC": "200000"},
                stderr=log,
            )
        self.wait_for_notification(b"READY=1")

    def wait_for_notification(self, text: bytes) -> None:
        """Waits for this message of sd_notify."""
        until = time.monotonic() + DEADLINE_SECONDS
        while self._notifications.recv(64) != text:
            assert time.monotonic() < until, f"{text!r} does not arrive"

    def stop(self) -> None:
        assert self._proxy is not None
        self._proxy.send_signal(signal.SIGTERM)
        assert self._proxy.wait(DEADLINE_SECONDS) == 0

    def kill(self) -> None:
        """Sends SIGKILL. Clients that connect afterwards wait for the next proxy."""
        assert self._proxy is not None
        self._proxy.kill()
        self._proxy.wait()

    def close(self) -> None:
        if self._proxy is not None:
            self.kill()
        self.listening.close()
        self._notifications.close()
