"""An HTTP server that acts as kube-scheduler's extender."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Answer = Callable[[str, bytes], tuple[int, bytes]]
"""From a path and a body: status and JSON."""


@contextlib.contextmanager
def answering(connected: Callable[[], AbstractContextManager[Answer]]) -> Iterator[str]:
    """Its URL. `connected`: the handler of one connection, while that lasts."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with connected() as self.answer:
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = self.answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Its output is discarded."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
