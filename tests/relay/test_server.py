"""The relay on real sockets between a client and a server of grpcio."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from agent.host.listener import ListenError
from agent.host.loop import Loop
from agent.model.verdict import Code, Wait
from agent.relay import server
from agent.relay.gate import FORWARD, Call, GateVerdict
from agent.relay.relay import Downward, Upward
from agent.relay.server import RelayServer
from agent.relay.streams import RelayLimits
from agent.rpc import frames
from agent.rpc.channel import Channel
from agent.rpc.grpc import RpcError
from tests.fixtures.grpc_peers import connect, serve
from tests.relay import relay_child
from tests.relay.relay_child import KEEP_BLOCKS, LONGEST_REFUSAL, TAIL, relay_process
from tests.waiting import eventually

WAIT_SECONDS = 20


class Backend(grpc.GenericRpcHandler):
    """Echoes requests; the method `Wait` waits for the test."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.may_return = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if details.method.endswith("/Wait"):
            return grpc.unary_unary_rpc_method_handler(self.wait)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    def wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.entered.set()
        self.may_return.wait(WAIT_SECONDS)
        return request


class Hooks(relay_child.Hooks):
    """Hooks of which one fails; `/h/Hold` is held while `hold` is true."""

    methods = relay_child.Hooks.methods | {b"/h/Raise"}

    def __init__(self) -> None:
        self.hold = True
        self.requested = threading.Event()
        self.was_abandoned = threading.Event()

    def request(self, call: Call, message: bytes) -> GateVerdict:
        if call.path == b"/h/Raise":
            raise RuntimeError("hook")
        if call.path == b"/h/Hold":
            self.requested.set()
            return Wait() if self.hold else FORWARD
        return super().request(call, message)

    def abandoned(self, call: Call) -> None:
        self.was_abandoned.set()


