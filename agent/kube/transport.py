"""Requests to the API server over kept connections: bytes and JSON, without knowledge of objects.

A response is read within limits of time and size, and a status other than 2xx becomes the error of
`agent.kube.errors` that belongs to it.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent.kube import errors
from agent.kube.auth import Access
from agent.kube.errors import (
    KubeError,
    ServerError,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)


class ResponseLimits(msgspec.Struct, frozen=True):
    """Limits of one response."""

    connect_seconds: float = 5.0
    read_seconds: float = 15.0
    whole_seconds: float = 60.0
    body_bytes: int = 64 << 20
    line_bytes: int = 16 << 20


class ApiResponse(msgspec.Struct, frozen=True):
    """The response to a successful request."""

    status: int
    body: bytes


def read_response(
    request: str, response: urllib3.BaseHTTPResponse, limits: ResponseLimits
) -> ApiResponse:
    """Reads a successful response, and returns the connection to the pool. Raises KubeError for
    any other status, and for a response that can't be read."""
    deadline = time.monotonic() + limits.whole_seconds
    body = bytearray()
    with contextlib.ExitStack() as unread:
        unread.callback(response.close)
        for chunk in chunks(response):
            body += chunk
            if len(body) > limits.body_bytes:
                raise TooLargeError(f"{request}: a response of more than {limits.body_bytes} bytes")
            if time.monotonic() > deadline:
                raise UnreachableError(f"{request}: no end after {limits.whole_seconds:.0f} s")
        unread.pop_all()
    response.release_conn()
    if 200 <= response.status < 300:
        return ApiResponse(response.status, bytes(body))
    raise errors.refusal(
        request,
        errors.status_of(bytes(body)),
        response.status,
        _seconds(response.headers.get("Retry-After")),
    )


