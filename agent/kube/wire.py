"""Lists and watches of the API server: the connection, which another thread can close, the lists in
pages, and the events."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final, Generic, TypeVar

import msgspec
import urllib3
from urllib3.connection import HTTPConnection

from agent.kube.errors import (
    GoneError,
    KubeError,
    MalformedError,
    ServerError,
    TooLargeError,
    UnauthorizedError,
    UnreachableError,
)
from agent.kube.objects import WatchedMetadata
from agent.kube.transport import Query, Transport, chunks, read_response, translated_errors
from agent.model import bounds
from agent.model.bounds import JsonError

_INITIAL_END: Final = "k8s.io/initial-events-end"


class Stream:
    """One connection, which is kept between requests. One thread sends requests. Any other thread
    may close the connection, which ends the request in progress."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connection: HTTPConnection | None = None
        self._context: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def get(self, path: str, query: Query) -> bytes:
        """The body of a response. Raises KubeError, AccessError."""
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


class ListMetadata(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str = msgspec.field(name="continue", default="")
    """The token of the next page; empty on the last one."""


class Page(msgspec.Struct, frozen=True):
    """A list or one page of it."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch; the object of an ERROR is a Status."""

    type: str
    object: msgspec.Raw


class _Object(msgspec.Struct, frozen=True):
    metadata: WatchedMetadata


def page(request: str, body: bytes) -> Page:
    """Raises MalformedError, as all functions that decode."""
    try:
        return bounds.decode(_pages, body)
    except JsonError as error:
        raise MalformedError(f"{request}: {error}") from error


def event(request: str, line: bytes) -> WatchEvent:
    try:
        return bounds.decode(_events, line)
    except JsonError as error:
        raise MalformedError(f"{request}: {error}") from error


def metadata(request: str, text: msgspec.Raw) -> WatchedMetadata:
    """The metadata of an object with a name and a version, or with a version alone."""
    try:
        found = bounds.decode(_objects, bytes(text)).metadata
    except JsonError as error:
        raise MalformedError(f"{request}: {error}") from error
    if not found.resource_version:
        raise MalformedError(f"{request}: an object without resourceVersion")
    return found


def ends_initial(bookmark: WatchedMetadata) -> bool:
    """Whether all existing objects were reported (WatchList)."""
    return (bookmark.annotations or {}).get(_INITIAL_END) == "true"


def not_newer(version: str, than: str | None) -> bool:
    """Versions are numbers that grow; any other text counts as newer unless it is equal."""
    if than is not None and _NUMBER.fullmatch(version) and _NUMBER.fullmatch(than):
        return int(version) <= int(than)
    return version == than


_NUMBER: Final = re.compile("[0-9]{1,40}")
_pages = msgspec.json.Decoder(Page)
_events = msgspec.json.Decoder(WatchEvent)
_objects = msgspec.json.Decoder(_Object)


T = TypeVar("T")

PAGE: Final = 500
_SHRINKS: Final = 25
"""The factor by which a page shrinks: 500 objects, 20, 1."""


class Listed(msgspec.Struct, Generic[T]):
    """The objects of a list, and its resourceVersion."""

    found: list[T]
    version: str


def listed(
    path: str,
    select: Query,
    get: Callable[[str, Query], bytes],
    take: Callable[[msgspec.Raw], T],
    *,
    from_cache: bool = False,
) -> Listed[T]:
    """Lists objects, page by page. After a response that is too large the list restarts with
    smaller pages.

    `take`: decodes one object to the value that is kept.
    `from_cache`: the server answers from its cache, which may be old, without pages.

    Raises KubeError, AccessError and the exceptions of `take`."""
    request = f"list of {path}"
    size = PAGE
    query: Query = {**select, "limit": size}
    if from_cache:
        query = {**query, "resourceVersion": "0"}
    values: list[T] = []
    while True:
        try:
            listing = page(request, get(path, query))
        except TooLargeError:
            if size == 1:
                raise
            size = max(1, size // _SHRINKS)
            values.clear()
            query = {**select, "limit": size}
            continue
        except GoneError:
            if "continue" not in query:
                raise
            # The server's new token continues with a newer state: changes on the pages before
            # would be lost.
            values.clear()
            query = dict(select) if size == PAGE else {**select, "limit": size}
            continue
        values.extend(map(take, listing.items or ()))
        token = listing.metadata.continue_
        if not token:
            break
        if query.get("continue") == token:
            raise MalformedError(f"{request}: the same page again")
        query = {**select, "limit": size, "continue": token}
    if not listing.metadata.resource_version:
        raise MalformedError(f"{request}: has no resourceVersion")
    return Listed(values, listing.metadata.resource_version)
