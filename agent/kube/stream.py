"""The connection of a watch, for its lists and watches; another thread can close it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Generator, Iterator

import urllib3
from urllib3.connection import HTTPConnection

from agent.kube.errors import (
    KubeError,
    MalformedError,
    ServerError,
    UnauthorizedError,
    UnreachableError,
)
from agent.kube.transport import Query, Transport, chunks, read_response, translated_errors


class Stream:
    """One connection, kept between requests. One thread sends requests. Any other thread may close
    it, which ends a pending request and the stream."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connection: HTTPConnection | None = None
        self._context: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def get(self, path: str, query: Query) -> bytes:
        """Raises KubeError, AccessError."""
        request = f"GET {path}"
        limits = self._transport.limits
        with self._guarded(request):
            return read_response(request, self._send(path, query), limits).body

    def lines(
        self, path: str, query: Query, seconds: float, *, silence_seconds: float | None = None
    ) -> Generator[bytes, None, None]:
        """Returns when the server has accepted the request, then yields the lines of the response.
        A response that does not end within `seconds` is an error. So is a silence longer than
        `silence_seconds`, or, without it, than ResponseLimits allow. Closing the generator before
        the end closes the connection. Both raise KubeError, AccessError."""
        request = f"GET {path}"
        with self._guarded(request):
            response = self._send(path, query)
            if response.status != 200:
                read_response(request, response, self._transport.limits)
            if silence_seconds is not None:
                self.allow_silence(silence_seconds)
        return self._lines(request, response, seconds)

    def _lines(
        self, request: str, response: urllib3.BaseHTTPResponse, seconds: float
    ) -> Generator[bytes, None, None]:
        limits = self._transport.limits
        deadline = time.monotonic() + seconds
        torn = bytearray()
        with self._guarded(request):
            for chunk in chunks(response):
                torn += chunk
                if b"\n" in chunk:
                    *whole, rest = bytes(torn).split(b"\n")
                    torn = bytearray(rest)
                    yield from filter(None, whole)
                if len(torn) > limits.line_bytes:
                    raise MalformedError(
                        f"{request}: a line of more than {limits.line_bytes} bytes"
                    )
                if time.monotonic() > deadline:
                    raise UnreachableError(f"{request}: no end after {seconds:.0f} s")
            if torn:
                raise UnreachableError(f"{request}: ends in the middle of a line")

    def allow_silence(self, seconds: float) -> None:
        """Sets the longest time between two pieces of the response that is being read."""
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def close(self) -> None:
        """Closes the connection, from any thread."""
        self._closed = True
        self._shut()

    def interrupt(self) -> None:
        """Makes the request in flight fail, from any thread."""
        self._shut()

    def drop(self) -> None:
        """Closes the connection, so that the next request opens a new one. Only the thread that
        sends requests calls it."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _guarded(self, request: str) -> Iterator[None]:
        done = False
        try:
            with self._transport.reachability.reported(), translated_errors(request):
                yield
            done = True
        except KubeError as error:
            # After a refusal that was read to its end the connection can be used again.
            done = not isinstance(error, UnreachableError | ServerError)
            raise
        finally:
            if not done or self._closed:
                self.drop()

    def _send(self, path: str, query: Query) -> urllib3.BaseHTTPResponse:
        while True:
            headers = self._transport.headers()
            connection = self._connected()
            connection.timeout = self._transport.limits.read_seconds
            connection.request(
                "GET",
                self._transport.target(path, query),
                headers=headers,
                preload_content=False,
            )
            response = connection.getresponse()
            if response.status != 401:
                return response
            try:
                read_response(f"GET {path}", response, self._transport.limits)
            except UnauthorizedError:
                if self._transport.out_of_credentials(headers):
                    raise

    def _connected(self) -> HTTPConnection:
        context = self._transport.access.tls()
        connection = self._connection
        if connection is not None and (context is not self._context or not connection.is_connected):
            self.drop()
            connection = None
        if connection is None:
            connection = self._transport.connection(context)
            self._connection, self._context = connection, context
            connection.connect()
        self._socket = connection.sock
        assert self._socket is not None
        self._socket.settimeout(self._transport.limits.read_seconds)
        if self._closed:
            raise UnreachableError("closed")
        return connection

    def _shut(self) -> None:
        if (connected := self._socket) is not None:
            with contextlib.suppress(OSError):
                # Below TLS: a thread that reads finds the end of the stream, not a changed object.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
