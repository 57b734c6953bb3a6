"""The agent's HTTP port: a few fixed pages, which functions make for each request, and the state of
the reconcile loop that /healthz and /readyz report.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from agent.host.loop import Loop
from agent.model.settings.options import host_port
from agent.telemetry.page import HttpResponse, PageServer

log = logging.getLogger(__name__)


class HttpError(RuntimeError):
    """The address can't be listened on."""


class HttpServer:
    """Serves pages, by path, on a thread of its own until `close`. `port` is the actual one where
    the address has port 0."""

    def __init__(self, address: str, pages: Mapping[str, Callable[[], HttpResponse]]) -> None:
        """Raises SettingsError for an invalid address, HttpError for one in use."""
        host, port = host_port(address)
        self._closing = False
        self._loop = Loop()
        try:
            self._server = PageServer(
                self._loop, host, port, {path.encode(): page for path, page in pages.items()}
            )
        except OSError as error:
            self._loop.close()
            raise HttpError(f"cannot listen on {address}: {error.strerror}") from error
        self.port = self._server.port
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._closing = True
        self._loop.stop()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._server.close()
            self._loop.close()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._loop.run()
            except Exception:  # the supervisor: a page that fails must not end the others
                log.exception("a page failed")


_JOIN_SECONDS = 2.0
_STALE_SECONDS = 5.0


class Health:
    """The state of the reconcile loop, for /healthz and /readyz."""

    def __init__(self, period_seconds: float) -> None:
        self._patience_seconds = max(_STALE_SECONDS, 4 * period_seconds)
        self._begun = time.monotonic()
        self._succeeded: float | None = None
        self._error = "no pass has ended yet"
        self._pause_seconds = 0.0

    def begin(self) -> None:
        """A pass begins."""
        self._begun = time.monotonic()

    def end(self, error: str) -> None:
        """The pass ended, with "" for success. Logs a new error."""
        if self.is_new(error):
            log.error("%s", error)
        self._error = error
        if not error:
            self._succeeded = time.monotonic()

    def rest(self, pause_seconds: float) -> None:
        """The next pass begins only after this time."""
        self._pause_seconds = pause_seconds

    def is_new(self, error: str) -> bool:
        """Whether the last pass ended otherwise: a lasting error is logged once."""
        return bool(error) and error != self._error

    def alive(self) -> HttpResponse:
        """503 when passes have stopped."""
        silent = time.monotonic() - self._begun
        if silent > self._pause_seconds + 4 * self._patience_seconds:
            return HttpResponse(503, f"no pass for {silent:.0f} s\n")
        return HttpResponse(200, "ok\n")

    def ready(self) -> HttpResponse:
        """503 unless the last pass succeeded (so the runtime answers) and is recent."""
        if self._error:
            return HttpResponse(503, f"{self._error}\n")
        age = time.monotonic() - (self._succeeded or 0)
        if age > self._pause_seconds + self._patience_seconds:
            return HttpResponse(503, f"the snapshot is {age:.0f} s old\n")
        return HttpResponse(200, "ok\n")