@contextlib.contextmanager
def translated_errors(request: str) -> Iterator[None]:
    """Raises the errors of urllib3 and http.client as UnreachableError."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UnreachableError(f"{request}: {cause}") from error


def chunks(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yields the parts of the body as they arrive."""
    if getattr(response, "chunked", False):
        yield from response.read_chunked(_PIECE_BYTES)
        return
    while piece := response.read1(_PIECE_BYTES):
        yield piece


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; None for a date, which no API server sends."""
    if retry_after is None or not _RETRY_AFTER.fullmatch(retry_after):
        return None
    return float(retry_after)


_RETRY_AFTER = re.compile("[0-9]{1,9}")
_PIECE_BYTES = 65_536


Listener = Callable[[], None]


class Reachability:
    """Whether a server answers; a process has one object for each server. Every request reports
    its result here. Watches that pause because the server did not answer are listeners: the first
    answer to any request ends their pauses. Any thread may call every method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unreachable = False
        self._listeners: set[Listener] = set()

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Surrounds a request. A 429 or a 5xx does not change whether the server is reachable."""
        try:
            yield
        except UnreachableError:
            self._unreachable = True
            raise
        except (ServerError, TooManyRequestsError):
            raise
        except KubeError:
            self._answered()
            raise
        else:
            self._answered()

    def listen(self, listener: Listener) -> None:
        """Calls the listener, until `ignore`, at the first answer after a request without one, on
        the thread of the answered request. It must not block."""
        with self._lock:
            self._listeners.add(listener)

    def ignore(self, listener: Listener) -> None:
        """Removes a listener, if it is one."""
        with self._lock:
            self._listeners.discard(listener)

    def _answered(self) -> None:
        if not self._unreachable:
            return
        with self._lock:
            returned, self._unreachable = self._unreachable, False
            listeners = tuple(self._listeners)
        if returned:
            for each in listeners:
                each()


FIELD_MANAGER: Final = "topolet"
Query = Mapping[str, str | int]

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


class Transport:
    """One server. Every method may be called from any thread, and raises KubeError or AccessError.

    `connections`: how many are kept open; each further request at the same time opens another.
    `reachability`: shared by all transports to the same server."""

    def __init__(
        self,
        access: Access,
        *,
        user_agent: str = "topolet",
        limits: ResponseLimits | None = None,
        connections: int = 2,
        reachability: Reachability | None = None,
    ) -> None:
        self.limits = limits or ResponseLimits()
        self.access = access
        self.reachability = reachability or Reachability()
        self._user_agent = user_agent
        self._kept = connections
        self._lock = threading.Lock()
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._context: ssl.SSLContext | None = None

    def get(self, path: str, query: Query | None = None) -> bytes:
        return self.request("GET", path, query).body

    def create(self, path: str, wanted: Any) -> bytes:
        return self.request("POST", path, body=wanted).body

    def apply(self, path: str, wanted: Any, *, force: bool = True) -> ApiResponse:
        """Server-side apply: Topolet's fields become those of `wanted`, other managers' fields
        stay. With `force` it takes over fields of `wanted` that others own, otherwise that is a
        ConflictError. Status 201: the object is new."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        return self.request("PATCH", path, query, wanted, APPLY)

    def merge(self, path: str, patch: Any) -> bytes:
        """Sends a JSON merge patch (RFC 7386): fields with the value None are removed."""
        return self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, MERGE).body

    def json_patch(self, path: str, changes: Any) -> bytes:
        """Sends a JSON patch (RFC 6902): the server makes all changes of the list or none."""
        query = {"fieldManager": FIELD_MANAGER}
        return self.request("PATCH", path, query, changes, JSON_PATCH).body

    def delete(self, path: str) -> bytes:
        return self.request("DELETE", path).body

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> ApiResponse:
        """Sends the request once, and once more after the renewal of a refused token."""
        request = f"{method} {path}"
        data = None if body is None else msgspec.json.encode(body)
        while True:
            headers = self.headers()
            if data is not None:
                headers["Content-Type"] = content_type
            with self.reachability.reported(), translated_errors(request):
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
                    return read_response(request, response, self.limits)
                except UnauthorizedError:
                    if self.out_of_credentials(headers):
                        raise

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def headers(self) -> dict[str, str]:
        return {
            "Accept": JSON,
            "Accept-Encoding": "identity",
            "User-Agent": self._user_agent,
            **self.access.headers(),
        }

    def out_of_credentials(self, refused: Mapping[str, str]) -> bool:
        """Renews the credentials after a 401. Returns True if they have not changed."""
        if self.access.headers().get("Authorization") != refused.get("Authorization"):
            return False  # another thread has renewed them
        return not self.access.renew() or (
            self.access.headers().get("Authorization") == refused.get("Authorization")
        )

    def target(self, path: str, query: Query | None) -> str:
        """The target in the request line."""
        prefix = urllib3.util.parse_url(self.access.server).path or ""
        return prefix + path + (f"?{urlencode(query)}" if query else "")

    def connection(self, context: ssl.SSLContext | None) -> HTTPConnection:
        """Returns a new connection, which is not connected yet."""
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
        return kind(url.host or "", url.port, maxsize=self._kept, **self._options(context))

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


def segment(name: str) -> str:
    """Returns a name, quoted as a part of a path."""
    return quote(name, safe="")


# Detects within half a minute that a server is gone, also while a watch receives nothing.
_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]


class Transports:
    """Makes transports to one server, which share its `Reachability`."""

    def __init__(self, access: Access, user_agent: str) -> None:
        self._access = access
        self._user_agent = user_agent
        self._reachability = Reachability()
        self._made: list[Transport] = []

    def new(self, limits: ResponseLimits | None = None, connections: int = 4) -> Transport:
        """A further transport to the same server.

        `connections`: how many it keeps open."""
        transport = Transport(
            self._access,
            user_agent=self._user_agent,
            limits=limits,
            connections=connections,
            reachability=self._reachability,
        )
        self._made.append(transport)
        return transport

    def close(self) -> None:
        for each in self._made:
            each.close()
