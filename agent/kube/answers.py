"""Responses of the API server: read within bounds of time and size, and checked."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator

import msgspec
import urllib3

from agent.kube import errors
from agent.kube.errors import TooLargeError, UnreachableError


class ResponseLimits(msgspec.Struct, frozen=True):
    """Of one answer."""

    connect_seconds: float = 5.0
    read_seconds: float = 15.0
    whole_seconds: float = 60.0
    body_bytes: int = 64 << 20
    line_bytes: int = 16 << 20


class ApiResponse(msgspec.Struct, frozen=True):
    """Of a request that was granted."""

    status: int
    body: bytes


def granted(asked: str, response: urllib3.BaseHTTPResponse, limits: ResponseLimits) -> ApiResponse:
    """The body of a successful response; the connection returns to the pool. Raises KubeError for
    any other status, and for an answer that can't be read."""
    deadline = time.monotonic() + limits.whole_seconds
    body = bytearray()
    with contextlib.ExitStack() as unread:
        unread.callback(response.close)
        for chunk in chunks(response):
            body += chunk
            if len(body) > limits.body_bytes:
                raise TooLargeError(f"{asked}: an answer of more than {limits.body_bytes} bytes")
            if time.monotonic() > deadline:
                raise UnreachableError(f"{asked}: no end after {limits.whole_seconds:.0f} s")
        unread.pop_all()
    response.release_conn()
    if 200 <= response.status < 300:
        return ApiResponse(response.status, bytes(body))
    raise errors.refusal(
        asked,
        errors.status_of(bytes(body)),
        response.status,
        _seconds(response.headers.get("Retry-After")),
    )


@contextlib.contextmanager
def troubles(asked: str) -> Iterator[None]:
    """What the libraries below raise, as one error."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UnreachableError(f"{asked}: {cause}") from error


def chunks(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
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
