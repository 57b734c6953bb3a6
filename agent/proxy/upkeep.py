"""What a process with one loop does beside its work: it tells that it lives, and shows pages."""

from __future__ import annotations

import logging
from collections.abc import Callable

from agent.host.notify import Notifier
from agent.proxy.page import PageServer
from agent.runtime.loop import Loop

log = logging.getLogger(__name__)


def keep_alive(loop: Loop, notifier: Notifier) -> None:
    """Tells the service manager that the loop turns, twice as often as it wants to hear it."""
    if notifier.watchdog_seconds is None:
        return
    notifier.alive()
    loop.after(notifier.watchdog_seconds / 2, lambda: keep_alive(loop, notifier))


def serve_pages(
    loop: Loop, address: tuple[str, int] | None, page: Callable[[], str]
) -> PageServer | None:
    """A port that is taken costs the metrics, never the pods."""
    if address is None:
        return None
    pages = {b"/metrics": page, b"/healthz": lambda: "ok\n"}
    try:
        return PageServer(loop, *address, pages)
    except OSError as error:
        log.warning("no metrics on %s port %d: %s", *address, error)
        return None
