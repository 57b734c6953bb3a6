"""The relay does not change what a gRPC client and its server send and receive.
`test_grpc_go.py` has messages, statuses, streams and deadlines of all kinds.

Most tests call a method that is not hooked (`/any/...`) and a hooked method (`/h/...`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest

from agent.rpc import frames
from tests.fixtures.grpc_peers import connect, serve
from tests.relay.hostile import Hostile, data, opening
from tests.relay.relay_child import TAIL, relay_process
from tests.waiting import eventually

WAIT_SECONDS = 30.0
BOTH = pytest.mark.parametrize("service", ["any", "h"])

Metadata = tuple[tuple[str, str | bytes], ...]


class Backend(grpc.GenericRpcHandler):
    """A server whose reply depends on the method. Records the last call."""

    def __init__(self) -> None:
        self.metadata: Metadata = ()
        self.time_left = 0.0
        self.entered = threading.Event()
        self.ended = threading.Event()
        self.may_return = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.metadata = tuple(details.invocation_metadata)
        handler = self.wait if details.method.endswith("/Wait") else self.echo
        return grpc.unary_unary_rpc_method_handler(handler)

    def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.time_left = context.time_remaining() or 0.0
        context.send_initial_metadata(_test_metadata(self.metadata))
        context.set_trailing_metadata(_test_metadata(self.metadata))
        return request

    def wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.ended.set)
        self.entered.set()
        self.may_return.wait(WAIT_SECONDS)
        return request


def _test_metadata(metadata: Metadata) -> Metadata:
    return tuple(pair for pair in metadata if pair[0].startswith("x-"))


def connected(path: Path, *options: tuple[str, int]) -> grpc.Channel:
    back_off = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50))
    return connect(path, *back_off, *options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a relay for all tests."""
    folder = tmp_path_factory.mktemp("relay")
    with relay_process(folder / "front.sock", folder / "back.sock"):
        yield folder


@pytest.fixture
def front(shared: Path) -> Path:
    return shared / "front.sock"


@pytest.fixture
def back(tmp_path: Path) -> Path:
    return tmp_path / "back.sock"


@pytest.fixture
def relay(shared: Path, back: Path) -> None:
    """Leads the relay to the server of this test."""
    (shared / "back.sock").unlink(missing_ok=True)
    (shared / "back.sock").symlink_to(back)


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def server(relay: object, back: Path, backend: Backend) -> Iterator[grpc.Server]:
    server = serve(back, backend)
    yield server
    backend.may_return.set()
    server.stop(None).wait()


@pytest.fixture
def channel(server: object, front: Path) -> Iterator[grpc.Channel]:
    with connected(front) as channel:
        yield channel


def failure(call: Any, *arguments: object, **options: object) -> Any:
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, timeout=WAIT_SECONDS, **options)
    return error.value


@BOTH
def test_metadata_keeps_its_bytes_order_and_duplicates(
    channel: grpc.Channel, backend: Backend, service: str
) -> None:
    sent: Metadata = (
        ("x-b", "2"),
        ("x-a", "1"),
        ("x-b", "1"),
        ("x-raw-bin", bytes(range(256))),
        ("x-raw-bin", b""),
        ("x-a", "spaces  within"),
        ("x-long", "v" * 5_000),
    )
    for _ in range(3):  # the second and third use the compression tables
        call = channel.unary_unary(f"/{service}/Echo")
        _, ended = call.with_call(b"", metadata=sent, timeout=WAIT_SECONDS)
        assert _test_metadata(backend.metadata) == sent
        for received in (ended.initial_metadata(), ended.trailing_metadata()):
            assert _test_metadata(tuple((each.key, each.value) for each in received)) == sent


@pytest.mark.parametrize(("sent", "seconds"), [(b"25S", 25), (b"29999m", 29.999), (b"1H", 3_600)])
@BOTH
def test_a_deadline_arrives_and_is_not_extended(
    server: object, front: Path, backend: Backend, service: str, sent: bytes, seconds: float
) -> None:
    """The header is sent raw: gRPC's own clients round the timeout up."""
    with contextlib.closing(Hostile(front)) as client:
        path = f"/{service}/Echo".encode()
        client.send([opening(1, path, (b"grpc-timeout", sent)), data(1, bytes(5), last=True)])
        eventually("answered", lambda: not client.is_rejected() and frames.DATA in client.seen)
    assert seconds - WAIT_SECONDS / 2 < backend.time_left <= seconds


