"""The HTTPS server of the scheduler's process: a few routes, each a function of a JSON body.

cheroot does HTTP and has the threads. TLS is ours: its own adapter greets a client in the thread
that accepts all others, and keeps the certificate that it began with.
"""

from __future__ import annotations

import http
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from cheroot import errors, makefile, wsgi
from cheroot.ssl import Adapter

from agent.model.settings import host_port
from agent.scheduler.certificates import CertificateFiles

log = logging.getLogger(__name__)

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


class Reply(msgspec.Struct, frozen=True):
    """Of a route."""

    status: int
    body: bytes
    content_type: str = JSON


class Route(msgspec.Struct, frozen=True):
    """One path. `handle` is given the body, empty unless the method is POST, and runs in any of
    several threads at once. It may raise BadRequestError."""

    method: str
    handle: Callable[[bytes], Reply]


class BadRequestError(ValueError):
    """The body makes no sense; the message says why, and is the answer."""


class ServerError(RuntimeError):
    """The address can't be listened on."""


class Limits(msgspec.Struct, frozen=True):
    """`request_seconds`: from the first byte of a request, or of a connection, to the last byte of
    its body. `idle_seconds`: where no request is under way. `stop_seconds`: for requests under way
    when the server ends. `waiting`: requests that wait for a thread, and idle connections."""

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
        certificate: CertificateFiles,
        limits: Limits | None = None,
    ) -> None:
        """`routes` by path. Raises SettingsError for an address that is none."""
        limits = limits or Limits()
        self._address = address
        self._server = _Http(
            host_port(address),
            _Application(routes),
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
        self._server.ssl_adapter = _Tls(certificate, limits.request_seconds)
        self._thread = threading.Thread(target=self._server.serve, name="https", daemon=True)

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


class _Application:
    """WSGI: finds the route, and says what is wrong where there is none."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes

    def __call__(
        self, environ: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        route = self._routes.get(environ["PATH_INFO"])
        reply = self._refusal(route, environ)
        if route is not None and reply is None:
            body = b""
            if route.method == "POST":
                body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            try:
                reply = route.handle(body)
            except BadRequestError as error:
                reply = _said(400, str(error))
        assert reply is not None
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
        ]
        if reply.status == 405 and route is not None:
            headers.append(("Allow", route.method))
        start(f"{reply.status} {http.HTTPStatus(reply.status).phrase}", headers)
        return [reply.body]

    def _refusal(self, route: Route | None, environ: dict[str, Any]) -> Reply | None:
        if route is None:
            return _said(404, f"no such path; there are {', '.join(sorted(self._routes))}")
        if environ["REQUEST_METHOD"] != route.method:
            return _said(405, f"this path takes {route.method} only")
        if route.method != "POST":
            return None
        length = environ.get("CONTENT_LENGTH")
        if length is None:
            return _said(411, "the Content-Length is missing")
        # cheroot lets -1 pass, which would be a body without end.
        if not re.fullmatch("[0-9]+", length):
            return _said(400, "the Content-Length is no number")
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != JSON:
            return _said(415, f"the Content-Type is not {JSON}")
        return None


def _said(status: int, text: str) -> Reply:
    return Reply(status, f"{text}\n".encode(), TEXT)


class _Http(wsgi.Server):
    def process_conn(self, conn: Any) -> None:
        """A thread is for who has said something: who only connects waits with the idle ones."""
        if conn.last_used is None:
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """cheroot's word, in our log."""
        log.log(level, "%s", msg, exc_info=traceback)


class _Tls(Adapter):
    """What cheroot asks of TLS."""

    def __init__(self, files: CertificateFiles, request_seconds: float) -> None:
        self._files = files
        self._request_seconds = request_seconds

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        context = self._files.context()
        context.sslsocket_class = _Connection
        try:
            connection = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            sock.close()
            raise errors.FatalSSLAlert(*error.args) from error
        assert isinstance(connection, _Connection)
        connection.request_seconds = self._request_seconds
        return connection, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: socket.socket, mode: str = "r", bufsize: int = -1) -> object:
        return makefile.MakeFile(sock, mode, bufsize)


class _Connection(ssl.SSLSocket):
    """Greets at the first read, and bounds the time of a whole request: a client that sends a byte
    now and then would hold a thread for ever."""

    request_seconds = 0.0
    _greeted = False
    _since: float | None = None

    def recv_into(self, *words: Any, **named: Any) -> int:
        """Raises TimeoutError, which cheroot answers with 408."""
        self._bound()
        if not self._greeted:
            self._greet()
            self._bound()
        return super().recv_into(*words, **named)

    def send(self, *words: Any, **named: Any) -> int:
        if not self._greeted:
            raise errors.FatalSSLAlert("no time for this client")
        self._since = None
        self.settimeout(self.request_seconds)
        return super().send(*words, **named)

    def _bound(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self.request_seconds - (now - self._since)
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)

    def _greet(self) -> None:
        try:
            self.do_handshake()
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                socket.socket.send(self, _NO_TLS)
            log.debug("TLS: %s", error)
            raise errors.FatalSSLAlert(*error.args) from error
        self._greeted = True


_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"this port speaks HTTPS only\n"
)
