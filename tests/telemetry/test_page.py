"""The proxy's HTTP port in its real loop, run by a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from agent.host.loop import Loop
from agent.telemetry import page
from agent.telemetry.page import METRICS_TYPE, HttpResponse, PageServer

Ask = Callable[[bytes], bytes]
PAGES = {
    b"/metrics": lambda: HttpResponse(200, "up 1\n", METRICS_TYPE),
    b"/big": lambda: HttpResponse(200, "x" * 4_000_000),
}


class Served:
    def __init__(self) -> None:
        self.loop = Loop()
        self.server = PageServer(self.loop, "127.0.0.1", 0, PAGES)
        self.thread = threading.Thread(target=self.loop.run)

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
        client.settimeout(10)
        return client

    def ask(self, request: bytes) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return everything(client)


def everything(client: socket.socket) -> bytes:
    """Until the server closes; a reset counts as an end too."""
    answer = b""
    try:
        while piece := client.recv(1 << 16):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


@pytest.fixture
def served() -> Iterator[Served]:
    it = Served()
    it.thread.start()
    yield it
    assert it.thread.is_alive(), "the loop has ended"
    it.loop.stop()
    it.thread.join(10)
    it.server.close()
    it.loop.close()


def test_page_and_length(served: Served) -> None:
    head, _, body = served.ask(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5" in head
    assert body == b"up 1\n"


def test_a_page_larger_than_a_socket_buffer(served: Served) -> None:
    _, _, body = served.ask(b"GET /big HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert len(body) == 4_000_000


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /other HTTP/1.1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x00\xff\xfe\r\n\r\n",
    ],
)
def test_everything_else_is_not_found(served: Served, request_: bytes) -> None:
    assert served.ask(request_).startswith(b"HTTP/1.1 404 ")


def test_too_long_a_request_is_closed(served: Served) -> None:
    assert served.ask(b"GET /" + b"a" * 20_000) == b""


def test_request_in_pieces(served: Served) -> None:
    with served.connect() as client:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\n\r", b"\n"):
            client.sendall(piece)
        assert everything(client).endswith(b"up 1\n")


def test_a_client_that_disconnects_early_does_not_affect_others(served: Served) -> None:
    for request in (b"", b"GET /big HTTP/1.1\r\n\r\n"):
        with served.connect() as client:
            client.sendall(request)
    assert served.ask(b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"up 1\n")


def test_slow_client_is_closed(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(page, "_PATIENCE_SECONDS", 0.05)
    with served.connect() as client:
        client.sendall(b"GET /metrics")
        assert everything(client) == b""


def test_too_many_connections_are_closed_and_their_slots_are_freed(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    monkeypatch.setattr(page, "_MAX_CONNECTIONS", 2)
    first, second = served.connect(), served.connect()
    first.sendall(b"GET")
    second.sendall(b"GET")
    with served.connect() as third:
        assert everything(third) == b""
    first.close()
    second.close()
    # The loop handles the closed connections before it accepts, or in the next step: retry until it
    # has.
    for _ in range(100):
        if served.ask(b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"up 1\n"):
            return
    pytest.fail("no place came back")


def test_without_free_descriptors_the_server_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "_PAUSE_SECONDS", 1.0)
    loop = Loop()
    server = PageServer(loop, "127.0.0.1", 0, PAGES)
    real, refused = server._socket, 0

    class Exhausted:
        def accept(self) -> tuple[socket.socket, object]:
            nonlocal refused
            refused += 1
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return real.fileno()

    monkeypatch.setattr(server, "_socket", Exhausted())
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        loop.step(10)
        loop.step(0)
        assert refused == 1, "accepts again at once"
        monkeypatch.setattr(server, "_socket", real)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        while server._open == 0:
            loop.step(10)
        while server._open:
            loop.step(10)
        assert everything(client).endswith(b"up 1\n")
    server.close()
    loop.close()


def test_close_during_a_pause() -> None:
    loop = Loop()
    server = PageServer(loop, "127.0.0.1", 0, PAGES)
    server._loop.unregister(server._socket.fileno())
    server._pause = loop.after(0, server._listen)
    server.close()
    loop.step(0)
    loop.close()
