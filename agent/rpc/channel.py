"""Unary gRPC calls over a unix socket, for the threads of the agent, without grpcio.

Requests and replies are the bytes of messages, so no protobuf is loaded. Calls run one at a time:
other threads wait within their own deadlines.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

from agent.model.verdict import Code
from agent.rpc import unary
from agent.rpc.grpc import RpcError

_READ_BYTES: Final = 1 << 18


class Channel:
    """Connects when a call needs it, and again after any failure. Thread-safe."""

    def __init__(self, socket_path: str, max_message_bytes: int = unary.MAX_MESSAGE_BYTES) -> None:
        self._path = socket_path
        self._limit = max_message_bytes
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def call(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        """Returns the reply's message; `method` is like `/runtime.v1.RuntimeService/Version`.

        Raises RpcError: UNAVAILABLE if no server answers on the socket or the connection breaks,
        DEADLINE_EXCEEDED after `timeout_seconds`, otherwise the server's status. A call that a
        server did not begin because it was ending is made once more."""
        deadline = time.monotonic() + timeout_seconds
        if not self._lock.acquire(timeout=max(timeout_seconds, 0)):
            raise _late(method)
        try:
            try:
                return self._attempt(method, request, deadline)
            except _UnprocessedError:
                return self._attempt(method, request, deadline)
        except _UnprocessedError as error:
            raise RpcError(Code.UNAVAILABLE, f"{self._path}: {error.message}") from None
        finally:
            self._lock.release()

    def close(self) -> None:
        """Closes the connection, after the running call; a later call opens a new one."""
        with self._lock:
            self._drop()

    def _attempt(self, method: str, request: bytes, deadline: float) -> bytes:
        connection = self._connected(deadline)
        try:
            return connection.call(method, request, deadline)
        finally:
            if not connection.reusable:
                self._drop()

    def _connected(self, deadline: float) -> Connection:
        if self._connection is not None and not self._connection.still_open():
            self._drop()
        if self._connection is None:
            self._connection = Connection(self._path, self._limit, deadline)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _UnprocessedError(RpcError):
    """UNAVAILABLE: the server did not begin the call."""


class Connection:
    """A socket and the protocol on it; the constructor raises RpcError UNAVAILABLE."""

    def __init__(self, path: str, max_message_bytes: int, deadline: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._protocol = unary.UnaryConnection(max_message_bytes)
        self._poll = select.poll()
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise RpcError(Code.UNAVAILABLE, f"{path}: {error.strerror or error}") from None
        self._socket.setblocking(False)
        self._poll.register(self._socket, 0)

    @property
    def reusable(self) -> bool:
        return self._protocol.reusable

    def still_open(self) -> bool:
        """Reads what arrived since the last call; False if the connection can't be used again."""
        try:
            while self._exchange(0):
                pass
        except (unary.ProtocolError, OSError):
            return False
        return self._protocol.reusable

    def call(self, method: str, request: bytes, deadline: float) -> bytes:
        protocol = self._protocol
        protocol.start(method, request, max(deadline - time.monotonic(), 0))
        try:
            while protocol.outcome is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    protocol.cancel()
                    self._exchange(0)
                    raise _late(method)
                self._exchange(left)
        except unary.ProtocolError:
            pass
        except OSError as error:
            protocol.lost(f"connection broke: {error.strerror or error}")
        outcome = protocol.outcome
        if isinstance(outcome, bytes):
            return outcome
        if outcome is None:
            raise RpcError(Code.INTERNAL, "call ended without an outcome")
        if protocol.unprocessed:
            raise _UnprocessedError(Code.UNAVAILABLE, outcome.message)
        if outcome.code == Code.DEADLINE_EXCEEDED:
            # The server knows the deadline too, and may notice first that it passed.
            raise RpcError(outcome.code, f"{method}: {outcome.message}")
        raise outcome

    def messages(self, method: str, request: bytes) -> Iterator[list[bytes]]:
        """Yields the messages that the server streams as the answer to `request`, without an end;
        the first list is empty and shows that the call was sent. Raises RpcError when the stream
        ends."""
        self._protocol.start(method, request, None)
        yield []
        while self._protocol.outcome is None:
            self._follow()
            try:
                if messages := self._protocol.take_messages():
                    yield messages
            except unary.ProtocolError as error:
                raise RpcError(Code.INTERNAL, f"server violated gRPC: {error}") from None
        outcome = self._protocol.outcome
        if isinstance(outcome, RpcError):
            raise outcome
        raise RpcError(Code.UNAVAILABLE, f"{method}: the server ended the stream")

    def wait_for_end(self) -> None:
        """Returns when the server has ended the connection."""
        while self._protocol.reusable:
            self._follow()

    def interrupt(self) -> None:
        """Ends the connection of a thread that waits on it. Another thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _follow(self) -> None:
        try:
            self._exchange(None)
        except unary.ProtocolError as error:
            self._protocol.lost(f"server violated HTTP/2: {error}")
        except OSError as error:
            self._protocol.lost(f"connection broke: {error.strerror or error}")

    def _exchange(self, seconds: float | None) -> bool:
        """Waits, then sends and reads what is possible. Returns False if nothing was.

        `seconds`: the longest wait, None for no limit."""
        outgoing = self._protocol.outgoing()
        wanted = select.POLLIN | select.POLLOUT if outgoing else select.POLLIN
        self._poll.modify(self._socket, wanted)
        events = self._poll.poll(None if seconds is None else seconds * 1_000)
        if not events:
            return False
        if events[0][1] & ~select.POLLOUT:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                self._protocol.lost("connection closed by the server")
                return False
            self._protocol.receive(data)
        if outgoing:
            with contextlib.suppress(BlockingIOError):
                del outgoing[: self._socket.send(outgoing)]
        return True


def _late(method: str) -> RpcError:
    return RpcError(Code.DEADLINE_EXCEEDED, f"{method} took longer than its caller waits")