class RunningRelay:
    """A backend, and a relay in a thread of this process."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.front, self.back = folder / "front.sock", folder / "back.sock"
        self.hooks, self.backend = Hooks(), Backend()
        self.loop = Loop()
        self.errors: list[tuple[bytes, Exception]] = []
        self.faults: list[Exception] = []
        self.server = RelayServer(
            self.loop,
            self.hooks,
            str(self.front),
            str(self.back),
            on_hook_error=lambda path, error: self.errors.append((path, error)),
            on_fault=self.faults.append,
            **options,  # type: ignore[arg-type]
        )
        self.grpc_server = serve(self.back, self.backend)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def in_loop(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self.loop.after(0, lambda: (call(), done.set()))  # type: ignore[arg-type,return-value,func-returns-value]
        with socket.socket(socket.AF_UNIX) as connection:  # wakes up the loop
            connection.connect(str(self.front))
            assert done.wait(WAIT_SECONDS)

    def close(self) -> None:
        self.loop.stop()
        self.thread.join(WAIT_SECONDS)
        self.server.close()
        self.loop.close()
        self.grpc_server.stop(None).wait()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningRelay]:
    running = RunningRelay(tmp_path)
    yield running
    running.close()


@pytest.fixture
def channel(running: RunningRelay) -> Iterator[grpc.Channel]:
    with connect(running.front) as channel:
        yield channel


@pytest.mark.parametrize("direction", [Upward, Downward])
def test_an_internal_error_ends_one_connection(
    running: RunningRelay, monkeypatch: pytest.MonkeyPatch, direction: type[Upward] | type[Downward]
) -> None:
    fault = RuntimeError("internal error")
    feed = direction.feed

    def failing_feed(self: object, data: memoryview, **more: bool) -> object:
        if b"poison" in bytes(data):
            raise fault
        return feed(self, data, **more)  # type: ignore[arg-type,call-arg]

    monkeypatch.setattr(direction, "feed", failing_feed)
    with connect(running.front) as one, connect(running.front) as other:
        echo, of_other = (each.unary_unary("/any/Echo") for each in (one, other))
        assert of_other(b"well", timeout=WAIT_SECONDS) == b"well"
        with contextlib.suppress(grpc.RpcError):  # the reply may arrive before the error
            echo(b"poison", timeout=WAIT_SECONDS)
        assert of_other(b"well", timeout=WAIT_SECONDS) == b"well"
        assert echo(b"again", timeout=WAIT_SECONDS, wait_for_ready=True) == b"again"
    assert running.server.faults == 1
    assert running.faults == [fault]


def test_hooks_change_refuse_and_fail_open(running: RunningRelay, channel: grpc.Channel) -> None:
    grow, refuse, broken = (
        channel.unary_unary(f"/h/{name}") for name in ("Grow", "Refuse", "Raise")
    )
    for message in (b"", bytes(400_000)):
        assert grow(message, timeout=WAIT_SECONDS) == message + TAIL
        assert broken(message, timeout=WAIT_SECONDS) == message
        with pytest.raises(grpc.RpcError) as error:
            refuse(message, timeout=WAIT_SECONDS)
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
        assert error.value.details() == LONGEST_REFUSAL  # type: ignore[attr-defined]
    stats = running.server.stats
    assert (stats.hooked, stats.replaced, stats.refused, stats.hook_errors) == (6, 2, 2, 2)
    assert [path for path, _ in running.errors] == [b"/h/Raise"] * 2


def test_held_calls_are_asked_again_until_they_may_pass(
    running: RunningRelay, channel: grpc.Channel
) -> None:
    messages = [bytes(number * 9_000) for number in range(5)]
    held = [channel.unary_unary("/h/Hold").future(each) for each in messages]
    eventually("five calls are held", lambda: len(running.server.held) == 5)
    assert channel.unary_unary("/h/Grow")(b"", timeout=WAIT_SECONDS) == TAIL
    assert not any(future.done() for future in held)
    running.hooks.hold = False
    assert [future.result(WAIT_SECONDS) for future in held] == messages
    eventually("no call is held", lambda: not running.server.held)


def test_a_disconnected_client_with_a_held_call_is_detected(running: RunningRelay) -> None:
    client = connect(running.front)
    future = client.unary_unary("/h/Hold").future(b"")
    assert running.hooks.requested.wait(WAIT_SECONDS)
    client.close()
    assert running.hooks.was_abandoned.wait(WAIT_SECONDS)
    assert future.cancelled() or future.exception() is not None
    eventually("the connection is closed", lambda: running.server.connections == 0)
    eventually("no call is held", lambda: not running.server.held)


def test_a_runtime_that_has_ended_is_counted(running: RunningRelay) -> None:
    running.grpc_server.stop(None).wait()
    client = Channel(str(running.front))
    with pytest.raises(RpcError) as error:
        client.call("/any/Echo", b"", WAIT_SECONDS)
    client.close()
    assert error.value.code == Code.UNAVAILABLE
    eventually("the error is counted", lambda: running.server.unreachable >= 1)


class SocketRelay:
    """A relay between two plain sockets of the test."""

    def __init__(self, folder: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "back.sock"))
        listener.listen()
        self.loop = Loop()
        front = str(folder / "front.sock")
        self.server = RelayServer(self.loop, Hooks(), front, str(folder / "back.sock"))
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()
        self.client = socket.socket(socket.AF_UNIX)
        self.client.connect(front)
        self.upstream, _ = listener.accept()
        listener.close()
        for end in (self.client, self.upstream):
            end.settimeout(WAIT_SECONDS)

    def stop_loop(self) -> None:
        """Ends the thread; the test runs the loop in steps."""
        self.loop.stop()
        self.thread.join(WAIT_SECONDS)
        self.loop.step(0)

    def close(self) -> None:
        self.client.close()
        self.upstream.close()
        if self.thread.is_alive():
            eventually("the connection is closed", lambda: self.server.connections == 0)
            self.stop_loop()
        self.server.close()
        self.loop.close()


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[SocketRelay]:
    sockets = SocketRelay(tmp_path)
    yield sockets
    sockets.close()


@pytest.mark.parametrize("flooded", ["client", "upstream"])
def test_a_peer_that_does_not_read_makes_the_relay_stop_reading(
    sockets: SocketRelay, flooded: str
) -> None:
    """When the peer reads again, it receives all accepted bytes."""
    source, target = sockets.client, sockets.upstream
    if flooded == "client":
        source, target = target, source
    else:
        source.sendall(frames.PREFACE)
        assert target.recv(100) == frames.PREFACE
    part = frames.frame(frames.PING, 0, 0, b"12345678") * 1_000
    source.setblocking(False)
    sent, idle = 0, threading.Event()
    while not idle.wait(0.2):
        before = sent
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += source.send(part[sent % len(part) :])
        if sent == before:
            idle.set()
    assert sent < 2 << 20
    received = bytearray()
    while len(received) < sent:
        received += target.recv(1 << 20)
    assert received == (part * (sent // len(part) + 1))[:sent]


def test_a_client_that_only_ends_its_side_still_gets_its_reply(sockets: SocketRelay) -> None:
    sockets.client.sendall(b"no HTTP/2 at all")
    sockets.client.shutdown(socket.SHUT_WR)
    received = b""
    while part := sockets.upstream.recv(100):
        received += part
    assert received == b"no HTTP/2 at all"
    sockets.upstream.sendall(b"late answer")
    assert sockets.client.recv(100) == b"late answer"
    sockets.upstream.close()
    assert sockets.client.recv(100) == b""


def test_the_last_data_of_a_closed_upstream_is_delivered(sockets: SocketRelay) -> None:
    answer = frames.frame(99, 0, 1, bytes(8_000)) * 40
    sockets.upstream.sendall(answer)
    sockets.upstream.close()
    received = bytearray()
    while part := sockets.client.recv(1_000):
        received += part
    assert received == answer


@pytest.mark.parametrize(
    ("between", "slice_bytes", "seconds", "expected"),
    [
        pytest.param(20, 17, 1e9, 16, id="stream"),
        pytest.param(4, 17, 1e9, 0, id="calls"),
        pytest.param(20, 17, 0.0, 0, id="slow"),
        pytest.param(20, 70_000, 1e9, 0, id="long-message"),
    ],
)
def test_only_a_streams_writer_gets_the_processor_first(
    sockets: SocketRelay,
    monkeypatch: pytest.MonkeyPatch,
    between: int,
    slice_bytes: int,
    seconds: float,
    expected: int,
) -> None:
    """`between`: the number of slices of the upstream between two messages of the client."""
    seen: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: seen.append(None))
    monkeypatch.setattr(server, "STREAM_SECONDS", seconds)
    sockets.stop_loop()
    word = frames.PREFACE
    for _ in range(3):
        sockets.client.sendall(word)
        sockets.loop.step(WAIT_SECONDS)
        assert sockets.upstream.recv(100) == word
        word = frames.SETTINGS_ACK
        for _ in range(between):
            part = frames.frame(99, 0, 1, bytes(slice_bytes - frames.HEAD_BYTES))
            sockets.upstream.sendall(part)
            sockets.loop.step(WAIT_SECONDS)
            assert sockets.client.recv(slice_bytes, socket.MSG_WAITALL) == part
    assert len(seen) == 3 * expected


def test_a_second_relay_is_refused_and_a_listening_socket_is_taken(
    running: RunningRelay, tmp_path: Path
) -> None:
    with pytest.raises(ListenError, match="another process serves it"):
        RelayServer(running.loop, Hooks(), str(running.front), str(running.back))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "given.sock"))
    listening.listen()
    loop = Loop()
    server = RelayServer(loop, Hooks(), listening, str(running.back))
    thread = threading.Thread(target=loop.run)
    thread.start()
    client = Channel(str(tmp_path / "given.sock"))
    assert client.call("/h/Grow", b"", WAIT_SECONDS) == TAIL
    client.close()
    loop.stop()
    thread.join(WAIT_SECONDS)
    server.close()
    loop.close()
    assert listening.fileno() >= 0
    listening.close()


def test_a_thousand_hooked_calls_leave_the_process_small(
    running: RunningRelay, tmp_path: Path
) -> None:
    front = tmp_path / "other.sock"
    with relay_process(front, running.back, KEEP_BLOCKS) as process:
        client = Channel(str(front))
        for _ in range(1_000):
            client.call("/h/Keep", bytes(4_096), WAIT_SECONDS)
        status = Path(f"/proc/{process.pid}/status").read_text()
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        client.close()
    rss_kb = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert rss_kb < 17_000
    for heavy in ("google", "_message.abi3", "_ctypes", "msgspec"):
        assert heavy not in loaded


def test_limits_are_set_by_the_caller(tmp_path: Path) -> None:
    running = RunningRelay(tmp_path, limits=RelayLimits(body_bytes=100))
    client = Channel(str(running.front))
    assert client.call("/h/Grow", bytes(101), WAIT_SECONDS) == bytes(101)
    assert client.call("/h/Grow", bytes(100), WAIT_SECONDS) == bytes(100) + TAIL
    assert running.server.stats.unread_too_large == 1
    client.close()
    running.close()


def test_a_drain_lets_calls_end_and_clients_reconnect(
    running: RunningRelay, channel: grpc.Channel
) -> None:
    in_progress = channel.unary_unary("/t.T/Wait").future(b"x", timeout=WAIT_SECONDS)
    assert running.backend.entered.wait(WAIT_SECONDS)
    running.in_loop(running.server.drain)
    assert running.server.connections == 1
    running.backend.may_return.set()
    assert in_progress.result() == b"x"
    eventually("the connection is closed", lambda: not running.server.connections)
