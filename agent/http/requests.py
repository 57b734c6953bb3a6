"""The head of an HTTP/1.1 request, and the bytes of a reply (RFC 9112). No I/O.

The parser accepts what the clients of these ports send: the kubelet's probes, Prometheus, an API
server, kube-scheduler, curl. A head that two readers could understand differently is an error.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEADERS: Final = 64
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) ([!-~]+) HTTP/([0-9]\.[0-9])")
# Blanks around a value are stripped later: a pattern for them takes cubic time for many of them.
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_AUTHORITY: Final = re.compile(rb"https?://[^/?]+")
_ENCODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

# A status without an entry has an empty phrase; http.HTTPStatus would take 0.2 MB.
_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class BadRequestError(ValueError):
    """The request is invalid. The message is the reply.

    `status`: the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RequestHead(msgspec.Struct, frozen=True):
    """The head of a request."""

    method: str
    path: str
    """Without the query, decoded."""
    content_type: str
    content_length: int | None
    """None for a body of unknown length: of chunks, or of a POST without a Content-Length."""
    keep_alive: bool
    """Whether the client may send another request."""
    expects_continue: bool
    host: str = ""
    """The header Host, "" without one."""


class Reply(msgspec.Struct, frozen=True):
    """The reply to a request."""

    status: int
    body: bytes
    content_type: str = "application/json"
    allow: str = ""
    """The method of the path, if the request has another one."""
    headers: tuple[tuple[str, str], ...] = ()
    """Name and value of further headers."""


def head_end(received: bytearray, searched: int, most_bytes: int) -> int:
    """The length of the head with its last line end, 0 while it is incomplete; the first `searched`
    bytes were searched before. Raises BadRequestError for a longer one."""
    end = received.find(_HEAD_END, max(searched - len(_HEAD_END), 0), most_bytes)
    if end >= 0:
        return end + len(_HEAD_END)
    if len(received) < most_bytes:
        return 0
    line_ended = b"\n" in received[:most_bytes]
    what, status = ("head", 431) if line_ended else ("request line", 414)
    raise BadRequestError(f"the {what} exceeds the maximum of {most_bytes} bytes", status)


def parse_head(head: bytes) -> RequestHead:
    """`head` ends with the empty line. Raises BadRequestError."""
    line, *lines = head.lstrip(b"\r\n").removesuffix(_HEAD_END).split(b"\r\n")
    words = _REQUEST_LINE.fullmatch(line)
    if words is None:
        raise BadRequestError("the request line is not METHOD PATH HTTP/VERSION")
    method, target, version = words.groups()
    if not version.startswith(b"1."):
        raise BadRequestError("only HTTP/1.1 is served", 505)
    if len(lines) > _MAX_HEADERS:
        raise BadRequestError(f"more than {_MAX_HEADERS} headers", 431)
    headers: dict[bytes, bytes] = {}
    for each in lines:
        pair = _HEADER.fullmatch(each)
        if pair is None:
            raise BadRequestError("a header is not NAME: VALUE")
        name, value = pair[1].lower(), pair[2].strip(b" \t")
        headers[name] = b", ".join((headers[name], value)) if name in headers else value
    options = {each.strip() for each in headers.get(b"connection", b"").lower().split(b",")}
    return RequestHead(
        method.decode("ascii"),
        _path(target),
        headers.get(b"content-type", b"").decode("latin-1"),
        _content_length(headers, posted=method == b"POST"),
        version != b"1.0" and b"close" not in options,
        headers.get(b"expect", b"").lower() == b"100-continue",
        headers.get(b"host", b"").decode("latin-1"),
    )


def encode_reply(reply: Reply, *, with_body: bool, close: bool) -> bytes:
    """Head and body at once."""
    head = [
        f"HTTP/1.1 {reply.status} {_PHRASES.get(reply.status, '')}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
    ]
    if reply.allow:
        head.append(f"Allow: {reply.allow}")
    if close:
        head.append("Connection: close")
    head += [f"{name}: {value}" for name, value in reply.headers]
    text = "\r\n".join([*head, "\r\n"]).encode("latin-1")
    return text + reply.body if with_body else text


def _path(target: bytes) -> str:
    path = _AUTHORITY.sub(b"", target, count=1).partition(b"?")[0] or b"/"
    decoded = _ENCODED.sub(lambda each: bytes((int(each[1], 16),)), path)
    return decoded.decode("latin-1")


def _content_length(headers: dict[bytes, bytes], posted: bool) -> int | None:
    length = headers.get(b"content-length")
    if b"transfer-encoding" in headers:
        if length is not None:
            raise BadRequestError("both Content-Length and Transfer-Encoding")
        return None
    if length is None:
        return None if posted else 0
    if not _LENGTH.fullmatch(length):
        raise BadRequestError("the Content-Length is not a number")
    return int(length)
