"""A server that acts as a hostile runtime, and its answers."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.rpc import frames, grpc, headers

OK = headers.encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
DONE = headers.encode([(b"grpc-status", b"0")])
Answer = Callable[[random.Random], Iterator[bytes]]


def endless_data(_: random.Random) -> Iterator[bytes]:
    yield frames.settings({}) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
    yield frames.frame(frames.DATA, 0, 1, b"\0\x7f\xff\xff\xff")
    while True:
        yield frames.frame(frames.DATA, 0, 1, bytes(16_000)) * 16


def endless_headers(_: random.Random) -> Iterator[bytes]:
    yield frames.settings({})
    number = 0
    while True:
        number += 1
        block = headers.encode([(b"name-%d" % number, bytes(8_000))])
        yield frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block) * 16


def endless_pings(_: random.Random) -> Iterator[bytes]:
    while True:
        yield frames.frame(frames.PING, 0, 0, bytes(8)) * 1_000


def slow(_: random.Random) -> Iterator[bytes]:
    message = frames.settings({}) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
    for each in message:
        yield bytes((each,))
        time.sleep(0.05)


def wrong_message(rng: random.Random) -> Iterator[bytes]:
    message = grpc.encode_message(rng.randbytes(rng.choice((1, 50, 5_000))))
    yield frames.settings({}) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, OK)
    yield frames.frame(frames.DATA, 0, 1, message)
    yield frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, DONE)


def wrong_bytes(rng: random.Random) -> Iterator[bytes]:
    yield rng.randbytes(5_000)


def wrong_status(_: random.Random) -> Iterator[bytes]:
    block = headers.encode([(b":status", b"200"), (b"grpc-status", b"9" * 5_000)])
    ends = frames.END_HEADERS | frames.END_STREAM
    yield frames.settings({}) + frames.frame(frames.HEADERS, ends, 1, block)


ANSWERS = (
    endless_data,
    endless_headers,
    endless_pings,
    slow,
    wrong_message,
    wrong_bytes,
    wrong_status,
)


@contextlib.contextmanager
def serving(path: Path, answer: Answer) -> Iterator[None]:
    """Sends the answer on every connection, whatever the client sends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.1)
        ended = threading.Event()

        def serve(connection: socket.socket, number: int) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(0.5)
                connection.recv(1 << 16)
                for piece in answer(random.Random(number)):
                    if ended.is_set():
                        return
                    connection.sendall(piece)

        def accept() -> None:
            number = 0
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    number += 1
                    threading.Thread(target=serve, args=(connection, number), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield
        ended.set()
        accepting.join()
