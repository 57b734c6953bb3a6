"""Pages for browsers: each is one document without outside hosts, made of packaged files, and the
values that its script asks for.

A page only shows. It is for clients with a loopback address: on the machine, or by `kubectl
port-forward`. The document has its own nonce for each reply, and its policy lets the browser run
only the script and the style that have it; no string becomes HTML or code (Trusted Types).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from agent.http.requests import Reply
from agent.http.routes import JSON, Route

Value = TypeVar("Value")
PATH: Final = "/page"
LOOKING_SECONDS: Final = 60.0
"""Time after the last request of a viewer until nobody looks."""
HTML: Final = "text/html; charset=utf-8"
_FOLDER: Final = os.path.join(os.path.dirname(__file__), "pages")
_PLACE: Final = re.compile("{(nonce|style|body|script)}")
_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-NONCE'; style-src 'nonce-NONCE'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)


def page_routes(
    name: str,
    values: Mapping[str, Callable[[], bytes]],
    answers: Mapping[str, Callable[[bytes], Reply]] | None = None,
    *,
    path: str = PATH,
) -> dict[str, Route]:
    """The routes of a page: at `path` its document, of the files NAME.html, NAME.css and NAME.js,
    and below it the JSON that each of `values` returns, by its name, and the replies of `answers`
    to posted JSON."""

    def of(value: Callable[[], bytes]) -> Route:
        return Route("GET", lambda _: Reply(200, value(), JSON, headers=_HEADERS), loopback=True)

    def posted(answer: Callable[[bytes], Reply]) -> Route:
        return Route(
            "POST",
            lambda body: msgspec.structs.replace(answer(body), headers=_HEADERS),
            loopback=True,
        )

    return {
        path: Route("GET", lambda _: _document(name), loopback=True),
        **{f"{path}/{each}": of(value) for each, value in values.items()},
        **{f"{path}/{each}": posted(answer) for each, answer in (answers or {}).items()},
    }


def _document(name: str) -> Reply:
    """Reads the files for each reply: nothing is kept while nobody looks."""
    texts = {
        "nonce": os.urandom(16).hex(),
        "style": _file("frame.css") + _file(f"{name}.css"),
        "body": _file(f"{name}.html"),
        "script": _file("frame.js") + _file(f"{name}.js"),
    }
    text = _PLACE.sub(lambda match: texts[match[1]], _file("frame.html"))
    policy = ("Content-Security-Policy", _POLICY.replace("NONCE", texts["nonce"]))
    return Reply(200, text.encode(), HTML, headers=(policy, *_HEADERS))


def _file(name: str) -> str:
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
        return file.read()


class Viewed(Generic[Value]):
    """The values of a page: made when somebody looks, and dropped when nobody does. Safe for many
    threads."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Value | None = None
        self._asked_at = 0.0

    def current(self) -> Value:
        """For a request of a viewer."""
        with self._lock:
            self._asked_at = time.monotonic()
            value = self._value
            if value is None:
                value = self._value = self._make()
            return value

    def forget(self, seconds: float = LOOKING_SECONDS) -> None:
        """Drops them after `seconds` without a request."""
        with self._lock:
            if self._value is not None and time.monotonic() - self._asked_at > seconds:
                self._value = None
