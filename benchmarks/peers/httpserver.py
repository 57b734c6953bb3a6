"""An HTTP server with the routes of an extender, without decisions: it shows the cost of the HTTP
exchange. `httpserver.py KIND` prints its port."""

from __future__ import annotations

import http.server
import os
import socketserver
import sys
import threading
from collections.abc import Callable
from typing import Any

THREADS = 16
JSON = "application/json"


def reply_to(path: str, body: bytes) -> bytes:
    """Returns the request, which is as large as an answer with all its nodes."""
    return b"ok" if path == "/healthz" else body


def ours() -> None:
    from agent.http.limits import ConnectionLimits
    from agent.http.peers import NodeAddresses
    from agent.http.requests import Reply, Route
    from agent.http.server import HttpServer, ServerLimits

    class LocalNodeOnly(NodeAddresses):
        """The benchmark's attackers are other machines."""

        def local(self, peer: str, own: str) -> bool:
            return peer == own

    routes = {
        "/filter": Route("POST", lambda body: Reply(200, body)),
        "/healthz": Route("GET", lambda _: Reply(200, b"ok")),
    }
    # As the scheduler's, which is not imported: this is the memory of a server alone.
    connections = ConnectionLimits(
        connections=320,
        reserved=64,
        each_peer=192,
        idle_seconds=120.0,
        body_bytes=8 << 20,
        bodies_bytes=64 << 20,
    )
    limits = ServerLimits(connections, THREADS)
    server = HttpServer("0.0.0.0:0", routes, limits, LocalNodeOnly())
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
            reply = reply_to(self.path, self.rfile.read(int(self.headers["Content-Length"] or 0)))
            self.send_response(200)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def do_GET(self) -> None:
            self.headers["Content-Length"] = "0"
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)

    server = Server(("0.0.0.0", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def application(environ: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
    """WSGI."""
    size = int(environ.get("CONTENT_LENGTH") or 0)
    reply = reply_to(environ["PATH_INFO"], environ["wsgi.input"].read(size))
    start("200 OK", [("Content-Type", JSON), ("Content-Length", str(len(reply)))])
    return [reply]


def cheroot() -> None:
    from cheroot.wsgi import Server

    server = Server(("0.0.0.0", 0), application, numthreads=THREADS)
    server.prepare()
    print(server.bind_addr[1], flush=True)
    server.serve()


def gunicorn() -> None:
    """One worker process, as the scheduler's state is in one; its hook prints the port."""
    from gunicorn.app.base import BaseApplication

    class Application(BaseApplication):  # type: ignore[misc, unused-ignore]
        def load_config(self) -> None:
            options: dict[str, Any] = {
                "bind": "0.0.0.0:0",
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

    Application().run()


def uvicorn() -> None:
    """asyncio and h11; handlers that compute would need threads in addition."""
    import uvicorn as library

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        reply = reply_to(scope["path"], bytes(body))
        headers = [
            (b"content-type", JSON.encode()),
            (b"content-length", str(len(reply)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    class PrintingServer(library.Server):  # type: ignore[misc, unused-ignore]
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)

    settings = library.Config(
        application,
        host="0.0.0.0",
        port=0,
        log_level="error",
        lifespan="off",
        http="h11",
        loop="asyncio",
        timeout_keep_alive=120,
    )
    PrintingServer(settings).run()


KINDS = {
    "ours": ours,
    "cheroot": cheroot,
    "stdlib": stdlib,
    "gunicorn": gunicorn,
    "uvicorn": uvicorn,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
