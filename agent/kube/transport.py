"""Requests to the API server over kept connections: bytes and JSON, nothing of our domain.

Of the server's answer everything has a bound: the time to connect, the pause between two pieces,
the whole of a body, and a line.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent.kube import errors
from agent.kube.auth import Access
from agent.kube.errors import KubeError, ServerError, UnauthorizedError, UnreachableError

FIELD_MANAGER: Final = "topolet"
Query = Mapping[str, str | int]

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"


class Limits(msgspec.Struct, frozen=True):
    """Of one answer."""

    connect_seconds: float = 5.0
    read_seconds: float = 15.0
    whole_seconds: float = 60.0
    body_bytes: int = 64 << 20
    line_bytes: int = 16 << 20


class Answer(msgspec.Struct, frozen=True):
    """Of a request that was granted."""

    status: int
    body: bytes


class Transport:
    """One server. Every method may be called from any thread, and raises KubeError or
    AccessError."""

    def __init__(
        self, access: Access, *, user_agent: str = "topolet", limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.access = access
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._context: ssl.SSLContext | None = None

    def get(self, path: str, query: Query | None = None) -> bytes:
        return self.request("GET", path, query).body

    def create(self, path: str, wanted: Any) -> bytes:
        return self.request("POST", path, body=wanted).body

    def apply(self, path: str, wanted: Any, *, force: bool = True) -> Answer:
        """Server-side apply: our fields become those of `wanted`, the others' stay. With `force`
        fields of `wanted` that somebody else owns become ours, else that is a ConflictError.
        Status 201 means that the object is new."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        return self.request("PATCH", path, query, wanted, APPLY)

    def merge(self, path: str, patch: Any) -> bytes:
        """JSON merge patch: None removes."""
        return self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, MERGE).body

    def delete(self, path: str) -> bytes:
        return self.request("DELETE", path).body

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Answer:
        """Nothing is tried twice, but for the one renewal of a token that was refused."""
        asked = f"{method} {path}"
        data = None if body is None else msgspec.json.encode(body)
        while True:
            headers = self.headers()
            if data is not None:
                headers["Content-Type"] = content_type
            with _troubles(asked):
                response = self._connections().urlopen(
                    method,
                    self.target(path, query),
                    body=data,
                    headers=headers,
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    preload_content=False,
                    timeout=urllib3.Timeout(
                        connect=self.limits.connect_seconds, read=self.limits.read_seconds
                    ),
                )
                try:
                    return granted(asked, response, self.limits)
                except UnauthorizedError:
                    if self.used_up(headers):
                        raise

    def close(self) -> None:
        """Forgets idle connections."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def stream(self) -> Stream:
        """A connection for a watch."""
        return Stream(self)

    def headers(self) -> dict[str, str]:
        """Of a request that is about to be sent."""
        return {
            "Accept": JSON,
            "Accept-Encoding": "identity",
            "User-Agent": self._user_agent,
            **self.access.headers(),
        }

    def used_up(self, refused: Mapping[str, str]) -> bool:
        """After a 401: whether there are no other credentials than those."""
        if self.access.headers().get("Authorization") != refused.get("Authorization"):
            return False  # another thread renewed them meanwhile
        return not self.access.renew() or (
            self.access.headers().get("Authorization") == refused.get("Authorization")
        )

    def target(self, path: str, query: Query | None) -> str:
        """What stands in the request line."""
        prefix = urllib3.util.parse_url(self.access.server).path or ""
        return prefix + path + (f"?{urlencode(query)}" if query else "")

    def connection(self, context: ssl.SSLContext | None) -> HTTPConnection:
        """A new one, not connected yet."""
        url = urllib3.util.parse_url(self.access.server)
        host = (url.host or "").strip("[]")
        options = {"timeout": self.limits.connect_seconds, **self._options(context)}
        if context is None:
            return HTTPConnection(host, url.port or 80, **options)
        return HTTPSConnection(host, url.port or 443, **options)

    def _connections(self) -> urllib3.HTTPConnectionPool:
        context = self.access.tls()
        with self._lock:
            if self._pool is None or context is not self._context:
                if self._pool is not None:
                    self._pool.close()
                self._pool, self._context = self._new_pool(context), context
            return self._pool

    def _new_pool(self, context: ssl.SSLContext | None) -> urllib3.HTTPConnectionPool:
        url = urllib3.util.parse_url(self.access.server)
        kind = urllib3.HTTPConnectionPool if context is None else urllib3.HTTPSConnectionPool
        return kind(url.host or "", url.port, maxsize=2, **self._options(context))

    def _options(self, context: ssl.SSLContext | None) -> dict[str, Any]:
        if context is None:
            return {"socket_options": _SOCKET_OPTIONS}
        name = self.access.server_name
        return {
            "socket_options": _SOCKET_OPTIONS,
            "ssl_context": context,
            "server_hostname": name,
            "assert_hostname": name if context.check_hostname else None,
        }


class Stream:
    """One connection, kept between requests. One thread asks, any other may close it: that wakes
    who waits for an answer, and ends the stream for good."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connection: HTTPConnection | None = None
        self._context: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def get(self, path: str, query: Query) -> bytes:
        """Raises KubeError, AccessError."""
        asked = f"GET {path}"
        limits = self._transport.limits
        with self._guarded(asked):
            return granted(asked, self._ask(path, query), limits).body

    def lines(
        self, path: str, query: Query, seconds: float, *, silence_seconds: float | None = None
    ) -> Generator[bytes, None, None]:
        """Returns when the server grants it. Then come the lines of the answer until its end; after
        `seconds` that is an error, whatever came. So is silence, longer than Limits allow or
        `silence_seconds`. Who stops before the end closes it. Both raise KubeError, AccessError."""
        asked = f"GET {path}"
        with self._guarded(asked):
            response = self._ask(path, query)
            if response.status != 200:
                granted(asked, response, self._transport.limits)
            if silence_seconds is not None:
                self.allow_silence(silence_seconds)
        return self._lines(asked, response, seconds)

    def _lines(
        self, asked: str, response: urllib3.BaseHTTPResponse, seconds: float
    ) -> Generator[bytes, None, None]:
        limits = self._transport.limits
        deadline = time.monotonic() + seconds
        torn = bytearray()
        with self._guarded(asked):
            for chunk in _chunks(response):
                torn += chunk
                if b"\n" in chunk:
                    *whole, rest = bytes(torn).split(b"\n")
                    torn = bytearray(rest)
                    yield from filter(None, whole)
                if len(torn) > limits.line_bytes:
                    raise ServerError(f"{asked}: a line of more than {limits.line_bytes} bytes")
                if time.monotonic() > deadline:
                    raise UnreachableError(f"{asked}: no end after {seconds:.0f} s")
            if torn:
                raise UnreachableError(f"{asked}: ends in the middle of a line")

    def allow_silence(self, seconds: float) -> None:
        """Between two pieces of the answer that is being read."""
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def close(self) -> None:
        """From any thread."""
        self._closed = True
        self._shut()

    def drop(self) -> None:
        """By the thread that asks: the next request gets a new connection."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _guarded(self, asked: str) -> Iterator[None]:
        done = False
        try:
            with _troubles(asked):
                yield
            done = True
        except KubeError as error:
            # After a refusal that was read to its end the connection is as good as before.
            done = not isinstance(error, UnreachableError | ServerError)
            raise
        finally:
            if not done or self._closed:
                self.drop()

    def _ask(self, path: str, query: Query) -> urllib3.BaseHTTPResponse:
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
                granted(f"GET {path}", response, self._transport.limits)
            except UnauthorizedError:
                if self._transport.used_up(headers):
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
                # Below TLS: the reader of another thread shall find an end, not a changed object.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


def granted(asked: str, response: urllib3.BaseHTTPResponse, limits: Limits) -> Answer:
    """The whole answer where it is a yes, and the connection back for the next. Raises KubeError
    where it is a no or can't be read."""
    deadline = time.monotonic() + limits.whole_seconds
    body = bytearray()
    try:
        for chunk in _chunks(response):
            body += chunk
            if len(body) > limits.body_bytes:
                raise ServerError(f"{asked}: an answer of more than {limits.body_bytes} bytes")
            if time.monotonic() > deadline:
                raise UnreachableError(f"{asked}: no end after {limits.whole_seconds:.0f} s")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    if 200 <= response.status < 300:
        return Answer(response.status, bytes(body))
    raise errors.refusal(
        asked,
        errors.status_of(bytes(body)),
        response.status,
        _seconds(response.headers.get("Retry-After")),
    )


def segment(name: str) -> str:
    """A name as part of a path."""
    return quote(name, safe="")


@contextlib.contextmanager
def _troubles(asked: str) -> Iterator[None]:
    """What the libraries below raise, as one error."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UnreachableError(f"{asked}: {cause}") from error


def _chunks(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Pieces as they arrive."""
    if getattr(response, "chunked", False):
        yield from response.read_chunked(_PIECE_BYTES)
        return
    while piece := response.read1(_PIECE_BYTES):
        yield piece


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; a date, which no API server sends, counts as none."""
    try:
        return float(int(retry_after)) if retry_after else None
    except ValueError:
        return None


_PIECE_BYTES = 65_536
# A server that is gone without a word is noticed in half a minute, however quiet a watch is.
_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]
