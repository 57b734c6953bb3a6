"""What the scheduler's process answers: a few routes, each a function of a JSON body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


class Reply(msgspec.Struct, frozen=True):
    """Of a route. `allow`: the method that a path takes, where another was asked for."""

    status: int
    body: bytes
    content_type: str = JSON
    allow: str = ""


class Route(msgspec.Struct, frozen=True):
    """One path. `handle` is given the body, empty unless the method is POST, and runs in any of
    several threads at once. It may raise BadRequestError."""

    method: str
    handle: Callable[[bytes], Reply]


class BadRequestError(ValueError):
    """The body makes no sense; the message says why, and is the answer."""


class Request(msgspec.Struct, frozen=True):
    """`body` is None where no Content-Length told its size."""

    method: str
    path: str
    content_type: str
    body: bytes | None


def answer(routes: Mapping[str, Route], request: Request) -> Reply:
    """Of the request's route; says what is wrong where there is none."""
    route = routes.get(request.path)
    if route is None:
        return said(404, f"no such path; there are {', '.join(sorted(routes))}")
    if request.method != route.method:
        refusal = said(405, f"this path takes {route.method} only")
        return msgspec.structs.replace(refusal, allow=route.method)
    if route.method != "POST":
        return route.handle(b"")
    if request.body is None:
        return said(411, "the Content-Length is missing")
    if request.content_type.partition(";")[0].strip().lower() != JSON:
        return said(415, f"the Content-Type is not {JSON}")
    try:
        return route.handle(request.body)
    except BadRequestError as error:
        return said(400, str(error))


def said(status: int, text: str) -> Reply:
    """A line of text."""
    return Reply(status, f"{text}\n".encode(), TEXT)