def test_a_keepalive_ping_is_answered_by_the_runtime(
    relay: object, back: Path, front: Path, backend: Backend
) -> None:
    """The call of a client that sends PING frames continuously does not end."""
    server_options = [
        ("grpc.http2.min_ping_interval_without_data_ms", 10),
        ("grpc.http2.max_ping_strikes", 0),
    ]
    server = serve(back, backend, *server_options)
    client_options = [
        ("grpc.keepalive_time_ms", 20),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with connected(front, *client_options) as channel:
        call = channel.unary_unary("/any/Wait").future(b"kept", timeout=WAIT_SECONDS)
        assert backend.entered.wait(WAIT_SECONDS)
        with contextlib.suppress(grpc.FutureTimeoutError):
            call.result(0.3)  # time for pings
        backend.may_return.set()
        assert call.result(WAIT_SECONDS) == b"kept"
    server.stop(None).wait()


@pytest.mark.parametrize("code", [frames.CANCEL, frames.REFUSED_STREAM, frames.ENHANCE_YOUR_CALM])
@BOTH
def test_a_reset_of_the_client_ends_the_call_at_the_server(
    server: object, front: Path, backend: Backend, service: str, code: int
) -> None:
    with contextlib.closing(Hostile(front)) as client:
        client.send([opening(1, f"/{service}/Wait".encode()), data(1, bytes(5), last=True)])
        assert backend.entered.wait(WAIT_SECONDS)
        assert not backend.ended.is_set()
        client.send([frames.rst_stream(1, code)])
        assert backend.ended.wait(WAIT_SECONDS)


class Scripted:
    """A server that ends each stream as its path requests: `/any/Reset-8`, `/any/Away`."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._ends = [self._listening]
        self.connections = 0
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._thread.join(WAIT_SECONDS)

    def _accept(self) -> None:
        with contextlib.suppress(OSError), futures.ThreadPoolExecutor(4) as pool:
            while True:
                end, _ = self._listening.accept()
                self._ends.append(end)
                self.connections += 1
                pool.submit(self._serve, end)

    def _serve(self, end: socket.socket) -> None:
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(False, header_encoding="utf-8")
        )
        connection.initiate_connection()
        with contextlib.suppress(OSError):
            end.sendall(connection.data_to_send())
            while received := end.recv(1 << 16):
                for event in connection.receive_data(received):
                    if isinstance(event, h2.events.RequestReceived):
                        self._answer(connection, event, dict(event.headers)[":path"])
                end.sendall(connection.data_to_send())

    def _answer(
        self, connection: h2.connection.H2Connection, event: h2.events.RequestReceived, path: str
    ) -> None:
        number = event.stream_id
        kind, _, detail = path.rpartition("/")[2].partition("-")
        if kind == "Reset":
            connection.reset_stream(number, int(detail))
        elif kind == "Begin":
            connection.send_headers(
                number, [(":status", "200"), ("content-type", "application/grpc")]
            )
            connection.send_data(number, b"\0\0\0\0\5begun")
            connection.reset_stream(number, int(detail))
        else:  # the last stream is the one before: the client may retry this one
            connection.close_connection(last_stream_id=number - 2 if number > 2 else 0)


@pytest.fixture
def scripted(relay: object, back: Path) -> Iterator[Scripted]:
    with contextlib.closing(Scripted(back)) as scripted:
        yield scripted


@pytest.mark.parametrize("begun", ["Reset", "Begin"])
@pytest.mark.parametrize(
    "code", [frames.NO_ERROR, frames.REFUSED_STREAM, frames.CANCEL, frames.ENHANCE_YOUR_CALM]
)
@BOTH
def test_a_reset_of_the_server_has_the_same_effect_as_directly(
    scripted: Scripted, front: Path, back: Path, service: str, code: int, begun: str
) -> None:
    def outcome(path: Path) -> tuple[object, str]:
        with connected(path) as channel:
            call = channel.unary_unary(f"/{service}/{begun}-{code}")
            error = failure(call, b"")
            return error.code(), error.details()

    assert outcome(front) == outcome(back)


@BOTH
def test_a_goaway_before_the_call_has_the_same_effect_as_directly(
    scripted: Scripted, front: Path, back: Path, service: str
) -> None:
    ended = []
    for path in (front, back):
        with connected(path) as channel:
            ended.append(failure(channel.unary_unary(f"/{service}/Away"), b"").code())
    assert ended[0] == ended[1] == grpc.StatusCode.UNAVAILABLE


@BOTH
def test_calls_in_progress_end_after_a_goaway_and_new_ones_use_another_connection(
    relay: object, back: Path, front: Path, service: str
) -> None:
    old, new = Backend(), Backend()
    # A stopping server of gRPC removes its socket at a later time.
    first = serve(back.with_name("first.sock"), old)
    back.symlink_to("first.sock")
    with connected(front) as channel:
        echo, wait = (channel.unary_unary(f"/{service}/{name}") for name in ("Echo", "Wait"))
        in_progress = wait.future(b"kept", timeout=WAIT_SECONDS)
        assert old.entered.wait(WAIT_SECONDS)
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append)
        eventually("connected", lambda: states == [grpc.ChannelConnectivity.READY])
        stopped = first.stop(WAIT_SECONDS)
        back.unlink()
        second = serve(back, new)
        # A new call must not reach the first server, which would cancel it.
        eventually("the GOAWAY", lambda: states[-1] is not grpc.ChannelConnectivity.READY)
        assert echo(b"new", timeout=WAIT_SECONDS, wait_for_ready=True) == b"new"
        assert new.metadata
        assert not in_progress.done()
        old.may_return.set()
        assert in_progress.result(WAIT_SECONDS) == b"kept"
        stopped.wait(WAIT_SECONDS)
        assert echo(b"still", timeout=WAIT_SECONDS) == b"still"
    second.stop(None).wait()


def test_a_server_that_starts_late_or_restarts_is_found_by_the_same_client(
    relay: object, back: Path, front: Path
) -> None:
    """The relay's socket remains. Calls fail with UNAVAILABLE while no server runs."""
    inode = front.stat().st_ino
    with connected(front) as channel:
        grow = channel.unary_unary("/h/Grow")
        for turn in range(3):
            assert failure(grow, b"").code() is grpc.StatusCode.UNAVAILABLE
            backend = Backend()
            server = serve(back, backend)
            sent = bytes([turn])
            assert grow(sent, timeout=WAIT_SECONDS, wait_for_ready=True) == sent + TAIL
            in_progress = channel.unary_unary("/h/Wait").future(b"", timeout=WAIT_SECONDS)
            assert backend.entered.wait(WAIT_SECONDS)
            stopped = server.stop(None)
            assert in_progress.exception(WAIT_SECONDS) is not None
            backend.may_return.set()
            stopped.wait(WAIT_SECONDS)
            back.unlink(missing_ok=True)
    assert front.stat().st_ino == inode
