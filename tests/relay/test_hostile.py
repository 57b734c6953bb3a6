"""One hostile connection costs bounded memory and does not affect other calls.

Each attack runs against a relay process while a correct client calls continuously.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from agent.rpc import frames
from tests.fixtures.grpc_peers import serve
from tests.relay.hostile import END, END_HEADERS, Bystander, Hostile, block, data, opening
from tests.relay.relay_child import peak_mb, relay_process
from tests.waiting import eventually

PEAK_MB = 32
"""Peak memory of the relay process during an attack on one connection; without load it is 15."""
PEAK_HOLDING_MB = 96
"""Peak memory if the relay holds requests: Limits.held_bytes and twice a decompressed request."""
STREAMS = 100_000
MAX_STREAMS = 20
"""The backend refuses more concurrent streams of one connection."""
CLIENTS = 200
PER_CLIENT_KB = 32
HUGE_REPLY = bytes(48 << 20)


class Backend(grpc.GenericRpcHandler):
    """Echoes requests; the method `Huge` has a large reply."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if details.method.endswith("/Huge"):
            return grpc.unary_unary_rpc_method_handler(lambda request, _: HUGE_REPLY)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


@pytest.fixture(scope="module")
def back(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("back") / "back.sock"
    server = serve(
        path,
        Backend(),
        ("grpc.max_receive_message_length", 80 << 20),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        threads=CLIENTS + MAX_STREAMS,
    )
    yield path
    server.stop(None).wait()


Parts = Callable[[], Iterator[bytes]]


def partial_data() -> Iterator[bytes]:
    yield opening(1, b"/h/Grow") + frames.head(1 << 14, frames.DATA, 0, 1) + bytes(100)


def partial_headers() -> Iterator[bytes]:
    yield frames.head(60_000, frames.HEADERS, END_HEADERS, 1) + bytes(59_999)


def largest_frame() -> Iterator[bytes]:
    yield opening(1, b"/h/Grow") + frames.head((1 << 24) - 1, frames.DATA, 0, 1)
    yield from itertools.repeat(bytes(1 << 16), 255)


def continuations() -> Iterator[bytes]:
    """100 MB in one header block."""
    yield frames.frame(frames.HEADERS, 0, 1, block(b"/any/Echo"))
    field = b"\0\x01x\x7f\x80\x7e" + bytes(16_255)
    yield from itertools.repeat(frames.frame(frames.CONTINUATION, 0, 1, field), 6_400)


def empty_continuations() -> Iterator[bytes]:
    yield frames.frame(frames.HEADERS, 0, 1, block(b"/any/Echo"))
    yield from itertools.repeat(frames.frame(frames.CONTINUATION, 0, 1) * 1_000, 1_000)


def behind_a_held_call(attack: Parts) -> Parts:
    """The relay may not stop parsing a connection whose message it holds."""

    def parts() -> Iterator[bytes]:
        yield opening(9_999_999, b"/h/Hold") + data(9_999_999, bytes(5), last=True)
        yield from attack()

    return parts


def indexed_bomb() -> Iterator[bytes]:
    """One large entry of the table, referenced by every byte: 64 MB per block when decoded."""
    field = b"\x40\x01x\x7f\xa1\x1e" + bytes(4_000)
    yield frames.frame(frames.HEADERS, END_HEADERS, 1, block(b"/any/Echo") + field)
    for number in range(3, 200, 2):
        named = block(b"/any/Echo") + b"\xbe" * 16_000
        yield frames.frame(frames.HEADERS, END_HEADERS, number, named)


def text_of_256_mb() -> Iterator[bytes]:
    invalid = b"\0\x7f\xff\xff\xff\x7f"
    yield frames.frame(frames.HEADERS, END, 1, block(b"/h/Keep") + invalid)


def churning_table() -> Iterator[bytes]:
    """Every field is a new entry of the table, which is emptied again and again."""
    churn = b"".join(b"\x40\x02%c%c\x01v" % divmod(n, 100) for n in range(2_000))
    for number in range(1, 600, 2):
        payload = b"\x20\x3f\xe1\x1f" + block(b"/any/Echo") + churn
        yield frames.frame(frames.HEADERS, END, number, payload)


def rapid_reset(path: bytes) -> Parts:
    def parts() -> Iterator[bytes]:
        for first in range(1, 2 * STREAMS, 200):
            yield b"".join(
                opening(number, path) + frames.rst_stream(number, frames.CANCEL)
                for number in range(first, first + 200, 2)
            )

    return parts


def never_ended(path: bytes, payload: bytes = b"") -> Parts:
    def parts() -> Iterator[bytes]:
        for first in range(1, 2 * STREAMS, 200):
            yield b"".join(
                opening(number, path) + (data(number, payload) if payload else b"")
                for number in range(first, first + 200, 2)
            )

    return parts


def endless_message(streams: int) -> Parts:
    """Each stream announces a message of 4 GiB and sends a little more than 1 MiB."""

    def parts() -> Iterator[bytes]:
        numbers = range(1, 2 * streams, 2)
        for number in numbers:
            yield opening(number, b"/h/Grow") + data(number, b"\0\xff\xff\xff\xff")
        for _ in range(80):
            for number in numbers:
                yield data(number, bytes(16_384))

    return parts


def gzip_bomb(path: bytes, size: int, streams: int) -> Parts:
    def parts() -> Iterator[bytes]:
        packed = gzip.compress(bytes(size), 9)
        message = b"\1" + len(packed).to_bytes(4, "big") + packed
        pieces = [message[at : at + 16_384] for at in range(0, len(message), 16_384)]
        for number in range(1, 2 * streams, 2):
            yield opening(number, path, (b"grpc-encoding", b"gzip"))
            yield b"".join(data(number, piece, piece is pieces[-1]) for piece in pieces)

    return parts


def refusals() -> Iterator[bytes]:
    """Small requests with large answers from the relay itself."""
    yield from (
        b"".join(
            opening(number, b"/h/Refuse") + data(number, bytes(5), last=True)
            for number in range(first, first + 200, 2)
        )
        for first in range(1, STREAMS // 4, 200)
    )


def flood(frame: bytes, count: int = STREAMS) -> Parts:
    return lambda: itertools.repeat(frame * 100, count // 100)


def empty_data(path: bytes) -> Parts:
    def parts() -> Iterator[bytes]:
        yield opening(1, path)
        yield from itertools.repeat(data(1, b"") * 100, STREAMS // 100)

    return parts


def single_bytes() -> Iterator[bytes]:
    """The relay returns credit with a frame for each byte of a message."""
    yield opening(1, b"/h/Grow") + data(1, b"\0\0\x0f\xff\xff")
    yield from itertools.repeat(data(1, b"x") * 100, STREAMS // 100)


PING = frames.frame(frames.PING, 0, 0, b"12345678")
SETTINGS = frames.settings({frames.INITIAL_WINDOW_SIZE: 0, frames.HEADER_TABLE_SIZE: 0})

ATTACKS: dict[str, tuple[Parts, bool]] = {
    # the sent bytes, and whether the relay or the runtime must return an error
    "a part of a DATA frame": (partial_data, False),
    "a part of a HEADERS frame": (partial_headers, False),
    "the largest frame": (largest_frame, True),
    "100 MB of headers": (continuations, True),
    "100 MB of headers behind a held call": (behind_a_held_call(continuations), True),
    "empty CONTINUATIONs": (empty_continuations, True),
    "empty CONTINUATIONs behind a held call": (behind_a_held_call(empty_continuations), True),
    "an entry with 16,000 references in a block": (indexed_bomb, True),
    "a text of 256 MB": (text_of_256_mb, True),
    "a table that churns": (churning_table, False),
    "opened and reset": (rapid_reset(b"/any/Echo"), False),
    "hooked, opened and reset": (rapid_reset(b"/h/Grow"), False),
    "opened and not ended": (never_ended(b"/any/Echo"), True),
    "hooked, opened and not ended": (never_ended(b"/h/Grow"), True),
    "hooked, begun and not ended": (never_ended(b"/h/Grow", b"\0\0\0\xff\xff" + bytes(50)), True),
    "4 GiB announced": (endless_message(1), True),
    "4 GiB announced on 30 streams": (endless_message(30), True),
    "256 MB after decompression": (gzip_bomb(b"/h/Grow", 256 << 20, 1), False),
    "refusals": (refusals, False),
    "PING": (flood(PING, 10 * STREAMS), False),
    "SETTINGS": (flood(SETTINGS), False),
    "WINDOW_UPDATE": (flood(frames.window_update(0, 1)), False),
    "WINDOW_UPDATE beyond 2 GiB": (flood(frames.window_update(0, frames.MAX_WINDOW)), False),
    "empty DATA": (empty_data(b"/any/Echo"), False),
    "hooked, empty DATA": (empty_data(b"/h/Grow"), False),
    "hooked, single bytes": (single_bytes, False),
}
ANSWERED = ("opened and reset", "refusals", "PING", "SETTINGS", "hooked, single bytes")
"""Attacks with many answers, which a client may leave unread."""
HOLDS_REQUESTS = {
    "256 MB after decompression",
    "4 GiB announced on 30 streams",
    "refusals",
}


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        *(pytest.param(name, True, id=name) for name in ATTACKS),
        *(pytest.param(name, False, id=f"{name}, unread") for name in ANSWERED),
    ],
)
def test_an_attack_costs_bounded_memory_and_does_not_affect_other_calls(
    relay: subprocess.Popen[bytes], front: Path, name: str, reads: bool
) -> None:
    parts, expects_error = ATTACKS[name]
    with Bystander(front) as bystander:
        with contextlib.closing(Hostile(front)) as hostile:
            hostile.send(parts(), reads)
            bystander.wait_for_replies()
            if expects_error:
                eventually("an error is returned", hostile.is_rejected)
        bystander.wait_for_replies()
    assert peak_mb(relay.pid) < (PEAK_HOLDING_MB if name in HOLDS_REQUESTS else PEAK_MB)


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        frames.PREFACE + frames.window_update(0, 1),
        bytes(1 << 20),
    ],
    ids=["HTTP/1", "no SETTINGS", "zeros"],
)
def test_a_client_with_another_protocol_gets_the_runtimes_error(
    relay: subprocess.Popen[bytes], front: Path, greeting: bytes
) -> None:
    with Bystander(front) as bystander:
        with contextlib.closing(Hostile(front, send_preface=False)) as hostile:
            hostile.send([greeting])
            eventually("an error is returned", hostile.is_rejected)
        bystander.wait_for_replies()
    assert peak_mb(relay.pid) < PEAK_MB


def test_a_slow_writer_is_not_disconnected(relay: subprocess.Popen[bytes], front: Path) -> None:
    """A valid hooked call that arrives in single bytes."""
    call = opening(1, b"/h/Grow") + data(1, b"\0\0\0\x03\xe8" + bytes(1_000), last=True)
    with Bystander(front), contextlib.closing(Hostile(front)) as slow:
        for byte in call:
            assert slow.send([bytes([byte])]) == 1
        eventually("answered", lambda: not slow.is_rejected() and frames.DATA in slow.seen)


def test_huge_unread_replies_stay_at_the_runtime(
    relay: subprocess.Popen[bytes], front: Path
) -> None:
    with Bystander(front) as bystander, contextlib.closing(Hostile(front)) as client:
        windows = frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
        windows += frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        calls = [opening(n, b"/any/Huge") + data(n, bytes(5), last=True) for n in range(1, 7, 2)]
        client.send([windows, *calls], reads=False)
        bystander.wait_for_replies()
        assert peak_mb(relay.pid) < PEAK_MB


def test_connections_closed_during_calls_leave_nothing(
    relay: subprocess.Popen[bytes], front: Path
) -> None:
    """Further series of clients that close with calls in progress need no more memory."""

    def abandon_calls(number: int) -> None:
        client = Hostile(front)
        calls = [opening(1, b"/h/Grow"), data(1, b"\0\0\0\x03\xe8" + bytes(1_000), last=True)]
        calls += [opening(3, b"/h/Hold"), data(3, bytes(5), last=True), opening(5, b"/any/Echo")]
        calls += [data(5, b"\0\0\0\x07\xd0" + bytes(1_000)), opening(7, b"/h/Grow")]
        calls += [data(7, b"\0\0\0\x07\xd0" + bytes(1_000)) + bytes(5)]
        client.send(calls[: number % (len(calls) + 1)])
        if number % 3 == 0:
            client.socket.shutdown(socket.SHUT_WR)
        if number % 3 == 1:
            client.is_rejected()  # reads what has arrived
        client.close()

    with Bystander(front) as bystander:
        peaks = []
        for _ in range(3):
            for number in range(CLIENTS):
                abandon_calls(number)
            bystander.wait_for_replies()
            peaks.append(peak_mb(relay.pid))
        sockets = f"/proc/{relay.pid}/fd"
        eventually("closed", lambda: sum(1 for _ in Path(sockets).iterdir()) < 20)
    assert peaks[0] < PEAK_MB
    assert peaks[2] - peaks[0] < 1


def test_many_clients_with_calls_in_progress_stay_within_their_share(
    relay: subprocess.Popen[bytes], front: Path
) -> None:
    """Each client has one call with a reply, and has sent a part of another message."""
    with Bystander(front) as bystander, contextlib.ExitStack() as stack:
        before = peak_mb(relay.pid)
        clients = [stack.enter_context(contextlib.closing(Hostile(front))) for _ in range(CLIENTS)]
        for client in clients:
            client.send([opening(1, b"/h/Grow"), data(1, bytes(5), last=True)])
            client.send([opening(3, b"/h/Grow"), data(3, b"\0\0\0\xff\xff" + bytes(4_000))])
        for client in clients:
            eventually("answered", lambda it=client: it.is_rejected() or frames.DATA in it.seen)
            assert not client.closed
        bystander.wait_for_replies()
        assert peak_mb(relay.pid) - before < CLIENTS * PER_CLIENT_KB / 1024


@pytest.mark.parametrize("descriptors", ["63", "64"])
def test_without_free_descriptors_clients_wait_and_hooks_continue(
    front: Path, back: Path, descriptors: str
) -> None:
    with relay_process(front, back, descriptors), Bystander(front) as bystander:
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(100)]
            for each in idle:
                each.connect(str(front))
            bystander.wait_for_replies()
            bystander.wait_for_replies()
        with Bystander(front) as new_client:
            new_client.wait_for_replies()


