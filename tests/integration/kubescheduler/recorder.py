"""What kube-scheduler and an extender say to each other, written down between them."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class Recorder:
    """`choices`: by pod uid the node that the last answer put first, None where it left several
    equal; `binds`: by pod uid the node that kube-scheduler chose in the end."""

    def __init__(self, port: int) -> None:
        self.choices: dict[str, str | None] = {}
        self.binds: dict[str, str] = {}
        self.candidates: dict[str, int] = {}
        self._port = port

    def connection(self) -> http.client.HTTPConnection:
        """To the extender."""
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)

    def forward(
        self, connection: http.client.HTTPConnection, path: str, body: bytes
    ) -> tuple[int, bytes]:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        answer = reply.read()
        if reply.status == 200:
            self._note(path.strip("/"), json.loads(body), json.loads(answer))
        return reply.status, answer

    def _note(self, verb: str, asked: dict[str, Any], answer: Any) -> None:
        if verb == "filter":
            names = answer["NodeNames"]
            uid = asked["Pod"]["metadata"]["uid"]
            self.candidates[uid] = len(asked["NodeNames"])
            self.choices[uid] = names[0] if len(names) == 1 else None
        elif verb == "prioritize" and answer:
            most = max(each["Score"] for each in answer)
            best = [each["Host"] for each in answer if each["Score"] == most]
            self.choices[asked["Pod"]["metadata"]["uid"]] = best[0] if len(best) == 1 else None
        elif verb == "bind" and not answer["Error"]:
            self.binds[asked["PodUID"]] = asked["Node"]


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[str]:
    """The URL for kube-scheduler."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with contextlib.closing(recorder.connection()) as self.onward:
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = recorder.forward(self.onward, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

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
