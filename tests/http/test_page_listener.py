"""The HTTP port of a process with one loop; a thread runs the real loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from agent.host.loop import Loop
from agent.http.limits import ConnectionLimits
from agent.http.listener import PAGE_LIMITS, PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply, Route
from tests.waiting import DEADLINE_SECONDS

ROUTES = {
    "/metrics": Route("GET", lambda _: Reply(200, b"up 1\n", "text/plain")),
    "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", "text/plain")),
    "/big": Route("GET", lambda _: Reply(200, b"x" * 4_000_000, "text/plain")),
}


class RunningListener:
    def __init__(self, limits: ConnectionLimits = PAGE_LIMITS) -> None:
        self.loop = Loop()
        self.server = PageListener(self.loop, ("127.0.0.1", 0), ROUTES, NodeAddresses(), limits)
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


@pytest.fixture
def listener() -> Iterator[RunningListener]:
    it = RunningListener()
    yield it
    it.close()


@pytest.fixture
def few_of_the_node() -> Iterator[RunningListener]:
    it = RunningListener(msgspec.structs.replace(PAGE_LIMITS, local_each_second=0.001))
    yield it
    it.close()


@pytest.fixture
def short_timeout() -> Iterator[RunningListener]:
    it = RunningListener(msgspec.structs.replace(PAGE_LIMITS, head_seconds=0.05))
    yield it
    it.close()


def test_a_page_has_its_length(listener: RunningListener) -> None:
    head, _, body = listener.request(
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5" in head
    assert body == b"up 1\n"


def test_head_is_a_get_without_the_body(listener: RunningListener) -> None:
    head, _, body = listener.request(
        b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5" in head
    assert body == b""


def test_a_page_larger_than_a_socket_buffer(listener: RunningListener) -> None:
    _, _, body = listener.request(b"GET /big HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert len(body) == 4_000_000


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", b"413"),
        (b"GET\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00\xff\xfe\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000, b"414"),
        (b"GET / HTTP/1.1\r\na: " + b"a" * 20_000, b"431"),
    ],
)
def test_other_requests_are_refused(
    listener: RunningListener, request_: bytes, status: bytes
) -> None:
    assert listener.request(request_).startswith(b"HTTP/1.1 " + status)


def test_a_request_in_pieces_is_answered(listener: RunningListener) -> None:
    with listener.connect() as client:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\n\r", b"\n"):
            client.sendall(piece)
        assert read_all(client).endswith(b"up 1\n")


def test_a_client_that_disconnects_early_does_not_affect_others(listener: RunningListener) -> None:
    for request in (b"", b"GET /big HTTP/1.1\r\n\r\n"):
        with listener.connect() as client:
            client.sendall(request)
    assert listener.request(b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"up 1\n")


def test_pipelined_requests_after_the_first_are_not_answered(listener: RunningListener) -> None:
    answer = listener.request(b"GET /metrics HTTP/1.1\r\n\r\n" * 300)
    assert answer.count(b"up 1\n") == 1
    assert b"Connection: close" in answer


def test_a_slow_client_gets_an_error_and_is_disconnected(short_timeout: RunningListener) -> None:
    with short_timeout.connect() as client:
        client.sendall(b"GET /metrics")
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_a_silent_client_is_closed(short_timeout: RunningListener) -> None:
    with short_timeout.connect() as client:
        assert read_all(client) == b""


def test_clients_of_the_node_get_few_pages_and_every_probe(
    few_of_the_node: RunningListener,
) -> None:
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    statuses = [
        few_of_the_node.request(request % b"/metrics").split(b" ")[1]
        for _ in range(PAGE_LIMITS.connections + 2)
    ]
    assert statuses == [b"200"] * PAGE_LIMITS.connections + [b"503"] * 2
    for _ in range(3):
        assert few_of_the_node.request(request % b"/healthz").startswith(b"HTTP/1.1 200 ")
