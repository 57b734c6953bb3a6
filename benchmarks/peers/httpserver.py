"""An HTTP server with the routes of an extender that decides nothing: it shows the cost of the
exchange of bytes. `httpserver.py KIND` prints its port."""

from __future__ import annotations

import http.server
import os
import socketserver
import sys
import threading
from collections.abc import Callable
from typing import Any

from agent.scheduler.extender.http_routes import Reply, Route

THREADS = 16


def answered(body: bytes) -> Reply:
    """Returns the request, which is as large as an answer with all its nodes."""
    return Reply(200, body)


ROUTES = {"/filter": Route("POST", answered)}


def cheroot() -> None:
    from agent.scheduler.extender.server import Server

    server = Server("127.0.0.1:0", ROUTES)
    server.start()
    print(server.port, flush=True)
    threading.Event().wait()


def stdlib() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one segment, and no wait for the client's acknowledgement.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            reply = answered(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def application(environ: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
    """WSGI."""
    reply = answered(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    headers = [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body)))]
    start("200 OK", headers)
    return [reply.body]


def gunicorn() -> None:
    """One worker process, as the scheduler's state is in one; its hook prints the port."""
    from gunicorn.app.base import BaseApplication

    class One(BaseApplication):  # type: ignore[misc, unused-ignore]
        def load_config(self) -> None:
            options: dict[str, Any] = {
                "bind": "127.0.0.1:0",
                "worker_class": "gthread",
                "workers": 1,
                "threads": THREADS,
                "keepalive": 120,
                "loglevel": "error",
                "post_worker_init": lambda worker: print(
                    worker.sockets[0].getsockname()[1], os.getpid(), flush=True
                ),
            }
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Callable[..., list[bytes]]:
            return application

    One().run()


if __name__ == "__main__":
    {"cheroot": cheroot, "stdlib": stdlib, "gunicorn": gunicorn}[sys.argv[1]]()
