"""A client that violates the protocol, and a correct client at the same time."""

from __future__ import annotations

import functools
import select
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import grpc

from agent.rpc import frames, headers
from tests.fixtures.grpc_peers import connect
from tests.relay.relay_child import TAIL
from tests.waiting import eventually

WAIT_SECONDS = 20.0
"""The deadline of each call of the correct client, long enough for a slow machine."""
STUCK_MS = 500
"""If a socket accepts no bytes for this time, the peer does not read."""
END_HEADERS = frames.END_HEADERS
END = frames.END_HEADERS | frames.END_STREAM


@functools.cache
def block(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC request."""
    pairs = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path)]
    pairs += [(b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    return headers.encode([*pairs, *more])


def opening(number: int, path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """HEADERS that open a stream."""
    return frames.frame(frames.HEADERS, END_HEADERS, number, block(path, *more))


def data(number: int, payload: bytes, last: bool = False) -> bytes:
    """One DATA frame."""
    return frames.frame(frames.DATA, frames.END_STREAM * last, number, payload)


class Hostile:
    """A raw connection to the relay. Received frames are recorded and not answered."""

    def __init__(self, path: Path, send_preface: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.setblocking(False)
        self.closed = False
        self.seen: dict[int, bytes] = {}
        """The last frame of each kind that was received."""
        self._received = bytearray()
        if send_preface:
            self.send([frames.PREFACE + frames.settings({})])

    def send(self, parts: Iterable[bytes], reads: bool = True) -> int:
        """Sends all parts, or stops when the relay stops reading or closes the connection. Returns
        the number of sent bytes."""
        total = 0
        for part in parts:
            rest = memoryview(part)
            while rest and not self.closed:
                sent = self._send_some(rest, reads)
                if not sent:
                    return total
                total += sent
                rest = rest[sent:]
        return total

    def is_rejected(self) -> bool:
        """Whether the connection is closed, or GOAWAY or RST_STREAM was received."""
        self._read()
        return self.closed or not self.seen.keys().isdisjoint({frames.GOAWAY, frames.RST_STREAM})

    def close(self) -> None:
        self.socket.close()

    def _send_some(self, rest: memoryview, reads: bool) -> int:
        """Sends some bytes. Returns their number; 0 if the peer does not read or has closed."""
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT | (select.POLLIN if reads else 0))
        while True:
            ready = poll.poll(STUCK_MS)
            if not ready:
                return 0
            events = ready[0][1]
            if events & select.POLLIN:
                self._read()
            if self.closed:
                return 0
            if events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                try:
                    return self.socket.send(rest)
                except BlockingIOError:
                    continue
                except OSError:
                    self._read()
                    self.closed = True
                    return 0

    def _read(self) -> None:
        try:
            while part := self.socket.recv(1 << 18):
                self._received += part
                self._parse_frames()
        except BlockingIOError:
            return
        except OSError:
            pass
        self.closed = True

    def _parse_frames(self) -> None:
        at, size = 0, len(self._received)
        while size - at >= frames.HEAD_BYTES:
            length, kind, _, _ = frames.read_head(self._received, at)
            end = at + frames.HEAD_BYTES + length
            if size < end:
                break
            self.seen[kind] = bytes(self._received[at:end])
            at = end
        del self._received[:at]


class Bystander:
    """A correct client that calls continuously on its own connection: small and larger messages,
    hooked and not. It does not retry: each failed call is in `failures`."""

    def __init__(self, path: Path) -> None:
        self._channel = connect(path)
        self.replies = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._call)

    def __enter__(self) -> Bystander:
        self._thread.start()
        self.wait_for_replies()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(2 * WAIT_SECONDS)
        self._channel.close()
        if kind is None:
            assert self.failures == []

    def wait_for_replies(self) -> None:
        """Waits for the replies of four more calls."""
        wanted = self.replies + 4
        eventually(
            "four more replies", lambda: self.failures or self.replies >= wanted, WAIT_SECONDS
        )
        assert self.failures == []

    def _call(self) -> None:
        grow, echo = self._channel.unary_unary("/h/Grow"), self._channel.unary_unary("/any/Echo")
        messages = [b"small", bytes(20_000)]
        while not self._ended.is_set():
            message = messages[self.replies // 2 % 2]
            call, tail = ((grow, TAIL), (echo, b""))[self.replies % 2]
            try:
                answer = call(message, timeout=WAIT_SECONDS)
            except grpc.RpcError as error:
                self.failures.append(str(error))
                return
            if answer != message + tail:
                self.failures.append(f"{len(message)} bytes have a reply of {len(answer)} bytes")
            self.replies += 1
