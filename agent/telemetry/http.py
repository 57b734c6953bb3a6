"""The agent's HTTP port: a few fixed pages, which functions make for each request, and the state of
the reconcile loop that /healthz and /readyz report.
"""

from __future__ import annotations

import http.server
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from agent.model.settings.options import host_port

log = logging.getLogger(__name__)


class HttpResponse(msgspec.Struct, frozen=True):
    """A page: status, text, content type."""

    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], HttpResponse]]


class HttpError(RuntimeError):
    """The address can't be listened on."""


class HttpServer:
    """Serves until `close`. `port` is the actual one where the address has port 0."""

    def __init__(self, address: str, pages: Pages) -> None:
        """Raises SettingsError for an invalid address, HttpError for one in use."""
        host, port = host_port(address)

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                answer = page() if page else HttpResponse(404, "no such page\n")
                body = answer.text.encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not logged."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def server_bind(self) -> None:
                """Omits the lookup of the host's name, which waits for a DNS that is down."""
                socketserver.TCPServer.server_bind(self)

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise HttpError(f"cannot listen on {address}: {error.strerror}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="http", daemon=True, kwargs={"poll_interval": 5}
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        threading.Thread(target=self._server.shutdown, daemon=True).start()
        self._server.server_close()


_STALE_SECONDS = 5.0


class Health:
    """The state of the reconcile loop, for /healthz and /readyz."""

    def __init__(self, period_seconds: float) -> None:
        self._patience_seconds = max(_STALE_SECONDS, 4 * period_seconds)
        self._begun = time.monotonic()
        self._succeeded: float | None = None
        self._error = "no pass has ended yet"
        self._pause_seconds = 0.0

    def begin(self) -> None:
        """A pass begins."""
        self._begun = time.monotonic()

    def end(self, error: str) -> None:
        """The pass ended, with "" for success. Logs a new error."""
        if self.is_new(error):
            log.error("%s", error)
        self._error = error
        if not error:
            self._succeeded = time.monotonic()

    def rest(self, pause_seconds: float) -> None:
        """The next pass begins only after this time."""
        self._pause_seconds = pause_seconds

    def is_new(self, error: str) -> bool:
        """Whether the last pass ended otherwise: a lasting error is logged once."""
        return bool(error) and error != self._error

    def alive(self) -> HttpResponse:
        """503 when passes have stopped."""
        silent = time.monotonic() - self._begun
        if silent > self._pause_seconds + 4 * self._patience_seconds:
            return HttpResponse(503, f"no pass for {silent:.0f} s\n")
        return HttpResponse(200, "ok\n")

    def ready(self) -> HttpResponse:
        """503 unless the last pass succeeded (so the runtime answers) and is recent."""
        if self._error:
            return HttpResponse(503, f"{self._error}\n")
        age = time.monotonic() - (self._succeeded or 0)
        if age > self._pause_seconds + self._patience_seconds:
            return HttpResponse(503, f"the snapshot is {age:.0f} s old\n")
        return HttpResponse(200, "ok\n")
