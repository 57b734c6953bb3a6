"""The page of a node of 512 CPUs with 100 pods in a headless browser.

It measures the CPU time of the browser's main thread for one update (script, style, layout and
paint) while all loads change and while an owner starts or ends, the bytes that a viewer receives in
a second while nothing changes, and the additional memory of the serving process with a viewer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from common import Row, arguments, percentile, report, value_row
from peers.processes import compiled, rss_mb

from tests.fixtures.browser import Browser, Tab, browsing

FRAME, CHANGE = "page_frame_p95_ms", "page_change_p95_ms"
BYTES, MEMORY = "page_idle_kb_per_s", "page_memory_mb"
CASES = {FRAME: "ms", CHANGE: "ms", BYTES: "KB/s", MEMORY: "MB"}
NODE = Path(__file__).resolve().parent / "peers" / "servednode.py"
CPUS = 512
SETTLE_SECONDS = 4
"""Time in which the process reads loads several times, as it does without a viewer."""


@contextmanager
def node(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(NODE), str(folder)],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.terminate()


def updates(tab: Tab, count: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """The milliseconds of CPU time of each update: those between two requests of loads."""
    found = []
    while len(found) < count:
        before()
        requests, spent, end = loads(tab), tab.task_seconds(), time.monotonic() + 10
        while loads(tab) == requests:
            tab.events(0.02)
            if time.monotonic() > end:
                raise SystemExit("the page sends no further request")
        tab.events(0.6)  # The update has ended, and the next request has not begun.
        found.append(1000 * (tab.task_seconds() - spent) / (loads(tab) - requests))
    return found


def loads(tab: Tab) -> int:
    return sum(each.endswith("/page/load") for each in tab.requested)


def opened(browser: Browser, port: int) -> Tab:
    tab = browser.tab()
    tab.resize(1440, 900)
    tab.open(f"http://localhost:{port}/page")
    tab.until(f"document.querySelectorAll('.cpu[data-cpu]').length === {CPUS}")
    tab.events(3)
    return tab


def rows(quick: bool) -> list[Row]:
    count = 8 if quick else 60
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        browser = stack.enter_context(browsing(folder / "browser"))
        compiled()
        process, port = stack.enter_context(node(folder / "node"))
        assert process.stdin is not None
        time.sleep(SETTLE_SECONDS)
        alone_mb = rss_mb(process.pid)
        tab = opened(browser, port)
        received, began = tab.received_bytes, time.monotonic()
        frames = updates(tab, count)
        kilobytes = (tab.received_bytes - received) / 1000 / (time.monotonic() - began)
        viewed_mb = rss_mb(process.pid) - alone_mb

        def change() -> None:
            print(file=process.stdin, flush=True)

        changes = updates(tab, count // 2, change)
    return [
        value_row(FRAME, percentile(frames, 95), CASES[FRAME]),
        value_row(CHANGE, percentile(changes, 95), CASES[CHANGE]),
        value_row(BYTES, kilobytes, CASES[BYTES]),
        value_row(MEMORY, viewed_mb, CASES[MEMORY]),
    ]


def main() -> None:
    options = arguments(__doc__)
    try:
        found = rows(options.quick)
    except pytest.skip.Exception as missing:
        found = [
            {"case": case, "unit": unit, "skipped": str(missing)} for case, unit in CASES.items()
        ]
    report(found, options.output)


if __name__ == "__main__":
    main()
