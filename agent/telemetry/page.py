"""The HTTP port of a process with one epoll loop: it reads a request, writes a page, and closes the
connection."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.host.loop import READ, WRITE, Loop, Timer

log = logging.getLogger(__name__)


class HttpResponse(msgspec.Struct, frozen=True):
    """A page: status, text, content type."""

    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"


METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Pages = Mapping[bytes, Callable[[], HttpResponse]]
_PHRASES: Final = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}

_LARGEST_REQUEST_BYTES = 8192
_PATIENCE_SECONDS = 10.0
_MAX_CONNECTIONS = 16
_PAUSE_SECONDS = 1.0
"""Pause before the next accept when no file descriptor was left."""


class PageServer:
    """Serves GET of the given paths. `port` is the actual one where 0 was requested."""

    def __init__(self, loop: Loop, host: str, port: int, pages: Pages) -> None:
        """Raises OSError when the address can't be listened on."""
        self._loop = loop
        self._pages = pages
        self._open = 0
        self._socket = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._pause: Timer | None = None
        self._listen()

    def close(self) -> None:
        """Stops listening."""
        if self._pause is None:
            self._loop.unregister(self._socket.fileno())
        else:
            self._pause.cancel()
        self._socket.close()

    def _accept(self, events: int) -> None:
        try:
            client, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self._loop.unregister(self._socket.fileno())
            self._pause = self._loop.after(_PAUSE_SECONDS, self._listen)
            return
        if self._open >= _MAX_CONNECTIONS:
            client.close()
            return
        self._open += 1
        _Connection(self._loop, client, self._pages, self._left)

    def _listen(self) -> None:
        self._pause = None
        self._loop.register(self._socket.fileno(), READ, self._accept)

    def _left(self) -> None:
        self._open -= 1


class _Connection:
    """One connection."""

    def __init__(
        self, loop: Loop, client: socket.socket, pages: Pages, left: Callable[[], None]
    ) -> None:
        client.setblocking(False)
        self._loop = loop
        self._client = client
        self._pages = pages
        self._left = left
        self._request = b""
        self._answer = b""
        self._late = loop.after(_PATIENCE_SECONDS, self._close)
        loop.register(client.fileno(), READ, self._ready)

    def _ready(self, events: int) -> None:
        try:
            if self._answer:
                self._send()
            else:
                self._read()
        except BlockingIOError:
            return
        except OSError:
            self._close()

    def _read(self) -> None:
        piece = self._client.recv(_LARGEST_REQUEST_BYTES)
        self._request += piece
        if not piece or len(self._request) > _LARGEST_REQUEST_BYTES:
            self._close()
        elif b"\r\n\r\n" in self._request:
            try:
                self._answer = self._respond()
            except Exception:
                self._close()
                raise
            self._loop.modify(self._client.fileno(), WRITE)

    def _send(self) -> None:
        sent = self._client.send(self._answer)
        self._answer = self._answer[sent:]
        if not self._answer:
            self._close()

    def _respond(self) -> bytes:
        words = self._request.split(b"\r\n", 1)[0].split(b" ")
        path = words[1].partition(b"?")[0] if len(words) == 3 and words[0] == b"GET" else b""
        page = self._pages.get(path)
        answer = page() if page else HttpResponse(404, "no such page\n")
        body = answer.text.encode()
        head = (
            f"HTTP/1.1 {answer.status} {_PHRASES.get(answer.status, '')}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _close(self) -> None:
        self._late.cancel()
        with contextlib.suppress(KeyError, FileNotFoundError):
            self._loop.unregister(self._client.fileno())
        self._client.close()
        self._left()


def serve_pages(
    loop: Loop, address: tuple[str, int] | None, page: Callable[[], str]
) -> PageServer | None:
    """Returns None without an address, and for a port in use: the process does its work without
    metrics too."""
    if address is None:
        return None
    pages = {
        b"/metrics": lambda: HttpResponse(200, page(), METRICS_TYPE),
        b"/healthz": lambda: HttpResponse(200, "ok\n"),
    }
    try:
        return PageServer(loop, *address, pages)
    except OSError as error:
        log.warning("no metrics on %s port %d: %s", *address, error)
        return None
