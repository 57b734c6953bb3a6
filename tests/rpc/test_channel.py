"""A channel to a real grpcio server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from agent.model.verdict import Code
from agent.rpc.channel import Channel
from agent.rpc.grpc import RpcError
from tests.fixtures.grpc_peers import serve


class Handlers(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.cancelled = threading.Event()
        self.time_left = 0.0

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        handler = {
            "/t/Echo": lambda request, _: request,
            "/t/Size": lambda request, _: str(len(request)).encode(),
            "/t/Make": lambda request, _: bytes(int(request)),
            "/t/Fail": self._fail,
            "/t/Wait": self._wait,
        }.get(details.method)
        return None if handler is None else grpc.unary_unary_rpc_method_handler(handler)

    def _fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such caf\u00e9: 100%")

    def _wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.time_left = context.time_remaining() or 0.0
        context.add_callback(self.cancelled.set)
        self.entered.set()
        self.cancelled.wait(30)
        return b""


@contextlib.contextmanager
def serving(path: Path, handlers: Handlers) -> Iterator[grpc.Server]:
    server = serve(path, handlers)
    try:
        yield server
    finally:
        server.stop(None).wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def handlers(path: Path) -> Iterator[Handlers]:
    handlers = Handlers()
    with serving(path, handlers):
        yield handlers


@pytest.fixture
def channel(path: Path) -> Iterator[Channel]:
    channel = Channel(str(path))
    yield channel
    channel.close()


@pytest.mark.usefixtures("handlers")
def test_small_calls_and_error_statuses_alternate(channel: Channel) -> None:
    for number in range(50):
        request = b"x" * number
        assert channel.call("/t/Echo", request, 5) == request
        with pytest.raises(RpcError) as error:
            channel.call("/t/Fail", b"", 5)
        assert (error.value.code, error.value.message) == (
            Code.NOT_FOUND,
            "no such caf\u00e9: 100%",
        )
    with pytest.raises(RpcError) as error:
        channel.call("/t/Nothing", b"", 5)
    assert error.value.code == Code.UNIMPLEMENTED


@pytest.mark.usefixtures("handlers")
def test_messages_larger_than_both_windows_are_sent(channel: Channel) -> None:
    size = 40 << 20
    assert channel.call("/t/Size", bytes(size), 60) == str(size).encode()
    assert len(channel.call("/t/Make", str(size).encode(), 60)) == size
    assert channel.call("/t/Echo", b"next", 5) == b"next"


def test_a_deadline_ends_the_call_on_both_sides(channel: Channel, handlers: Handlers) -> None:
    with pytest.raises(RpcError) as error:
        channel.call("/t/Wait", b"", 1)
    assert error.value.code == Code.DEADLINE_EXCEEDED
    assert "/t/Wait" in error.value.message
    assert handlers.cancelled.wait(10)
    assert 0 < handlers.time_left <= 1
    assert channel.call("/t/Echo", b"next", 5) == b"next"


def test_waiting_for_another_thread_counts_against_the_deadline(
    channel: Channel, handlers: Handlers
) -> None:
    first = threading.Thread(target=channel.call, args=("/t/Wait", b"", 20))
    first.start()
    assert handlers.entered.wait(10)
    with pytest.raises(RpcError) as error:
        channel.call("/t/Echo", b"", 0.05)
    assert error.value.code == Code.DEADLINE_EXCEEDED
    handlers.cancelled.set()
    first.join()


@pytest.mark.usefixtures("handlers")
def test_threads_share_a_channel(channel: Channel) -> None:
    def work(number: int) -> bool:
        payload = bytes([number]) * (number * 3_000)
        return all(channel.call("/t/Echo", payload, 20) == payload for _ in range(20))

    with futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_missing_server_is_unavailable(channel: Channel, path: Path) -> None:
    with pytest.raises(RpcError) as error:
        channel.call("/t/Echo", b"", 1)
    assert error.value.code == Code.UNAVAILABLE
    assert str(path) in error.value.message


def test_a_restarted_server_is_found_again(channel: Channel, path: Path) -> None:
    for _ in range(3):
        with serving(path, Handlers()):
            assert channel.call("/t/Echo", b"a", 5) == b"a"
        with pytest.raises(RpcError) as error:
            channel.call("/t/Echo", b"", 1)
        assert error.value.code == Code.UNAVAILABLE


def test_a_server_that_stops_during_a_call_is_unavailable(channel: Channel, path: Path) -> None:
    handlers = Handlers()
    with serving(path, handlers) as server:
        stopping = threading.Thread(target=lambda: handlers.entered.wait(10) and server.stop(0))
        stopping.start()
        with pytest.raises(RpcError) as error:
            channel.call("/t/Wait", b"", 10)
        stopping.join()
    assert error.value.code in (Code.UNAVAILABLE, Code.CANCELLED)


def test_a_silent_or_non_grpc_server_does_not_block_the_caller(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    channel = Channel(str(path))
    with pytest.raises(RpcError) as error:
        channel.call("/t/Echo", bytes(10 << 20), 0.1)
    assert error.value.code == Code.DEADLINE_EXCEEDED
    channel.close()

    def answer_and_close() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    listener.accept()[0].close()
    thread = threading.Thread(target=answer_and_close)
    thread.start()
    with pytest.raises(RpcError) as error:
        channel.call("/t/Echo", b"", 5)
    assert error.value.code in (Code.INTERNAL, Code.UNAVAILABLE)
    thread.join()
    channel.close()
    listener.close()


@pytest.mark.usefixtures("handlers")
def test_a_closed_channel_can_be_used_again(channel: Channel) -> None:
    assert channel.call("/t/Echo", b"a", 5) == b"a"
    channel.close()
    assert channel.call("/t/Echo", b"b", 5) == b"b"
