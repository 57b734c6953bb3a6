"""The HTTP server of the scheduler's process, over TLS or plain.

cheroot does HTTP and has the threads. TLS is ours: its own adapter greets a client in the thread
that accepts all others, and keeps the certificate that it began with.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from cheroot import errors, makefile, wsgi
from cheroot.server import HTTPConnection
from cheroot.ssl import Adapter

from agent.model.settings import host_port
from agent.scheduler import certificates
from agent.scheduler.certificates import CertificateFiles
from agent.scheduler.routes import Application, Route

log = logging.getLogger(__name__)


class ServerError(RuntimeError):
    """The address can't be listened on."""


class Limits(msgspec.Struct, frozen=True):
    """`request_seconds`: from the first byte of a request, or of a connection, to the last byte of
    its body, and again for the answer. `idle_seconds`: where no request is under way.
    `stop_seconds`: for requests under way when the server ends. `waiting`: requests that wait for a
    thread, and idle connections."""

    body_bytes: int = 8 << 20
    header_bytes: int = 64 << 10
    request_seconds: float = 10.0
    idle_seconds: int = 120
    stop_seconds: int = 5
    threads: int = 16
    waiting: int = 256


class Server:
    """Serves from `start` to `close`; `port` is the one taken when 0 was asked for."""

    def __init__(
        self,
        address: str,
        routes: Mapping[str, Route],
        certificate: CertificateFiles | None = None,
        limits: Limits | None = None,
        clients: Collection[str] = (),
    ) -> None:
        """`routes` by path; no certificate: plain HTTP. `clients`: the names of which a client's
        certificate must bear one, where the certificate files ask for one at all; empty: any.
        Raises SettingsError for an address that is none."""
        limits = limits or Limits()
        self._address = address
        self._server = _Http(
            host_port(address),
            Application(routes),
            numthreads=limits.threads,
            server_name="topolet",
            timeout=limits.idle_seconds,
            shutdown_timeout=limits.stop_seconds,
            accepted_queue_size=limits.waiting,
            accepted_queue_timeout=0,
            request_queue_size=limits.waiting,
        )
        self._server.max_request_body_size = limits.body_bytes
        self._server.max_request_header_size = limits.header_bytes
        self._server.keep_alive_conn_limit = limits.waiting
        self._server.request_seconds = limits.request_seconds
        if certificate is None:
            self._server.ConnectionClass = _PlainConnection
        else:
            self._server.ssl_adapter = _Tls(certificate, limits.request_seconds, frozenset(clients))
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)

    def start(self) -> None:
        """Returns when it listens. Raises ServerError."""
        try:
            self._server.prepare()
        except OSError as error:
            raise ServerError(f"cannot listen on {self._address}: {error}") from error
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.bind_addr[1])

    def close(self) -> None:
        """Accepts no more, and lets requests under way end."""
        self._server.stop()
        self._thread.join()


class _Http(wsgi.Server):
    request_seconds = 0.0

    def process_conn(self, conn: Any) -> None:
        """A thread is for who has said something: who only connects waits with the idle ones."""
        if conn.last_used is None:
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """cheroot's word, in our log."""
        log.log(level, "%s", msg, exc_info=traceback)


class _Bounded(socket.socket):
    """Bounds the time in which a whole request comes in and in which its answer goes out: a client
    that sends or takes a byte now and then would hold a thread for ever."""

    request_seconds = 0.0
    _reading = False
    _since = 0.0

    def recv_into(self, *words: Any, **named: Any) -> int:
        """Raises TimeoutError, which cheroot answers with 408."""
        self._bound(reading=True)
        return super().recv_into(*words, **named)

    def send(self, *words: Any, **named: Any) -> int:
        """Raises TimeoutError."""
        self._bound(reading=False)
        return super().send(*words, **named)

    def _bound(self, reading: bool) -> None:
        now = time.monotonic()
        if reading is not self._reading:
            self._reading, self._since = reading, now
        left = self.request_seconds - (now - self._since)
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)


class _PlainConnection(HTTPConnection):
    def __init__(self, server: _Http, sock: socket.socket, makefile: Any) -> None:
        bounded = _Bounded(sock.family, sock.type, sock.proto, sock.detach())
        bounded.request_seconds = server.request_seconds
        super().__init__(server, bounded, makefile)


class _Tls(Adapter):
    """What cheroot asks of TLS."""

    def __init__(
        self, files: CertificateFiles, request_seconds: float, clients: frozenset[str]
    ) -> None:
        self._files = files
        self._request_seconds = request_seconds
        self._clients = clients

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        context = self._files.context()
        context.sslsocket_class = _TlsSocket
        try:
            connection = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            sock.close()
            raise errors.FatalSSLAlert(*error.args) from error
        assert isinstance(connection, _TlsSocket)
        connection.request_seconds = self._request_seconds
        connection.clients = self._clients
        return connection, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = -1) -> object:
        return makefile.MakeFile(sock, mode, bufsize)


class _TlsSocket(_Bounded, ssl.SSLSocket):
    """Greets at the first read, within the time of the first request."""

    clients: frozenset[str] = frozenset()
    _greeted = False

    def recv_into(self, *words: Any, **named: Any) -> int:
        if not self._greeted:
            self._bound(reading=True)
            self._greet()
        return super().recv_into(*words, **named)

    def send(self, *words: Any, **named: Any) -> int:
        if not self._greeted:
            raise errors.FatalSSLAlert("no time for this client")
        return super().send(*words, **named)

    def _greet(self) -> None:
        try:
            self.do_handshake()
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                socket.socket.send(self, _NO_TLS)
            log.debug("TLS: %s", error)
            raise errors.FatalSSLAlert(*error.args) from error
        if self.clients:
            names = certificates.names(self.getpeercert() or {})
            if self.clients.isdisjoint(names):
                log.warning("refused: a client's certificate for %s", ", ".join(sorted(names)))
                super().send(_NO_CLIENT)
                raise errors.FatalSSLAlert("the certificate of no client of ours")
        self._greeted = True


_CLOSING: Final = b"Connection: close\r\nContent-Type: text/plain\r\n\r\n"
_NO_TLS: Final = b"HTTP/1.1 400 Bad Request\r\n" + _CLOSING + b"this port speaks HTTPS only\n"
_NO_CLIENT: Final = (
    b"HTTP/1.1 403 Forbidden\r\n" + _CLOSING + b"this certificate is that of no client of ours\n"
)
