"""The file at which clients find the proxy. Others can remove or replace it, which the connections
that are open do not show: only a kubelet that restarts fails then."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from agent.host.listener import Listener, ListenError
from agent.host.log_once import Problem

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0


class OwnSocket:
    """Checks the file, and makes it again if the proxy itself made it."""

    def __init__(self, path: str, listener: Listener | None) -> None:
        """`listener` None: the service manager made the socket, and is the only one that can make
        it again."""
        self.path = path
        self._listener = listener
        self._own = _identity(path)
        self._problem = Problem(log, "", logging.ERROR)
        self.recreated = 0

    def lost(self) -> str:
        """Why clients don't find the proxy, with what helps; "" if they do."""
        present = _identity(self.path)
        if present is not None and present == self._own:
            return ""
        what = "does not exist" if present is None else "is not the proxy's"
        if self._listener is None:
            return f"{self.path} {what}: systemctl restart topolet-proxy.socket makes it again"
        return f"{self.path} {what}: the proxy makes it again as soon as the path is free"

    def check(self, listen_on: Callable[[socket.socket], None]) -> None:
        """Logs a lost file. `listen_on` gets the new socket if it was made again."""
        problem = self.lost()
        if problem and self._listener is not None and _identity(self.path) is None:
            try:
                former = self._listener.bind_again()
            except ListenError as error:
                problem = str(error)
            else:
                listen_on(self._listener.socket)
                former.close()
                self._own, problem = _identity(self.path), ""
                self.recreated += 1
                log.warning("%s did not exist: the proxy made it again", self.path)
        if problem:
            self._problem.report(problem)
        elif self._problem.clear():
            log.info("clients find the proxy at %s again", self.path)


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode; None without such a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
