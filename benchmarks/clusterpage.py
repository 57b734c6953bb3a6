"""The scheduler while its page of the cluster is open in a browser, compared with no viewer.

The server runs as in production, in its own process, with an API server of a simulated cluster in
another. A third process is the viewer, which sends requests as the page's script does: without a
pause while nodes are still being read, then every two seconds. `filter_prioritize_N`: p50 and p99
of both verbs for all nodes, while the first table is made, and afterwards (`_looking`), with a pod
bound between any two calls. `first_table`: the time until all nodes are read. `state`: the time of
one reply. `viewer_kb_per_second`: what the viewer receives while nothing changes. `rss_mb`: the
memory before, with the viewer, and after the table was dropped.
"""

from __future__ import annotations

import http.client
import json
import select
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.http.page import VIEWER_SECONDS
from benchmarks.common import Row, arguments, percentile, ratio_row, report, value_row
from benchmarks.scheduler import Caller, Extender, cluster, start_process

NODES: Final = 15_000
QUICK_NODES: Final = 500
ROUNDS: Final = 150
POLL_SECONDS: Final = 2.0
_REST_POLLS: Final = 5


def view(port: int) -> None:
    """Prints for each reply its seconds, its bytes, and whether nodes are still being read."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    revision, reading = "", True
    while True:
        began = time.perf_counter()
        body = json.dumps({"revision": revision})
        connection.request("POST", "/page/state", body, {"Content-Type": "application/json"})
        text = connection.getresponse().read()
        found = json.loads(text)
        revision = found.get("revision", revision)
        reading = bool(found.get("reading", 0))
        print(json.dumps([time.perf_counter() - began, len(text), reading]), flush=True)
        if not reading:
            time.sleep(POLL_SECONDS)


def measured(caller: Caller, nodes: int, rounds: int) -> list[float]:
    return [caller.measured(nodes).ours for _ in range(rounds)]


def rows(nodes: int, rounds: int) -> list[Row]:
    found: list[Row] = []
    case = f"filter_prioritize_{nodes}"
    with ExitStack() as stack:
        bare = Extender(stack)
        extender = cluster(stack, nodes, 4 * nodes)
        caller = Caller(extender, bare, nodes, 10)
        measured(caller, nodes, 20)
        without_viewer = measured(caller, nodes, rounds)
        before_mb = extender.rss_mb()
        with ExitStack() as viewing:
            began = time.monotonic()
            viewer = start_process(viewing, "benchmarks.clusterpage", "view", str(extender.pages))
            assert viewer.stdout is not None
            first: list[float] = []
            reading = True
            while reading:
                first.append(caller.measured(nodes).ours)
                while reading and select.select([viewer.stdout], [], [], 0)[0]:
                    reading = json.loads(viewer.stdout.readline())[2]
            took = time.monotonic() - began
            while_viewing = measured(caller, nodes, rounds)
            viewing_mb = extender.rss_mb()
            rest = [json.loads(viewer.stdout.readline()) for _ in range(_REST_POLLS)]
        found.append(_row(f"{case}_first_table", first, without_viewer))
        found.append(_row(f"{case}_looking", while_viewing, without_viewer))
        found.append(value_row("first_table", took, "s"))
        found.append(value_row("state", 1e3 * statistics.median(each[0] for each in rest), "ms"))
        sent = statistics.median(each[1] for each in rest) / POLL_SECONDS / 1e3
        found.append(value_row("viewer_kb_per_second", sent, "kB/s"))
        found.append(value_row("rss_mb_before", before_mb, "MB"))
        found.append(value_row("rss_mb_looking", viewing_mb, "MB"))
        time.sleep(VIEWER_SECONDS + 5)
        found.append(value_row("rss_mb_afterwards", extender.rss_mb(), "MB"))
    return found


def _row(case: str, during: list[float], without: list[float]) -> Row:
    return ratio_row(
        case,
        statistics.median(during),
        statistics.median(without),
        "without a viewer",
        "ms",
        p99=percentile(during, 99),
        base_p99=percentile(without, 99),
    )


def main() -> None:
    if sys.argv[1:2] == ["view"]:
        view(int(sys.argv[2]))
        return
    chosen = arguments(__doc__)
    report(
        rows(QUICK_NODES if chosen.quick else NODES, 20 if chosen.quick else ROUNDS), chosen.output
    )


if __name__ == "__main__":
    main()
