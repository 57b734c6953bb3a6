"""The socket to the runtime, in the process's one loop: connects, registers, connects again."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final

from agent.hooks.changes import Changes
from agent.host.loop import Loop, Timer
from agent.model.verdict import Code
from agent.nri.connection import PluginConnection
from agent.nri.plugin import Plugin, PluginStats
from agent.rpc.grpc import RpcError

UPDATE_SECONDS: Final = 10.0
"""The runtime does one thing at a time, and gives each plugin 2 s for its part of it."""
FIRST_DELAY_SECONDS: Final = 0.2
LONGEST_DELAY_SECONDS: Final = 5.0
_STEADY_SECONDS: Final = 10.0
"""How long a session must have lasted for the next one to be tried soon."""

log = logging.getLogger(__name__)


class PluginLink:
    """Keeps one session open until `close`. With `given`, a socket that the runtime connected
    before it started this process, there is one session, and `over` is called at its end: the
    runtime starts another process when it needs one."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        name: str,
        index: str,
        plugin: Plugin,
        *,
        given: socket.socket | None = None,
        over: Callable[[], None] | None = None,
        update_seconds: float = UPDATE_SECONDS,
    ) -> None:
        self.stats = PluginStats()
        self.sessions = 0
        """Begun so far."""
        self.failed_sessions = 0
        self._loop = loop
        self._path = path
        self._name = name
        self._index = index
        self._plugin = plugin
        self._given = given
        self._over = over
        self._update_seconds = update_seconds
        self._connection: PluginConnection | None = None
        self._delay_seconds = FIRST_DELAY_SECONDS
        self._error = ""
        self._retry: Timer | None = None
        self._closing = False

    @property
    def ready(self) -> bool:
        """Whether the runtime has reported all containers and calls the hooks for each new one."""
        return self._connection is not None and self._connection.ready

    @property
    def takes_updates(self) -> bool:
        """Whether it is ready, and an update can't lock up the runtime."""
        return self._connection is not None and self._connection.takes_updates

    def start(self) -> None:
        """Connects now, or later."""
        self._retry = None
        try:
            it = self._given or _connected(self._path)
        except OSError as error:
            self._ended(f"{self._path}: {error.strerror}", 0.0)
            return
        self._given = None
        self.sessions += 1
        self._connection = PluginConnection(
            self._loop, it, self._plugin, self.stats, self._ready, self._ended
        )
        self._connection.register(self._name, self._index)

    def update(
        self, container_id: str, changes: Changes, done: Callable[[RpcError | None], None]
    ) -> None:
        """Asks the runtime to change one container, not several: after a container that fails, it
        changes the others too, but its answer is one error for all (containerd:
        internal/nri/domain.go, updateContainers). An answer without an error does not prove that
        anything has changed.
        """
        if self._connection is None:
            done(RpcError(Code.UNAVAILABLE, "no session with the runtime"))
            return
        self._connection.update(container_id, changes, self._update_seconds, done)

    def close(self) -> None:
        """Ends the session and begins no other."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
        if self._connection is not None:
            self._connection.finish()

    def _ready(self) -> None:
        self._error = ""
        log.info("registered with the runtime as %s-%s", self._index, self._name)

    def _ended(self, why: str, lasted_seconds: float) -> None:
        was_up, self._connection = self._connection is not None, None
        if self._closing:
            return
        self.failed_sessions += was_up
        if was_up or why != self._error:
            log.warning("no session with the runtime: %s", why)
        self._error = why
        if self._over is not None:
            self._over()
            return
        if lasted_seconds >= _STEADY_SECONDS:
            self._delay_seconds = FIRST_DELAY_SECONDS
        self._retry = self._loop.after(self._delay_seconds, self.start)
        self._delay_seconds = min(self._delay_seconds * 2, LONGEST_DELAY_SECONDS)


def _connected(path: str) -> socket.socket:
    it = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    it.setblocking(False)
    try:
        it.connect(path)
    except OSError:
        it.close()
        raise
    return it
