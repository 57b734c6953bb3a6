"""HTTP servers for the scheduler's extender: the exchange of the bytes of a filter request.

Each server is a separate process and answers without a decision. The client calls the servers in
turns, on one open connection and on four at the same time. Then each server has idle connections.
Then clients of other addresses open as many connections as they can and send the head of a request
slowly, byte by byte, while a client at the server's own address probes its health, each time on a
new connection.
The project does not depend on the other servers: install them for their rows
(`pip install cheroot gunicorn uvicorn`).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, percentile, report, value_row
from peers.processes import rss_mb

SERVERS = ("ours", "cheroot", "stdlib", "gunicorn", "uvicorn")
LIBRARIES = ("cheroot", "gunicorn", "uvicorn")
IDLE = 200
ATTACKERS = 400
ADDRESSES = 16
PROBE_SECONDS = 3.0
"""The timeout of the kubelet's probes in the manifests."""
PROGRAM = Path(__file__).resolve().parent / "peers" / "httpserver.py"
ROUNDS = 10


class ServerProcess(msgspec.Struct, frozen=True):
    """A running server; `pid`: of the process that answers."""

    name: str
    port: int
    pid: int


class Caller:
    """One connection, with only as much of HTTP as the exchange needs."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> int:
        """Returns the size of the answer. Raises RuntimeError for an invalid answer."""
        self._socket.sendall(request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head = data[:end].lower()
        if not head.startswith(b"http/1.1 200 "):
            raise RuntimeError(head.decode())
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        left = size - (len(data) - end - 4)
        while left > 0:
            left -= len(self._receive())
        return size

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data


def request(names: int) -> bytes:
    """A filter request as kube-scheduler sends it, for a pod of 1,900 bytes."""
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": {}},
        "spec": {"containers": [{"name": "c", "image": "x" * 1700}]},
    }
    nodes = [f"node-{number:05}.example.internal" for number in range(names)]
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes}, separators=(",", ":"))
    head = (
        "POST /filter HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        "Accept-Encoding: gzip\r\n\r\n"
    )
    return (head + body).encode()


@contextmanager
def serving(name: str) -> Iterator[ServerProcess]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM), name], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port, *pid = process.stdout.readline().split()
        yield ServerProcess(name, int(port), int(pid[0]) if pid else process.pid)
    finally:
        process.terminate()
        process.wait()


def samples(
    server: ServerProcess, request_bytes: bytes, connections: int, calls: int
) -> list[float]:
    """The milliseconds of every exchange. All connections make `calls` exchanges in parallel."""
    took: list[list[float]] = [[] for _ in range(connections)]

    def call(times: list[float]) -> None:
        caller = Caller(server.port)
        caller.exchange(request_bytes)
        for _ in range(calls):
            start = time.perf_counter()
            caller.exchange(request_bytes)
            times.append((time.perf_counter() - start) * 1e3)
        caller.close()

    threads = [threading.Thread(target=call, args=(times,)) for times in took]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [each for times in took for each in times]


def rows(servers: list[ServerProcess], names: int, connections: int, calls: int) -> list[Row]:
    request_bytes = request(names)
    took: dict[str, list[float]] = {each.name: [] for each in servers}
    for _ in range(ROUNDS):
        for server in servers:
            took[server.name] += samples(server, request_bytes, connections, calls)
    return [
        {
            **value_row(
                f"{name}_{names}_names_{connections}_connections", percentile(all_, 50), "ms"
            ),
            "p99": percentile(all_, 99),
        }
        for name, all_ in took.items()
    ]


def open_connections(port: int, number: int, sent: bytes) -> list[socket.socket]:
    """Opens connections of other loopback addresses and sends these bytes on each."""
    made = []
    for index in range(number):
        source = (f"127.0.1.{index % ADDRESSES + 1}", 0)
        each = socket.create_connection(("127.0.0.1", port), PROBE_SECONDS, source_address=source)
        each.sendall(sent)
        each.setblocking(False)
        made.append(each)
    return made


def idle_row(server: ServerProcess) -> list[Row]:
    """The additional memory with idle connections that have sent nothing."""
    before = rss_mb(server.pid)
    connections = open_connections(server.port, IDLE, b"")
    time.sleep(1)
    grown = rss_mb(server.pid) - before
    for each in connections:
        each.close()
    return [value_row(f"{server.name}_{IDLE}_idle_connections_grow_mb", grown, "MB")]


def attack_rows(server: ServerProcess, probes: int) -> list[Row]:
    """The time of a probe and the number of failures during a slow request attack."""
    ended, took, failed = threading.Event(), [], 0
    connections = open_connections(server.port, ATTACKERS, b"GET /healthz HTTP/1.1\r\nX: ")

    def send_slowly() -> None:
        while not ended.wait(0.5):
            for each in connections:
                with suppress(OSError):
                    each.send(b"a")

    sender = threading.Thread(target=send_slowly)
    sender.start()
    for _ in range(probes):
        start = time.perf_counter()
        try:
            with socket.create_connection(("127.0.0.1", server.port), PROBE_SECONDS) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if not probe.recv(100).startswith(b"HTTP/1.1 200"):
                    raise ConnectionError
        except OSError:
            failed += 1
        took.append((time.perf_counter() - start) * 1e3)
    ended.set()
    sender.join()
    grown = rss_mb(server.pid)
    for each in connections:
        each.close()
    return [
        {
            **value_row(f"{server.name}_probe_under_attack", percentile(took, 50), "ms"),
            "p99": percentile(took, 99),
        },
        value_row(f"{server.name}_probes_failed_of_{probes}", failed, ""),
        value_row(f"{server.name}_under_attack_mb", grown, "MB"),
    ]


def main() -> None:
    options = arguments(__doc__)
    calls = 20 if options.quick else 100
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    found: list[Row] = [
        {"case": each, "unit": "ms", "skipped": f"{each} is not installed"} for each in missing
    ]
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(each)) for each in SERVERS if each not in missing]
        before = {each.name: rss_mb(each.pid) for each in servers}
        for names in (500, 5000):
            for connections in (1, 4):
                found += rows(servers, names, connections, calls)
        for each in servers:
            found.append(value_row(f"{each.name}_started_mb", before[each.name], "MB"))
            found.append(value_row(f"{each.name}_rss_mb", rss_mb(each.pid), "MB"))
            found += idle_row(each)
        for each in servers:
            found += attack_rows(each, 10 if options.quick else 50)
    report(found, options.output)


if __name__ == "__main__":
    main()
