"""The agent's HTTP port: a few fixed pages, each made by a function when it is asked for."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping

import msgspec

from agent.model.settings.options import host_port


class HttpResponse(msgspec.Struct, frozen=True):
    """A page: status, text, content type."""

    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], HttpResponse]]


class HttpError(RuntimeError):
    """The address can't be listened on."""


class HttpServer:
    """Serves until `close`; `port` is the one taken when 0 was asked for."""

    def __init__(self, address: str, pages: Pages) -> None:
        """Raises SettingsError for an address that is none, HttpError for one that is taken."""
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
                """Without the look-up of our own name, which waits for a DNS that is down."""
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
