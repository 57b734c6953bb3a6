"""The HTTP port of an epoll loop: it accepts connections, keeps the limits, and gives complete
requests to its caller.

A process with one loop and no threads answers them there (`PageListener`); `server` has threads.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from agent.host.log_once import CountedWarnings
from agent.host.loop import READ, Loop, Timer
from agent.http.connection import ByteStream, HttpConnection, PlainStream
from agent.http.limits import (
    PAGES_EACH_SECOND,
    ConnectionLimits,
    ConnectionPhase,
    FullError,
    NewConnections,
    Places,
)
from agent.http.peers import NodeAddresses, is_loopback, peer_name
from agent.http.routes import HttpRequest, Route, dispatch

_CHECK_SECONDS: Final = 0.2
"""The shortest time between two checks for connections whose time is over."""
_PAUSE_SECONDS: Final = 1.0
"""Pause before the next accept when no descriptor is left and no connection is idle."""
_ACCEPTS: Final = 8
"""Of one event."""
_REFUSALS: Final = 256
"""Of one event: the connections of others wait behind those of a peer that opens too many."""
_BACKLOG: Final = 1024
_BODY_READ_BYTES: Final = 64 << 10
_LOG_SECONDS: Final = 60.0
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)

OnRequest = Callable[[HttpConnection, HttpRequest], None]
"""Called in the loop; `HttpConnection.respond` is to be called once."""


class HttpListener:
    """Accepts connections from its construction on. `port` is the actual one where 0 was requested.
    All calls are made in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        limits: ConnectionLimits,
        on_request: OnRequest,
        node: NodeAddresses,
        stream: Callable[[socket.socket], ByteStream] = PlainStream,
        clients: frozenset[str] = frozenset(),
    ) -> None:
        """`stream` makes the stream of an accepted connection. `clients`: the accepted names in
        client certificates; empty accepts any. Raises OSError when the address can't be listened
        on."""
        self.loop = loop
        self.limits = limits
        size = _BODY_READ_BYTES if limits.body_bytes else limits.head_bytes
        self.buffer = memoryview(bytearray(size))
        self.draining = False
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._warnings = CountedWarnings(log, _LOG_SECONDS)
        self._on_request = on_request
        self._node = node
        self._stream = stream
        self._clients = clients
        self._places: Places[HttpConnection] = Places(limits)
        self._new = NewConnections(limits)
        self._check: Timer | None = None
        self._resume: Timer | None = None
        host, _ = address
        self._socket = socket.create_server(
            address,
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
        )
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._accept_again()

    @property
    def connections(self) -> int:
        return len(self._places)

    def drain(self) -> None:
        """Stops listening; each connection ends when it has its reply."""
        if self.draining:
            return
        self.draining = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            self.loop.unregister(self._socket.fileno())
        self._socket.close()
        for each in list(self._places):
            each.drain()

    def close(self) -> None:
        """Stops listening and closes all connections."""
        self.drain()
        for each in list(self._places):
            each.close()
        if self._check is not None:
            self._check.cancel()

    def entered(self, connection: HttpConnection, phase: ConnectionPhase) -> None:
        now = time.monotonic()
        self._places.enter(connection, phase, now)
        seconds = self.limits.seconds(phase)
        if seconds is not None:
            self._check_at(now + seconds)

    def holds(self, connection: HttpConnection, held_bytes: int) -> None:
        victim = self._places.hold(connection, held_bytes)
        if victim is not None:
            self._close_for(victim)

    def requested(self, connection: HttpConnection, request: HttpRequest) -> None:
        self._on_request(connection, request)

    def crowded(self) -> bool:
        return self._places.crowded()

    def certifies(self, connection: HttpConnection, names: frozenset[str] | None) -> bool:
        if names is None:
            return False
        if self._clients and self._clients.isdisjoint(names):
            log.warning("client certificate refused: names %s", ", ".join(sorted(names)))
            return False
        if not connection.local:
            self._new.certified(connection.peer, time.monotonic())
        return True

    def ended(self, connection: HttpConnection) -> None:
        self._places.remove(connection)

    def _accept_again(self) -> None:
        self._resume = None
        self.loop.register(self._socket.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        begun = 0
        for _ in range(_REFUSALS):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused(error)
                return
            begun += self._begin(accepted, address[0])
            if begun >= _ACCEPTS:
                return

    def _refused(self, error: OSError) -> None:
        """The system lacks descriptors or memory for the waiting connection, and would report it at
        every poll."""
        victim = self._places.shed() if error.errno in _OUT_OF_DESCRIPTORS else None
        if victim is not None:
            self._close_for(victim)
            return
        self._warn("system", "no connection is accepted for a while: %s", str(error.strerror))
        self.loop.unregister(self._socket.fileno())
        self._resume = self.loop.after(_PAUSE_SECONDS, self._accept_again)

    def _begin(self, accepted: socket.socket, peer: str) -> bool:
        """False if the connection is refused, which takes no time."""
        now = time.monotonic()
        try:
            local = self._node.local(peer, accepted.getsockname()[0])
            if not local and not self._new.admit(peer_name(peer), now):
                accepted.close()
                self._warn("often", "connections of %s are refused: it opens too many", peer)
                return False
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = self._stream(accepted)
        except OSError:
            accepted.close()
            return False
        connection = HttpConnection(self, stream, peer_name(peer), local, is_loopback(peer))
        try:
            victim = self._places.admit(connection, connection.peer, local, now)
        except FullError:
            stream.close()
            self._warn("full", "a connection of %s is refused: all others are busy", peer)
            return False
        if victim is not None:
            self._close_for(victim)
        self._check_at(now + self.limits.hello_seconds)
        connection.start()
        return True

    def _close_for(self, victim: HttpConnection) -> None:
        victim.close()
        self._warn("idle", "the oldest idle connection is closed for a new one, of %s", victim.peer)

    def _warn(self, kind: str, text: str, what: str) -> None:
        self._warnings.add(self._counts, (kind,), f"port {self.port}: {text % what}")

    def _check_times(self) -> None:
        self._check = None
        for connection, phase in self._places.late(time.monotonic()):
            connection.expire(phase)
        self._check_at(self._places.next_end())

    def _check_at(self, when: float | None) -> None:
        """Checks then at the latest, and not before: connections that wait wake no thread."""
        if when is None or (self._check is not None and self._check.when <= when + _CHECK_SECONDS):
            return
        if self._check is not None:
            self._check.cancel()
        soon = time.monotonic() + _CHECK_SECONDS
        self._check = self.loop.at(max(when, soon), self._check_times)


PAGE_LIMITS: Final = ConnectionLimits(
    connections=24, reserved=8, each_peer=8, new_each_second=PAGES_EACH_SECOND
)


class PageListener(HttpListener):
    """Serves GET routes in the loop, one request a connection."""

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        node: NodeAddresses,
        limits: ConnectionLimits = PAGE_LIMITS,
    ) -> None:
        """Raises OSError when the address can't be listened on."""

        def respond(connection: HttpConnection, request: HttpRequest) -> None:
            connection.respond(dispatch(routes, request))

        super().__init__(loop, address, limits, respond, node)
