"""The HTTP server of the scheduler and the webhook, over TLS or plain.

cheroot provides HTTP and the threads. Sockets and their streams are those of `connections`, since
cheroot's TLS adapter does the handshake in the thread that accepts all connections, and never
reloads its certificate. The gateway between a request and its route does not use WSGI, which would
make a dictionary of thirty entries for each request.
"""

from __future__ import annotations

import contextlib
import http
import logging
import queue
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from cheroot import errors, server
from cheroot.ssl import Adapter
from cheroot.workers.threadpool import ThreadPool

from agent.model.settings.options import host_port
from agent.scheduler.extender import connections, http_routes
from agent.scheduler.extender.connections import CertificateFiles, StartError
from agent.scheduler.extender.http_routes import BadRequestError, HttpRequest, Reply, Route

log = logging.getLogger(__name__)

_NEXT_REQUEST_MS: Final = 200
_EXPIRY_SECONDS: Final = 10.0
"""Interval of the search for idle connections; each wakes the accepting thread. cheroot's own is
half a second."""


class ServerStartError(StartError):
    """The server can't listen on its address."""


class ServerLimits(msgspec.Struct, frozen=True):
    """`request_seconds`: from the first byte of a request, or of a connection, to the last byte of
    its body, and again for the reply. `idle_seconds`: for a connection without a request.
    `stop_seconds`: for requests in flight when the server stops. `waiting`: the number of requests
    that may wait for a thread, and of idle connections."""

    body_bytes: int = 8 << 20
    header_bytes: int = 64 << 10
    request_seconds: float = 10.0
    idle_seconds: int = 120
    stop_seconds: int = 5
    threads: int = 16
    waiting: int = 256


class Server:
    """Serves from `start` to `close`. `port` is the actual port if the address has port 0."""

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Route],
        certificate: CertificateFiles | None = None,
        limits: ServerLimits | None = None,
        clients: Collection[str] = (),
    ) -> None:
        """`pages` are by path. Without a certificate the server serves plain HTTP. `clients` are
        the accepted names in client certificates, if the certificate files have a client CA; empty
        accepts any. Raises SettingsError for an invalid address."""
        limits = limits or ServerLimits()
        self._address = address
        self._server = _Http(host_port(address), pages, limits)
        if certificate is not None:
            self._server.ssl_adapter = _Tls(
                certificate, limits.request_seconds, self._server.pressed, frozenset(clients)
            )
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)

    def start(self) -> None:
        """Returns when the server listens. Raises ServerStartError."""
        try:
            self._server.prepare()
        except OSError as error:
            raise ServerStartError(f"cannot listen on {self._address}: {error}") from error
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.bind_addr[1])

    def close(self) -> None:
        """Stops accepting connections, and lets requests in flight end."""
        self._server.stop()
        self._thread.join()


class _Gateway(server.Gateway):
    """Passes a request to its route after its headers were read."""

    def respond(self) -> None:
        request = self.req
        method = request.method.decode("latin-1")
        try:
            body = self._body()
        except BadRequestError as error:
            request.close_connection = True
            self._write(http_routes.text_reply(400, str(error)), with_body=True)
            return
        if body is None:
            request.close_connection = True
        parsed = HttpRequest(
            method,
            request.path.decode("latin-1"),
            request.inheaders.get(b"Content-Type", b"").decode("latin-1"),
            body,
        )
        self._write(http_routes.dispatch(request.server.pages, parsed), with_body=method != "HEAD")
        if body is None:
            # A client that is cut off while it sends does not read the reply.
            request.conn.rfile.read(request.server.limits.body_bytes)

    def _body(self) -> bytes | None:
        """Returns None if the length is unknown. A body that ends early is returned in part, which
        is invalid JSON. Raises BadRequestError."""
        request = self.req
        length = request.inheaders.get(b"Content-Length")
        if request.chunked_read or (length is None and request.method == b"POST"):
            return None
        # cheroot accepts -1, which would be an endless body.
        if length is not None and not re.fullmatch(b"[0-9]+", length):
            raise BadRequestError("the Content-Length is not a number")
        body: bytes = request.conn.rfile.read(int(length or 0))
        return body

    def _write(self, reply: Reply, with_body: bool) -> None:
        """Sends headers and body at once."""
        request = self.req
        if (
            request.response_protocol != "HTTP/1.1"
            # The leader is another process behind the same Service: a new connection may reach it.
            or reply.status == http.HTTPStatus.SERVICE_UNAVAILABLE
            or not request.server.can_add_keepalive_connection
        ):
            request.close_connection = True
        head = [
            f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
        ]
        if reply.allow:
            head.append(f"Allow: {reply.allow}")
        if request.close_connection:
            head.append("Connection: close")
        request.sent_headers = True
        text = "\r\n".join([*head, "\r\n"]).encode("latin-1")
        request.conn.wfile.write(text + reply.body if with_body else text)


