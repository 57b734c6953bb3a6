"""Two sockets and the relay between them: cut-through sends, backpressure, orderly ends."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Final

from agent.host.loop import HANG_UP, WRITE, Loop
from agent.relay.lane import Sink
from agent.relay.port import Port
from agent.relay.relay import Relay, RelayError

HIGH_WATER_BYTES: Final = 1 << 19
"""Unsent bytes for one end that stop reading from the other."""
DEAF_CLIENT_BYTES: Final = 4 * HIGH_WATER_BYTES
"""Unsent bytes for a client that stop reading from it: what it does not read are our answers."""
_SEND_BUFFER_BYTES: Final = 1 << 18
"""The kernel doubles it: one receive goes on in one send though the one before is still unread."""
_CALL_SLICES: Final = 4
"""More than so many of the upstream in a row, without a word of the client, are a stream."""
_STREAM_SECONDS: Final = 0.001
"""What comes slower has no more behind it yet."""
_MOST_OF_MESSAGES_BYTES: Final = 1 << 16
"""A slice beyond it is of one long message, whose sender waits until we have read."""
_CONNECT_RETRY_SECONDS: Final = 0.01
_CONNECT_ATTEMPTS: Final = 200


class Pair:
    """One client's connection and its upstream's; `ended` is called once, with the pair.

    `ended` learns whether the upstream was reached; `hooked` is called after bytes were relayed
    while hooked calls are under way; `faulted` with what went wrong in us and cost the connection.
    """

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        upstream: socket.socket,
        buffer: memoryview,
        make_relay: Callable[[Sink, Sink], Relay],
        hooked: Callable[[], None],
        ended: Callable[[Pair, bool], None],
        faulted: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._hooked = hooked
        self._ended = ended
        self._faulted = faulted
        self._client = Port(loop, client)
        self._upstream = Port(loop, upstream)
        for port in (self._client, self._upstream):
            port.socket.setblocking(False)
            port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._relay = make_relay(self._client.write, self._upstream.write)
        self._from_client = self._relay.from_client
        self._from_upstream = self._relay.from_upstream
        self._slices = 0  # of the upstream since the client last spoke
        self._streamed = 0.0  # when the last of a stream came
        self._half_closed = False
        self._closed = False

    def connect(self, path: str, attempts: int = _CONNECT_ATTEMPTS) -> None:
        """Reaches for the upstream; while its queue of connections is full, again later."""
        if self._closed:
            return
        try:
            self._upstream.socket.connect(path)
        except BlockingIOError:
            if not attempts:
                self._end(reached=False)
                return
            self._loop.after(_CONNECT_RETRY_SECONDS, lambda: self.connect(path, attempts - 1))
        except OSError:
            self._end(reached=False)
        else:
            self._watch()

    def ask_again(self) -> None:
        """Asks the gate about the held calls of this connection."""
        try:
            self._relay.ask_again()
        except Exception as error:  # noqa: BLE001  one connection ends no other
            self._fail(error)
        self._settle(0)

    def say_goodbye(self) -> None:
        """Lets the client finish its calls and connect anew; a client that can't get a GOAWAY is
        disconnected at once."""
        if self._relay.say_goodbye():
            self._settle(0)
        else:
            self._end(reached=True)

    def close(self) -> None:
        self._end(reached=True)

    def _client_ready(self, events: int) -> None:
        client = self._client
        self._slices = 0
        if events & WRITE:
            client.drain()
        if events & ~WRITE and not client.eof:
            data = client.read(self._buffer)
            if data is not None:
                try:
                    if self._from_client(data):
                        self._hooking()
                except Exception as error:  # noqa: BLE001  one connection ends no other
                    self._fail(error)
        if client.strained or self._upstream.strained:
            self._settle(events)

    def _upstream_ready(self, events: int) -> None:
        upstream = self._upstream
        if events & WRITE:
            upstream.drain()
        if events & ~WRITE:
            self._slices += 1
            if self._slices > _CALL_SLICES:
                self._let_more_come()
            self._read_upstream()
        if upstream.strained or self._client.strained:
            self._settle(0)

    def _let_more_come(self) -> None:
        """Yields the CPU to a writer of the stream that waits for it: then many messages pass in
        one send."""
        now = perf_counter()
        if now - self._streamed < _STREAM_SECONDS:
            os.sched_yield()
        self._streamed = now

    def _read_upstream(self) -> bool:
        data = self._upstream.read(self._buffer)
        if data is None:
            return False
        if len(data) > _MOST_OF_MESSAGES_BYTES:
            self._slices = 0
        try:
            if self._from_upstream(data):
                self._hooking()
        except Exception as error:  # noqa: BLE001  one connection ends no other
            self._fail(error)
        return True

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, RelayError):
            self._faulted(error)
        self._end(reached=True)

    def _hooking(self) -> None:
        """Hooked calls are under way: one may be held, or a queue have grown."""
        if self._relay.queued_bytes:
            self._client.strained = True
        self._hooked()

    def _settle(self, client_events: int) -> None:
        """Draws the consequences of what happened."""
        client, upstream = self._client, self._upstream
        if self._closed:
            return
        if upstream.broken and not upstream.eof:
            while len(client.backlog) < DEAF_CLIENT_BYTES and self._read_upstream():
                pass
            upstream.eof = True
        hung_up = client.eof and client_events & HANG_UP
        if self._closed or client.broken or hung_up or (upstream.eof and not client.backlog):
            self._end(reached=True)
            return
        if client.eof and not upstream.backlog and not self._half_closed:
            self._half_closed = True
            with contextlib.suppress(OSError):
                upstream.socket.shutdown(socket.SHUT_WR)
        self._watch()

    def _watch(self) -> None:
        client, upstream = self._client, self._upstream
        hears_client = (
            not client.eof
            and not upstream.eof
            and len(upstream.backlog) < HIGH_WATER_BYTES
            and len(client.backlog) < DEAF_CLIENT_BYTES
            and self._relay.queued_bytes < HIGH_WATER_BYTES
        )
        hears_upstream = not upstream.eof and len(client.backlog) < HIGH_WATER_BYTES
        client.watch(hears_client, client.eof, self._client_ready)
        upstream.watch(hears_upstream, False, self._upstream_ready)

    def _end(self, reached: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._upstream.close()
        try:
            self._relay.close()
        except Exception as error:  # noqa: BLE001  one connection ends no other
            self._faulted(error)
        self._ended(self, reached)
