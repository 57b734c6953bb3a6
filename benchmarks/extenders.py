"""Server processes for the benchmark of the scheduler. `python -m benchmarks.extenders PORT API
PAGES` serves the verbs as `topolet scheduler` does, over plain HTTP, with the API server at the
port API, and pages and explanations at the port PAGES. Without API it serves bare exchanges: it
replies to each request with the last body of /answer."""

from __future__ import annotations

import sys
import tempfile
import threading
from typing import Final

from agent.host.daemon import Ending
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply, Route
from agent.http.server import HttpServer
from agent.kube import auth
from agent.kube.auth import FileAccess
from agent.model.settings.scheduler import SchedulerSettings
from agent.scheduler import process

VERBS: Final = ("filter", "prioritize", "bind")


def serve_extender(api: int, port: int, pages: int) -> None:
    """Runs until SIGTERM, as in production except for the access to the API server."""
    auth.access = lambda *_: FileAccess(f"http://127.0.0.1:{api}")
    with tempfile.TemporaryDirectory() as folder:
        process.run(
            SchedulerSettings(
                https=f"127.0.0.1:{port}",
                tls_dir="",
                http=f"127.0.0.1:{pages}",
                lease_seconds=0,
                state_dir=folder,
            )
        )


def serve_bare_exchanges(port: int) -> None:
    """Exchanges the same bytes with the same server, without any decision."""
    answer = b"{}"

    def set_answer(body: bytes) -> Reply:
        nonlocal answer
        answer = body
        return Reply(200, b"{}")

    routes = {f"/{verb}": Route("POST", lambda _: Reply(200, answer)) for verb in VERBS}
    answering = {**routes, "/answer": Route("POST", set_answer)}
    server = HttpServer(f"127.0.0.1:{port}", answering, process.LIMITS, NodeAddresses())
    ended = threading.Event()
    with Ending(ended.set):
        server.start()
        ended.wait()
    server.close()


def main() -> None:
    port = int(sys.argv[1])
    if len(sys.argv) > 2:
        serve_extender(int(sys.argv[2]), port, int(sys.argv[3]))
    else:
        serve_bare_exchanges(port)


if __name__ == "__main__":
    main()
