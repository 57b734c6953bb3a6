"""The HTTP port of an epoll loop: it accepts connections, enforces the limits, and passes complete
requests to its caller.

A process with one loop and without threads handles requests in the loop (`PageListener`); `server`
has threads for them.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.host.log_once import CountedWarnings
from agent.host.loop import READ, Loop, Timer
from agent.http.connection import ByteStream, HttpConnection, PlainStream
from agent.http.limits import (
    LOCAL_EACH_SECOND,
    PAGES_EACH_SECOND,
    ConnectionLimits,
    ConnectionPhase,
    ConnectionTable,
    FullError,
    NewConnections,
)
from agent.http.peers import NodeAddresses, is_loopback, peer_name
from agent.http.requests import HttpRequest, Route, dispatch, text_reply

_PROBES: Final = frozenset({"/healthz", "/readyz"})
_CHECK_SECONDS: Final = 0.2
"""The shortest time between two checks for phases that have lasted too long."""
_PAUSE_SECONDS: Final = 1.0
"""The pause before the next accept if no descriptor is free and no connection is idle."""
_MAX_BEGUN: Final = 8
"""Connections that are begun in one event."""
_MAX_ACCEPTED: Final = 256
"""Connections that are accepted in one event, most of them to be refused: the connections of other
peers wait in the queue behind those of a peer that opens too many."""
_BACKLOG: Final = 1024
_BODY_READ_BYTES: Final = 64 << 10
_LOG_SECONDS: Final = 60.0
_MAX_NAMES_CHARACTERS: Final = 200
"""The limit of a certificate's names in a log line, since the client chooses their size."""
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)

OnRequest = Callable[[HttpConnection, HttpRequest], None]
"""Called in the loop. It, or a thread that it starts, calls `HttpConnection.respond` once."""


class HttpListener:
    """Accepts connections from its construction on. All methods are called in the loop's thread.

    `stream`: makes the stream of an accepted connection.
    `clients`: the accepted names in client certificates; empty accepts any.

    Raises OSError when the address can't be listened on."""

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
        self._table: ConnectionTable[HttpConnection] = ConnectionTable(limits)
        self._new = NewConnections(limits)
        self._local = NewConnections(
            msgspec.structs.replace(
                limits, each_peer=limits.connections, new_each_second=limits.local_each_second
            )
        )
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
        """The actual port, if 0 was requested."""
        self._accept_again()

    @property
    def connections(self) -> int:
        return len(self._table)

    def drain(self) -> None:
        """Stops listening. Each connection is closed when its reply is sent."""
        if self.draining:
            return
        self.draining = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            self.loop.unregister(self._socket.fileno())
        self._socket.close()
        for each in list(self._table):
            each.drain()

    def close(self) -> None:
        """Stops listening and closes all connections."""
        self.drain()
        for each in list(self._table):
            each.close()
        if self._check is not None:
            self._check.cancel()

    def entered(self, connection: HttpConnection, phase: ConnectionPhase) -> None:
        now = time.monotonic()
        self._table.enter(connection, phase, now)
        seconds = self.limits.seconds(phase)
        if seconds is not None:
            self._check_at(now + seconds)

    def holds(self, connection: HttpConnection, held_bytes: int) -> None:
        victim = self._table.hold(connection, held_bytes)
        if victim is not None:
            self._close_for(victim)

    def requested(self, connection: HttpConnection, request: HttpRequest) -> None:
        limited = connection.local and request.path not in _PROBES
        if limited and not self._local.admit("", time.monotonic()):
            connection.respond(text_reply(503, "this node's clients send too many requests"))
            self._warn(
                "local", "requests of %s, on this node, are refused: too many", connection.peer
            )
            return
        self._on_request(connection, request)

    def crowded(self) -> bool:
        return self._table.crowded()

    def certifies(self, connection: HttpConnection, names: frozenset[str] | None) -> bool:
        if names is None:
            return False
        if self._clients and self._clients.isdisjoint(names):
            shown = ", ".join(sorted(names))[:_MAX_NAMES_CHARACTERS]
            self._warn("certificate", "client certificate refused: names %s", shown)
            return False
        if not connection.local:
            self._new.certified(connection.peer, time.monotonic())
        return True

    def ended(self, connection: HttpConnection) -> None:
        self._table.remove(connection)

    def _accept_again(self) -> None:
        self._resume = None
        self.loop.register(self._socket.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        begun = 0
        for _ in range(_MAX_ACCEPTED):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused(error)
                return
            begun += self._begin(accepted, address[0])
            if begun >= _MAX_BEGUN:
                return

    def _refused(self, error: OSError) -> None:
        """Handles an accept that failed, such as for lack of descriptors: closes an idle
        connection, or pauses, because epoll would report the waiting connection again at once."""
        victim = self._table.shed() if error.errno in _OUT_OF_DESCRIPTORS else None
        if victim is not None:
            self._close_for(victim)
            return
        self._warn("system", "no connection is accepted for a while: %s", str(error.strerror))
        self.loop.unregister(self._socket.fileno())
        self._resume = self.loop.after(_PAUSE_SECONDS, self._accept_again)

    def _begin(self, accepted: socket.socket, peer: str) -> bool:
        """Begins a connection. Returns False if it is refused, which takes hardly any time."""
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
            victim = self._table.admit(connection, connection.peer, local, now)
        except FullError:
            stream.close()
            self._warn("full", "a connection of %s is refused: all others are busy", peer)
            return False
        if victim is not None:
            self._close_for(victim)
        self._check_at(now + self.limits.handshake_seconds)
        connection.start()
        return True

    def _close_for(self, victim: HttpConnection) -> None:
        victim.close()
        self._warn("idle", "the oldest idle connection is closed for a new one, of %s", victim.peer)

    def _warn(self, kind: str, text: str, what: str) -> None:
        self._warnings.add(self._counts, (kind,), f"port {self.port}: {text % what}")

    def _check_times(self) -> None:
        self._check = None
        for connection, phase in self._table.late(time.monotonic()):
            connection.expire(phase)
        self._check_at(self._table.next_end())

    def _check_at(self, when: float | None) -> None:
        """Schedules the next check of the time limits. Checks are not periodic: connections that
        wait do not wake the thread."""
        if when is None or (self._check is not None and self._check.when <= when + _CHECK_SECONDS):
            return
        if self._check is not None:
            self._check.cancel()
        soon = time.monotonic() + _CHECK_SECONDS
        self._check = self.loop.at(max(when, soon), self._check_times)


PAGE_LIMITS: Final = ConnectionLimits(
    connections=24,
    reserved=8,
    each_peer=8,
    new_each_second=PAGES_EACH_SECOND,
    local_each_second=LOCAL_EACH_SECOND,
)


class PageListener(HttpListener):
    """Serves GET routes in the loop, one request on each connection."""

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
