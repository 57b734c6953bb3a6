"""Pages for browsers: a document that is made of packaged files and loads nothing from other hosts,
and the JSON values that its script requests.

A page changes nothing. It is served to clients with a loopback address: on the machine, or through
`kubectl port-forward`. The document has a new nonce in each reply. Its Content-Security-Policy lets
the browser run only the script and style with this nonce, and make no HTML or code from strings
(Trusted Types).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from agent.http.requests import JSON, Reply, Route

Value = TypeVar("Value")
PATH: Final = "/page"
VIEWER_SECONDS: Final = 60.0
"""The time after the last request of a viewer until its values are dropped."""
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
) -> dict[str, Route]:
    """The routes of a page. PATH: its document, made of the files NAME.html, NAME.css and
    NAME.js. Below it, by name: the JSON that each of `values` returns, and the reply of each of
    `answers` to posted JSON."""

    def get(value: Callable[[], bytes]) -> Route:
        return Route("GET", lambda _: Reply(200, value(), JSON, headers=_HEADERS), loopback=True)

    def posted(answer: Callable[[bytes], Reply]) -> Route:
        return Route(
            "POST",
            lambda body: msgspec.structs.replace(answer(body), headers=_HEADERS),
            loopback=True,
        )

    return {
        PATH: Route("GET", lambda _: _document(name), loopback=True),
        **{f"{PATH}/{each}": get(value) for each, value in values.items()},
        **{f"{PATH}/{each}": posted(answer) for each, answer in (answers or {}).items()},
    }


def _document(name: str) -> Reply:
    """Reads the files for each reply, so that they use no memory without a viewer."""
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
    """The values of a page, made at the first request of a viewer, and dropped some time after the
    last one. Safe for several threads."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Value | None = None
        self._requested_at = 0.0

    def current(self) -> Value:
        """The values, for a request of a viewer."""
        with self._lock:
            self._requested_at = time.monotonic()
            value = self._value
            if value is None:
                value = self._value = self._make()
            return value

    def forget(self, seconds: float = VIEWER_SECONDS) -> None:
        """Drops the values if the last request was more than `seconds` ago."""
        with self._lock:
            if self._value is not None and time.monotonic() - self._requested_at > seconds:
                self._value = None
