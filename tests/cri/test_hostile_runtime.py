"""A runtime that answers the agent with anything: a server of this test at the socket, since no
runtime is hostile."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cri.client import Cri
from agent.cri.events import ContainerEvents
from agent.model.snapshot import Wanted
from agent.rpc import frames, grpc, headers
from agent.rpc.grpc import RpcError
from tests.waiting import eventually

CALL_SECONDS = 1.0
MAX_SECONDS = 20.0
MAX_GROWTH_BYTES = 96 << 20
"""A reply may have 16 MiB, which exist as bytes and as a message."""

CALLS: dict[str, Callable[[Cri], object]] = {
    "Version": Cri.version,
    "ListPodSandbox": Cri.sandboxes,
    "ListContainers": Cri.containers,
    "PodSandboxStatus": lambda cri: cri.sandbox_status("s"),
    "ContainerStatus": lambda cri: cri.container_status("c", carriers=True),
    "UpdateContainerResources": lambda cri: cri.update("c", Wanted("0-3")),
}
OK = headers.encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
DONE = headers.encode([(b"grpc-status", b"0")])

Answer = Callable[[random.Random], Iterator[bytes]]


def _endless_data(_: random.Random) -> Iterator[bytes]:
    yield frames.settings({}) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
    yield frames.frame(frames.DATA, 0, 1, b"\0\x7f\xff\xff\xff")
    while True:
        yield frames.frame(frames.DATA, 0, 1, bytes(16_000)) * 16


def _endless_headers(_: random.Random) -> Iterator[bytes]:
    yield frames.settings({})
    number = 0
    while True:
        number += 1
        block = headers.encode([(b"name-%d" % number, bytes(8_000))])
        yield frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block) * 16


def _endless_pings(_: random.Random) -> Iterator[bytes]:
    while True:
        yield frames.frame(frames.PING, 0, 0, bytes(8)) * 1_000


def _slow(_: random.Random) -> Iterator[bytes]:
    whole = frames.settings({}) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
    for each in whole:
        yield bytes((each,))
        time.sleep(0.05)


def _wrong_message(rng: random.Random) -> Iterator[bytes]:
    message = grpc.encode_message(rng.randbytes(rng.choice((1, 50, 5_000))))
    yield frames.settings({}) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
    yield frames.frame(frames.DATA, 0, 1, message)
    yield frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, DONE)


def _wrong_bytes(rng: random.Random) -> Iterator[bytes]:
    yield rng.randbytes(5_000)


def _wrong_status(_: random.Random) -> Iterator[bytes]:
    block = headers.encode([(b":status", b"200"), (b"grpc-status", b"9" * 5_000)])
    ends = frames.END_HEADERS | frames.END_STREAM
    yield frames.settings({}) + frames.frame(frames.HEADERS, ends, 1, block)


ANSWERS = (
    _endless_data,
    _endless_headers,
    _endless_pings,
    _slow,
    _wrong_message,
    _wrong_bytes,
    _wrong_status,
)


@contextlib.contextmanager
def serving(path: Path, answer: Answer) -> Iterator[None]:
    """Every connection gets the answer, whatever it sends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.1)
        over = threading.Event()

        def serve(connection: socket.socket, number: int) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(0.5)
                connection.recv(1 << 16)
                for piece in answer(random.Random(number)):
                    if over.is_set():
                        return
                    connection.sendall(piece)

        def accept() -> None:
            number = 0
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    number += 1
                    threading.Thread(target=serve, args=(connection, number), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield
        over.set()
        accepting.join()


def _grown_bytes(before: int) -> int:
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before


@pytest.mark.parametrize("answer", ANSWERS, ids=[each.__name__ for each in ANSWERS])
def test_every_call_ends_with_an_answer_or_an_rpc_error(tmp_path: Path, answer: Answer) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    path = tmp_path / "cri"
    with serving(path, answer):
        for call in CALLS.values():
            cri = Cri(str(path), CALL_SECONDS)
            began = time.monotonic()
            with contextlib.suppress(RpcError):
                call(cri)
            assert time.monotonic() - began < MAX_SECONDS
            cri.close()
    assert _grown_bytes(before) < MAX_GROWTH_BYTES


@pytest.mark.parametrize("answer", [_endless_headers, _endless_pings, _wrong_bytes, _wrong_status])
def test_events_of_a_hostile_runtime_end_no_thread(tmp_path: Path, answer: Answer) -> None:
    heard: list[None] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    path = tmp_path / "cri"
    with serving(path, answer):
        events = ContainerEvents(str(path), lambda: heard.append(None))
        eventually("two connections have ended", lambda: len(heard) >= 2)
        assert events._thread.is_alive()
        events.close()
    assert _grown_bytes(before) < MAX_GROWTH_BYTES
