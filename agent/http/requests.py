"""The head of an HTTP/1.1 request, the route whose function replies to it, and the bytes of the
reply (RFC 9112). No I/O.

The parser accepts what the clients of these ports send: the kubelet's probes, Prometheus, an API
server, kube-scheduler, curl. A head that two readers could understand differently is an error."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_LOOPBACK_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_UNNAMED_HOST: Final = re.compile(
    r"((localhost|[0-9.]{7,15}|\[[0-9a-f:.%]+\])(:[0-9]{1,5})?)?", re.IGNORECASE
)

log = logging.getLogger(__name__)


class Route(msgspec.Struct, frozen=True):
    """The reply to requests for a path. A route for GET also answers HEAD, without a body."""

    method: str
    handle: Callable[[bytes], Reply]
    """Takes the body of the request, which is empty unless the method is POST. It may raise
    BadRequestError, and a server with threads calls it in several at once."""
    certified: bool = False
    """The client must have shown a certificate that the server accepts."""
    loopback: bool = False
    """The client must have a loopback address, and the header Host must name a loopback host."""


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    path: str
    content_type: str
    body: bytes | None
    """The body is None if the request has no Content-Length."""
    certified: bool = False
    """Whether the client has shown an accepted certificate."""
    host: str = ""
    """The header Host."""
    loopback: bool = False
    """Whether the client has a loopback address."""
    tls: bool = False
    """Whether the connection has TLS."""


def dispatch(routes: Mapping[str, Route], request: HttpRequest) -> Reply:
    """Returns the reply of the request's route, or an error if there is none. A fault of the route
    is logged, and its reply is 500: it does not affect other requests. A client with a loopback
    address must not name a host, unless by TLS, where a browser checks the name: with DNS rebinding
    (the name of another site resolves to a loopback address) it is a browser that shows that
    site."""
    if request.loopback and not (request.tls or _UNNAMED_HOST.fullmatch(request.host)):
        return text_reply(403, "clients on this machine name localhost or an address as the host")
    route = routes.get(request.path)
    if route is None:
        return text_reply(404, f"no such path; the paths are {', '.join(sorted(routes))}")
    method = "GET" if request.method == "HEAD" else request.method
    if method != route.method:
        refusal = text_reply(405, f"this path accepts {route.method} only")
        return msgspec.structs.replace(refusal, allow=route.method)
    if route.certified and not request.certified:
        return text_reply(403, "this path needs a client certificate with an accepted name")
    if route.loopback and not request.loopback:
        return text_reply(403, "this path is for clients on this machine, and for port-forward")
    if route.loopback and not _LOOPBACK_HOST.fullmatch(request.host):
        return text_reply(403, "this path is only for http://localhost and http://127.0.0.1")
    if route.method == "POST":
        if request.body is None:
            return text_reply(411, "the Content-Length is missing")
        if request.content_type.partition(";")[0].strip().lower() != JSON:
            return text_reply(415, f"the Content-Type is not {JSON}")
    try:
        return route.handle(request.body or b"" if route.method == "POST" else b"")
    except BadRequestError as error:
        return text_reply(error.status, str(error))
    except Exception:  # the one guard around a route
        log.exception("the request %s failed", request.path)
        return text_reply(500, "an internal error")


def readiness(problem: str) -> Reply:
    """503 with the problem, 200 without one."""
    return text_reply(503, problem) if problem else text_reply(200, "ok")


def text_reply(status: int, text: str) -> Reply:
    """A line of text."""
    return Reply(status, f"{text}\n".encode(), TEXT)


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