class NonReadingRuntime:
    """A runtime that serves its first connection and gives no credit to later connections."""

    def __init__(self, path: Path, back: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._back = back
        self._ends: list[socket.socket] = [self._listening]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._thread.join(10)

    def _serve(self) -> None:
        first, _ = self._listening.accept()
        served = socket.socket(socket.AF_UNIX)
        served.connect(str(self._back))
        self._ends += [first, served]
        pumps = [
            threading.Thread(target=_copy, args=pair) for pair in ((first, served), (served, first))
        ]
        for pump in pumps:
            pump.start()
        with contextlib.suppress(OSError):
            while True:
                other, _ = self._listening.accept()
                self._ends.append(other)
                other.sendall(frames.settings({}) + frames.SETTINGS_ACK)
                pump = threading.Thread(target=_discard, args=(other,))
                pump.start()
                pumps.append(pump)
        for pump in pumps:
            pump.join(10)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            sink.sendall(part)


def _discard(source: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while source.recv(1 << 18):
            pass


@pytest.fixture
def non_reading_runtime(tmp_path: Path, back: Path) -> Iterator[Path]:
    path = tmp_path / "back2.sock"
    with contextlib.closing(NonReadingRuntime(path, back)):
        yield path


def queue_of_small_frames(numbers: range) -> Iterator[bytes]:
    """Frames that wait in the relay for credit of the runtime."""
    yield opening(1, b"/any/Echo") + opening(3, b"/h/Grow")
    whole = 900_000
    yield data(3, b"\0" + whole.to_bytes(4, "big"))
    for at in range(0, whole, 15_000):
        yield data(3, bytes(15_000), last=at + 15_000 == whole)
    for first in range(numbers.start, numbers.stop, 200):
        yield b"".join(
            opening(number, b"/any/Echo") + data(number, b"x")
            for number in range(first, first + 200, 2)
        )


def test_resets_behind_a_long_queue_do_not_stop_the_loop(
    front: Path, non_reading_runtime: Path
) -> None:
    numbers = range(5, 40_005, 2)
    with relay_process(front, non_reading_runtime) as relay, Bystander(front) as bystander:
        with contextlib.closing(Hostile(front)) as hostile:
            hostile.send(queue_of_small_frames(numbers))
            bystander.wait_for_replies()
            hostile.send([b"".join(frames.rst_stream(number, 8) for number in numbers)])
            bystander.wait_for_replies()
        bystander.wait_for_replies()
        assert peak_mb(relay.pid) < PEAK_HOLDING_MB


def test_decompressed_sizes_of_held_messages_are_counted(
    front: Path, non_reading_runtime: Path
) -> None:
    """Each message decompresses to a thousand times its size."""
    with relay_process(front, non_reading_runtime) as relay, Bystander(front) as bystander:
        with contextlib.closing(Hostile(front)) as hostile:
            hostile.send(gzip_bomb(b"/h/Hold", 1_000_000, 4_000)())
            bystander.wait_for_replies()
        assert peak_mb(relay.pid) < PEAK_HOLDING_MB