class _Connection(server.HTTPConnection):
    def __init__(self, parent: _Http, sock: socket.socket, _: object) -> None:
        if parent.ssl_adapter is None:
            sock = connections.with_deadline(sock, parent.limits.request_seconds, parent.pressed)
        super().__init__(parent, sock, _file)

    def communicate(self) -> bool:
        """The next request of a client usually follows soon. While most threads are idle, this
        thread waits for it, which saves two thread switches."""
        while super().communicate():  # type: ignore[no-untyped-call]
            if not (self.server.ready and self.server.mostly_idle and self._next_request_soon()):
                return True
        return False

    def close(self) -> None:
        self.server.silent.pop(self, None)
        super().close()

    def _next_request_soon(self) -> bool:
        if self.rfile.has_data():
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(_NEXT_REQUEST_MS))


def _file(sock: Any, mode: str, _: int) -> connections.RequestReader | connections.Writer:
    return connections.RequestReader(sock) if "r" in mode else connections.Writer(sock)


class _Http(server.HTTPServer):
    ConnectionClass = _Connection

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Route], limits: ServerLimits):
        super().__init__(address, _Gateway, server_name="topolet")
        self.pages = pages
        self.limits = limits
        self.silent: dict[_Connection, None] = {}
        """Connections without a first byte, the oldest first; used by the accepting thread only."""
        self.requests = ThreadPool(
            self,
            min=limits.threads,
            accepted_queue_size=limits.waiting,
            accepted_queue_timeout=0,
        )
        self.timeout = limits.idle_seconds
        self.expiration_interval = min(_EXPIRY_SECONDS, limits.idle_seconds / 4)
        self.shutdown_timeout = limits.stop_seconds
        self.request_queue_size = limits.waiting
        self.max_request_body_size = limits.body_bytes
        self.max_request_header_size = limits.header_bytes
        self.keep_alive_conn_limit = limits.waiting

    @property
    def mostly_idle(self) -> bool:
        return bool(2 * self.requests.idle > self.limits.threads)

    def pressed(self) -> bool:
        """Whether requests wait for a thread."""
        return bool(self.requests.qsize)

    def process_conn(self, conn: Any) -> None:
        """A connection gets a thread when its first byte comes; until then it waits with the idle
        ones."""
        if conn.last_used is None:
            self._make_room()
            self.silent[conn] = None
            self.put_conn(conn)
        else:
            self.silent.pop(conn, None)
            try:
                self.requests.put(conn)
            except queue.Full:
                # cheroot would reply 503, and leave the socket to garbage collection.
                conn.close()

    def _make_room(self) -> None:
        """Connections without a first byte use at most half of the `waiting` limit; the oldest is
        closed first."""
        if len(self.silent) >= self.limits.waiting // 2:
            first = next(iter(self.silent))
            del self.silent[first]
            with contextlib.suppress(OSError):
                socket.socket.shutdown(first.socket, socket.SHUT_RDWR)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Writes cheroot's messages to the log."""
        log.log(level, "%s", msg, exc_info=traceback)


class _Tls(Adapter):
    """Implements cheroot's interface for TLS."""

    def __init__(
        self,
        files: CertificateFiles,
        request_seconds: float,
        pressed: Callable[[], bool],
        clients: frozenset[str],
    ) -> None:
        self._files = files
        self._request_seconds = request_seconds
        self._pressed = pressed
        self._clients = clients

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        context = self._files.context()
        try:
            made = connections.with_tls(
                sock, context, self._request_seconds, self._pressed, self._clients
            )
        except OSError as error:
            sock.close()
            raise errors.FatalSSLAlert(*error.args) from error
        return made, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = -1) -> object:
        return _file(sock, mode, bufsize)
