"""HTTP routes, each a function of a JSON body."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.http.requests import BadRequestError, Reply

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
