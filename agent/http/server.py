"""The HTTP server of the agent, the scheduler and the webhook: one thread with an epoll loop for
all connections, and threads for complete requests.

A client occupies a thread only while its request is handled. The loop has handshakes, heads,
bodies, and the rest of a reply that its client reads slowly."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from agent.host.loop import Loop
from agent.http.connection import HttpConnection, PlainStream
from agent.http.limits import ConnectionLimits, WaitingRequests
from agent.http.listener import HttpListener
from agent.http.peers import NodeAddresses
from agent.http.requests import HttpRequest, Route, dispatch
from agent.model.settings.options import host_port

if TYPE_CHECKING:
    from agent.http.certificates import CertificateFiles  # loads ssl

_RESERVED_THREADS: Final = 1
"""For requests from the node, so that probes do not wait for requests of other clients."""


class HttpListenError(RuntimeError):
    """The server can't listen on its address; the message names it."""


class ServerLimits(msgspec.Struct, frozen=True):
    connections: ConnectionLimits
    threads: int
    """How many requests are handled at the same time. With 0 the loop's thread handles them, which
    saves two thread switches; then each connection has one request (`idle_seconds` is 0)."""
    stop_seconds: float = 5.0
    """The time for requests in flight when the server stops."""


class HttpServer:
    """Serves from `start` to `close`. Its `port` is the actual port if the address has port 0.

    `routes`: by path.
    `certificate`: None for plain HTTP.
    `clients`: the accepted names in client certificates, if the certificate files have a client CA;
        empty accepts any.

    Raises SettingsError for an invalid address."""

    def __init__(
        self,
        address: str,
        routes: Mapping[str, Route],
        limits: ServerLimits,
        node: NodeAddresses,
        certificate: CertificateFiles | None = None,
        clients: Collection[str] = (),
    ) -> None:
        self._address = address
        self._host_port = host_port(address)
        self._routes = routes
        self._limits = limits
        self._node = node
        self._certificate = certificate
        self._clients = frozenset(clients)
        self._queue = _RequestQueue(limits.threads)
        self._threads: list[threading.Thread] = []
        self._loop = Loop()
        self._listener: HttpListener | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Returns when the server listens. Raises HttpListenError."""
        try:
            self._listener = HttpListener(
                self._loop,
                self._host_port,
                self._limits.connections,
                self._requested,
                self._node,
                self._certificate.stream if self._certificate else PlainStream,
                self._clients,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            self._loop.close()
            raise HttpListenError(f"cannot listen on {self._address}: {reason}") from error
        self._thread.start()

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    def close(self) -> None:
        """Stops accepting connections, and lets requests in flight end."""
        if not self._thread.is_alive():
            return
        self._loop.stop()
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        listener = self._listener
        assert listener is not None
        self._loop.run()
        listener.drain()
        self._loop.run_on(lambda: not listener.connections, self._limits.stop_seconds)
        listener.close()
        self._queue.close()

    def _requested(self, connection: HttpConnection, request: HttpRequest) -> None:
        if not self._limits.threads:
            connection.respond(dispatch(self._routes, request))
            return
        self._queue.put(connection, request)
        if not self._queue.served and len(self._threads) < self._limits.threads:
            name = f"http-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
            self._threads[-1].start()

    def _serve(self) -> None:
        while (taken := self._queue.take()) is not None:
            connection, request = taken
            encoded = memoryview(connection.encoded(dispatch(self._routes, request)))
            sent = connection.send_at_once(encoded)
            self._queue.end(connection.local)
            self._loop.call(functools.partial(connection.send, encoded[sent:]))


class _RequestQueue:
    """The requests that wait for a thread; safe for several threads."""

    def __init__(self, threads: int) -> None:
        self._changed = threading.Condition()
        self._waiting: WaitingRequests[tuple[HttpConnection, HttpRequest]] = WaitingRequests(
            threads, _RESERVED_THREADS if threads > 1 else 0
        )
        self._idle = 0
        self._open = 0
        self._closed = False

    @property
    def served(self) -> bool:
        """Whether enough threads are idle for the requests that wait."""
        with self._changed:
            return self._idle >= self._open

    def put(self, connection: HttpConnection, request: HttpRequest) -> None:
        with self._changed:
            self._waiting.put(connection.peer, connection.local, (connection, request))
            self._open += 1
            self._changed.notify()

    def take(self) -> tuple[HttpConnection, HttpRequest] | None:
        """Waits for a request; returns None after `close`."""
        with self._changed:
            self._idle += 1
            while (taken := self._waiting.take()) is None:
                if self._closed:
                    return None
                self._changed.wait()
            self._idle -= 1
            self._open -= 1
            return taken[0]

    def end(self, local: bool) -> None:
        """A request has its reply."""
        with self._changed:
            self._waiting.end(local)
            if self._open:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
