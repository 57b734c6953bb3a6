"""A raw HTTP/2 client for gRPC calls with little overhead: it encodes header blocks in advance."""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = (1 << 31) - 1 - 65_535
SETTINGS = b"\0\0\x06\4\0\0\0\0\0" + b"\0\4\x7f\xff\xff\xff"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"
REFILL_BYTES = 1 << 28


def head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")


class Client:
    """One connection; every call has another `grpc-timeout`, as a kubelet's calls do."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        refill = head(4, 8, 0, 0) + WINDOW.to_bytes(4, "big")
        self._socket.sendall(PREFACE + SETTINGS + refill)
        self._encoder = hpack.Encoder()
        self._streams = itertools.count(1, 2)
        self._timeouts = itertools.count(1)
        self._blocks: dict[str, deque[bytes]] = {}
        self._buffer = bytearray()
        self._spent = 0
        self.received_bytes = 0
        """The bytes of the messages in all replies."""
        self._read = memoryview(bytearray(1 << 20))

    def prepare(self, method: str, calls: int) -> None:
        """Encodes the headers of the next calls, which must then be made in this order."""
        blocks = self._blocks.setdefault(method, deque())
        for _ in range(calls):
            blocks.append(
                self._encoder.encode(
                    [
                        (":method", "POST"),
                        (":scheme", "http"),
                        (":path", method),
                        (":authority", "localhost"),
                        ("content-type", "application/grpc"),
                        ("user-agent", "grpc-go/1.80.0"),
                        ("te", "trailers"),
                        ("grpc-timeout", f"{60_000_000 + next(self._timeouts)}u"),
                    ]
                )
            )

    def call(self, method: str, request: bytes) -> float:
        """The seconds of one call."""
        return self.calls(method, request, 1, 1)[0]

    def calls(self, method: str, request: bytes, count: int, in_flight: int) -> list[float]:
        """The seconds of each of `count` calls, with `in_flight` of them in flight."""
        blocks = self._blocks[method]
        message = b"\0" + len(request).to_bytes(4, "big") + request
        started: dict[int, float] = {}
        took: list[float] = []
        left = count
        while len(took) < count:
            while left and len(started) < in_flight:
                stream, block = next(self._streams), blocks.popleft()
                frames = head(len(block), 1, 4, stream) + block
                frames += head(len(message), 0, 1, stream) + message
                started[stream] = time.perf_counter()
                self._socket.sendall(frames)
                left -= 1
            for stream in self._receive():
                took.append(time.perf_counter() - started.pop(stream))
        return took

    def _receive(self) -> list[int]:
        """The streams that ended in the arrived bytes."""
        size = self._socket.recv_into(self._read)
        if not size:
            raise ConnectionError("closed by the peer")
        self._buffer += self._read[:size]
        buffer, at, received, ended = self._buffer, 0, len(self._buffer), []
        while received - at >= 9:
            length = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
            end = at + 9 + length
            if end > received:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            if kind == 0:
                self._spent += length
                self.received_bytes += length
            if kind in (0, 1) and flags & 1:
                ended.append(stream)
            elif kind == 4 and not flags & 1:
                self._socket.sendall(SETTINGS_ACK)
            elif kind == 6 and not flags & 1:
                self._socket.sendall(head(8, 6, 1, 0) + buffer[at + 9 : end])
            elif kind in (3, 7):
                raise ConnectionError(f"frame of kind {kind} from the peer")
            at = end
        del buffer[:at]
        if self._spent > REFILL_BYTES:
            self._socket.sendall(head(4, 8, 0, 0) + self._spent.to_bytes(4, "big"))
            self._spent = 0
        return ended

    def close(self) -> None:
        self._socket.close()
