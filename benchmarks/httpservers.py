"""HTTP servers for the scheduler's extender: the exchange of the bytes of a filter request.

Each server is a separate process and answers without a decision. The client calls the servers in
turns, on one open connection and on four at the same time. Then each holds idle connections, and
then attackers of other addresses send a byte of a request's head now and then on as many as they
can, while a client at the server's own address probes its health, each time on a new connection.
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

from common import Row, alone, arguments, percentile, report
from peers.processes import rss_mb

SERVERS = ("ours", "cheroot", "stdlib", "gunicorn", "uvicorn")
LIBRARIES = ("cheroot", "gunicorn", "uvicorn")
IDLE = 200
ATTACKERS = 400
ADDRESSES = 16
PROBE_SECONDS = 3.0
"""The longest that the kubelet waits, as the manifests have it."""
PEER = Path(__file__).resolve().parent / "peers" / "httpserver.py"
ROUNDS = 10


class Peer(msgspec.Struct, frozen=True):
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
        got = b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._some()
        head = got[:end].lower()
        if not head.startswith(b"http/1.1 200 "):
            raise RuntimeError(head.decode())
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        left = size - (len(got) - end - 4)
        while left > 0:
            left -= len(self._some())
        return size

    def close(self) -> None:
        self._socket.close()

    def _some(self) -> bytes:
        some = self._socket.recv(1 << 20)
        if not some:
            raise RuntimeError("the server closed the connection")
        return some


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
def serving(name: str) -> Iterator[Peer]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(PEER), name], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port, *pid = process.stdout.readline().split()
        yield Peer(name, int(port), int(pid[0]) if pid else process.pid)
    finally:
        process.terminate()
        process.wait()


def samples(peer: Peer, asked: bytes, connections: int, calls: int) -> list[float]:
    """The milliseconds of every exchange. All connections make `calls` exchanges in parallel."""
    took: list[list[float]] = [[] for _ in range(connections)]

    def call(mine: list[float]) -> None:
        caller = Caller(peer.port)
        caller.exchange(asked)
        for _ in range(calls):
            start = time.perf_counter()
            caller.exchange(asked)
            mine.append((time.perf_counter() - start) * 1e3)
        caller.close()

    threads = [threading.Thread(target=call, args=(mine,)) for mine in took]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [each for mine in took for each in mine]


def rows(peers: list[Peer], names: int, connections: int, calls: int) -> list[Row]:
    asked = request(names)
    took: dict[str, list[float]] = {each.name: [] for each in peers}
    for _ in range(ROUNDS):
        for peer in peers:
            took[peer.name] += samples(peer, asked, connections, calls)
    return [
        {
            **alone(f"{name}_{names}_names_{connections}_connections", percentile(all_, 50), "ms"),
            "p99": percentile(all_, 99),
        }
        for name, all_ in took.items()
    ]


def held(port: int, number: int, sent: bytes) -> list[socket.socket]:
    """Connections of other addresses of the loopback, that have sent this."""
    made = []
    for index in range(number):
        source = (f"127.0.1.{index % ADDRESSES + 1}", 0)
        each = socket.create_connection(("127.0.0.1", port), PROBE_SECONDS, source_address=source)
        each.sendall(sent)
        each.setblocking(False)
        made.append(each)
    return made


def idle_row(peer: Peer) -> list[Row]:
    """The additional memory with idle connections that have sent nothing."""
    before = rss_mb(peer.pid)
    connections = held(peer.port, IDLE, b"")
    time.sleep(1)
    grown = rss_mb(peer.pid) - before
    for each in connections:
        each.close()
    return [alone(f"{peer.name}_{IDLE}_idle_connections_grow_mb", grown, "MB")]


def attack_rows(peer: Peer, probes: int) -> list[Row]:
    """The time of a probe, and how many failed, while attackers hold what they get."""
    ended, took, failed = threading.Event(), [], 0
    connections = held(peer.port, ATTACKERS, b"GET /healthz HTTP/1.1\r\nX: ")

    def drip() -> None:
        while not ended.wait(0.5):
            for each in connections:
                with suppress(OSError):
                    each.send(b"a")

    dripping = threading.Thread(target=drip)
    dripping.start()
    for _ in range(probes):
        start = time.perf_counter()
        try:
            with socket.create_connection(("127.0.0.1", peer.port), PROBE_SECONDS) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if not probe.recv(100).startswith(b"HTTP/1.1 200"):
                    raise ConnectionError
        except OSError:
            failed += 1
        took.append((time.perf_counter() - start) * 1e3)
    ended.set()
    dripping.join()
    grown = rss_mb(peer.pid)
    for each in connections:
        each.close()
    return [
        {
            **alone(f"{peer.name}_probe_under_attack", percentile(took, 50), "ms"),
            "p99": percentile(took, 99),
        },
        alone(f"{peer.name}_probes_failed_of_{probes}", failed, ""),
        alone(f"{peer.name}_under_attack_mb", grown, "MB"),
    ]


def main() -> None:
    options = arguments(__doc__)
    calls = 20 if options.quick else 100
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    found: list[Row] = [
        {"case": each, "unit": "ms", "skipped": f"{each} is not installed"} for each in missing
    ]
    with ExitStack() as stack:
        peers = [stack.enter_context(serving(each)) for each in SERVERS if each not in missing]
        before = {each.name: rss_mb(each.pid) for each in peers}
        for names in (500, 5000):
            for connections in (1, 4):
                found += rows(peers, names, connections, calls)
        for each in peers:
            found.append(alone(f"{each.name}_started_mb", before[each.name], "MB"))
            found.append(alone(f"{each.name}_rss_mb", rss_mb(each.pid), "MB"))
            found += idle_row(each)
        for each in peers:
            found += attack_rows(each, 10 if options.quick else 50)
    report(found, options.output)


if __name__ == "__main__":
    main()
