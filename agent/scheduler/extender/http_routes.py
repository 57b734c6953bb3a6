"""HTTP routes, each a function of a JSON body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


class Reply(msgspec.Struct, frozen=True):
    """The reply of a route. `allow` is the method of the path, if the request has another one."""

    status: int
    body: bytes
    content_type: str = JSON
    allow: str = ""


class Route(msgspec.Struct, frozen=True):
    """One path. `handle` takes the body, empty unless the method is POST, and runs in several
    threads at once. It may raise BadRequestError."""

    method: str
    handle: Callable[[bytes], Reply]


class BadRequestError(ValueError):
    """The body is invalid; the message is the reply."""


class HttpRequest(msgspec.Struct, frozen=True):
    """`body` is None if the request has no Content-Length."""

    method: str
    path: str
    content_type: str
    body: bytes | None


def dispatch(routes: Mapping[str, Route], request: HttpRequest) -> Reply:
    """Returns the reply of the request's route, or an error if there is none."""
    route = routes.get(request.path)
    if route is None:
        return text_reply(404, f"no such path; the paths are {', '.join(sorted(routes))}")
    if request.method != route.method:
        refusal = text_reply(405, f"this path accepts {route.method} only")
        return msgspec.structs.replace(refusal, allow=route.method)
    if route.method != "POST":
        return route.handle(b"")
    if request.body is None:
        return text_reply(411, "the Content-Length is missing")
    if request.content_type.partition(";")[0].strip().lower() != JSON:
        return text_reply(415, f"the Content-Type is not {JSON}")
    try:
        return route.handle(request.body)
    except BadRequestError as error:
        return text_reply(400, str(error))


def text_reply(status: int, text: str) -> Reply:
    """A line of text."""
    return Reply(status, f"{text}\n".encode(), TEXT)
