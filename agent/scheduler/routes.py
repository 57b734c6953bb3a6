"""What the scheduler's process answers: a few routes, each a function of a JSON body."""

from __future__ import annotations

import http
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


class Reply(msgspec.Struct, frozen=True):
    """Of a route."""

    status: int
    body: bytes
    content_type: str = JSON


class Route(msgspec.Struct, frozen=True):
    """One path. `handle` is given the body, empty unless the method is POST, and runs in any of
    several threads at once. It may raise BadRequestError."""

    method: str
    handle: Callable[[bytes], Reply]


class BadRequestError(ValueError):
    """The body makes no sense; the message says why, and is the answer."""


class Application:
    """WSGI: finds the route, and says what is wrong where there is none."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes

    def __call__(
        self, environ: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        route = self._routes.get(environ["PATH_INFO"])
        reply = self._refusal(route, environ)
        if route is not None and reply is None:
            body = b""
            if route.method == "POST":
                body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            try:
                reply = route.handle(body)
            except BadRequestError as error:
                reply = said(400, str(error))
        assert reply is not None
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
        ]
        if reply.status == 405 and route is not None:
            headers.append(("Allow", route.method))
        start(f"{reply.status} {http.HTTPStatus(reply.status).phrase}", headers)
        return [reply.body]

    def _refusal(self, route: Route | None, environ: dict[str, Any]) -> Reply | None:
        if route is None:
            return said(404, f"no such path; there are {', '.join(sorted(self._routes))}")
        if environ["REQUEST_METHOD"] != route.method:
            return said(405, f"this path takes {route.method} only")
        if route.method != "POST":
            return None
        length = environ.get("CONTENT_LENGTH")
        if length is None:
            return said(411, "the Content-Length is missing")
        # cheroot lets -1 pass, which would be a body without end.
        if not re.fullmatch("[0-9]+", length):
            return said(400, "the Content-Length is no number")
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != JSON:
            return said(415, f"the Content-Type is not {JSON}")
        return None


def said(status: int, text: str) -> Reply:
    return Reply(status, f"{text}\n".encode(), TEXT)
