"""The HTTP port of a process with one loop; a thread runs the real loop."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from agent.host.loop import Loop
from agent.http.listener import PAGE_LIMITS, PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply, Route
from tests.waiting import DEADLINE_SECONDS

ROUTES = {
    "/metrics": Route("GET", lambda _: Reply(200, b"up 1\n", "text/plain")),
    "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", "text/plain")),
}


class RunningListener:
    """Makes a listener with PAGE_LIMITS; the arguments replace single limits."""

    def __init__(self, **limits: float) -> None:
        self.loop = Loop()
        replaced = msgspec.structs.replace(PAGE_LIMITS, **limits)
        self.server = PageListener(self.loop, ("127.0.0.1", 0), ROUTES, NodeAddresses(), replaced)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), DEADLINE_SECONDS)

    def request(self, request: bytes) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return read_all(client)

    def close(self) -> None:
        assert self.thread.is_alive(), "the loop has ended"
        self.loop.stop()
        self.thread.join(DEADLINE_SECONDS)
        self.server.close()
        self.loop.close()


def read_all(client: socket.socket) -> bytes:
    """Reads until the server closes or resets the connection."""
    answer = b""
    try:
        while piece := client.recv(1 << 16):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


Start = Callable[..., RunningListener]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:
        yield lambda **limits: stack.enter_context(contextlib.closing(RunningListener(**limits)))


def test_only_the_first_request_of_a_connection_is_answered(start: Start) -> None:
    answer = start().request(b"GET /metrics HTTP/1.1\r\n\r\n" * 300)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.count(b"up 1\n") == 1
    assert b"Connection: close" in answer


@pytest.mark.parametrize(
    ("sent", "answer"), [(b"GET /metrics", b"HTTP/1.1 408"), (b"", b"")], ids=["slow", "silent"]
)
def test_a_client_without_a_request_is_disconnected(
    start: Start, sent: bytes, answer: bytes
) -> None:
    with start(head_seconds=0.05).connect() as client:
        client.sendall(sent)
        assert read_all(client)[:12] == answer


def test_clients_of_the_node_get_few_pages_and_every_probe(start: Start) -> None:
    listener = start(local_each_second=0.001)
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    statuses = [
        listener.request(request % b"/metrics").split(b" ")[1]
        for _ in range(PAGE_LIMITS.connections + 2)
    ]
    assert statuses == [b"200"] * PAGE_LIMITS.connections + [b"503"] * 2
    for _ in range(3):
        assert listener.request(request % b"/healthz").startswith(b"HTTP/1.1 200 ")
