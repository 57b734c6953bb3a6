"""A relay between a client and an API server that kills the client at a write."""

from __future__ import annotations

import contextlib
import enum
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from tests.integration.apiserver.server import ApiServer

_CHUNK: Final = 65536


class Moment(enum.Enum):
    """When the client is killed. BEFORE: the server does not receive the write. AFTER: the client
    does not receive the answer."""

    BEFORE = "before"
    AFTER = "after"


class KillingRelay:
    """Serves HTTP without TLS at `url`. Writes are PATCH requests; `writes` counts them. `written`
    is called after each write that the server has answered."""

    def __init__(self, server: ApiServer, written: Callable[[], None] = lambda: None) -> None:
        self._target = urlsplit(server.url).netloc
        self._context = ssl.create_default_context(cafile=str(server.folder / "ca.crt"))
        self._written = written
        self._lock = threading.Lock()
        self._at: tuple[int, Moment] | None = None
        self._kill: Callable[[], None] = lambda: None
        self.writes = 0
        self.killed = threading.Event()
        relay = self

        class Handler(_Handler):
            def serve(self) -> None:
                relay.serve(self)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self._upstreams: set[http.client.HTTPSConnection] = set()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def arm(self, number: int, moment: Moment, kill: Callable[[], None]) -> None:
        """Kills the client at the write of this number. The count starts at 0 again."""
        with self._lock:
            self._at, self._kill, self.writes = (number, moment), kill, 0
            self.killed.clear()

    def close(self) -> None:
        """Must be called after the client has ended."""
        self._http.shutdown()
        for each in tuple(self._upstreams):
            if (upstream := each.sock) is not None:  # it ends meanwhile
                with contextlib.suppress(OSError):
                    upstream.shutdown(socket.SHUT_RDWR)
        self._http.server_close()
        self._thread.join()

    def serve(self, caller: _Handler) -> None:
        if caller.command != "PATCH":
            self._forward(caller)
            return
        # One write at a time, so that `written` sees no later write.
        with self._lock:
            at, number = self._at, self.writes
            self.writes += 1
            if at == (number, Moment.BEFORE):
                self._kill_client(caller)
            elif at == (number, Moment.AFTER):
                with self._answer(caller) as answer:
                    answer.read()
                self._written()
                self._kill_client(caller)
            else:
                self._forward(caller)
                self._written()

    def _kill_client(self, caller: _Handler) -> None:
        self._at = None
        self._kill()
        self.killed.set()
        caller.close_connection = True

    @contextlib.contextmanager
    def _answer(self, caller: _Handler) -> Iterator[http.client.HTTPResponse]:
        length = int(caller.headers.get("Content-Length") or 0)
        body = caller.rfile.read(length) if length else None
        upstream = http.client.HTTPSConnection(self._target, context=self._context, timeout=600)
        headers = {key: value for key, value in caller.headers.items() if key.lower() != "host"}
        with contextlib.closing(upstream):
            upstream.connect()
            self._upstreams.add(upstream)
            try:
                upstream.request(caller.command, caller.path, body, headers)
                with contextlib.closing(upstream.getresponse()) as answer:
                    yield answer
            finally:
                self._upstreams.discard(upstream)

    def _forward(self, caller: _Handler) -> None:
        with self._answer(caller) as answer:
            caller.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("transfer-encoding", "content-length", "connection"):
                    caller.send_header(key, value)
            caller.send_header("Transfer-Encoding", "chunked")
            caller.end_headers()
            while part := answer.read1(_CHUNK):
                caller.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                caller.wfile.flush()
            caller.wfile.write(b"0\r\n\r\n")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    serve: Callable[[], None]
    """Answers a request; defined by a subclass."""

    def _serve(self) -> None:
        try:
            self.serve()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:
        """Discards the log."""


@contextlib.contextmanager
def relaying(server: ApiServer, written: Callable[[], None]) -> Iterator[KillingRelay]:
    relay = KillingRelay(server, written)
    try:
        yield relay
    finally:
        relay.close()
