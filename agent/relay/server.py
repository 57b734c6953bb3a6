"""The relay on sockets: one upstream connection for each client connection, in one epoll loop; with
cut-through sends, backpressure, and orderly ends.

A process creates a Loop and a RelayServer with its Gate, and runs the loop. `stats`, `budget`,
`connections` and `unreachable` are for metrics. Everything happens in the loop's thread."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Final

from agent.host.listener import Listener
from agent.host.loop import HANG_UP, READ, WRITE, Loop, OnReady, Timer
from agent.relay.calls import AskAgain
from agent.relay.flow_control import Sink
from agent.relay.gate import Gate, OnHookError, RelayStats
from agent.relay.meter import Meter, Observe, Timing
from agent.relay.relay import Relay, RelayError
from agent.relay.streams import HeldStream, MemoryBudget, RelayLimits
from agent.rpc.held_calls import HeldCalls


class Port:
    """One end's socket. Bytes that can't be sent at once wait in `backlog`. `strained`: the socket
    may need more than to wait for bytes to read: it has a backlog, was ended by its peer, or broke.
    """

    __slots__ = (
        "_loop",
        "_mask",
        "_receive",
        "_send",
        "backlog",
        "broken",
        "eof",
        "socket",
        "strained",
    )

    def __init__(self, loop: Loop, end: socket.socket) -> None:
        self.socket = end
        self._receive = end.recv_into
        self._send = end.send
        self.backlog = bytearray()
        self.eof = False
        self.broken = False
        self.strained = True
        self._loop = loop
        self._mask: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        sent = 0
        if self.strained:
            if self.broken:
                return
            if self.backlog:
                self.backlog += data
                return
        try:
            sent = self._send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.broken = self.strained = True
            return
        if sent < len(data):
            self.backlog += memoryview(data)[sent:]
            self.strained = True

    def drain(self) -> None:
        """Sends the part of the backlog that the socket accepts."""
        try:
            del self.backlog[: self.socket.send(self.backlog)]
        except BlockingIOError:
            return
        except OSError:
            self.broken = True
            self.backlog.clear()

    def read(self, buffer: memoryview) -> memoryview | None:
        """The received bytes; None when there are none now. Sets `eof`."""
        try:
            size = self._receive(buffer)
        except BlockingIOError:
            return None
        except OSError:
            size = 0
        if not size:
            self.eof = self.strained = True
            return None
        return buffer[:size]

    def watch(self, reading: bool, hang_up: bool, on_ready: OnReady) -> None:
        """Waits for the relevant events; an ignored hang-up would be reported without end."""
        mask: int | None = (READ if reading else 0) | (WRITE if self.backlog else 0)
        if not mask and not hang_up:
            mask = None
        self.strained = mask != READ
        if mask == self._mask:
            return
        fd = self.socket.fileno()
        if mask is None:
            self._loop.unregister(fd)
        elif self._mask is None:
            self._loop.register(fd, mask, on_ready)
        else:
            self._loop.modify(fd, mask)
        self._mask = mask

    def close(self) -> None:
        if self._mask is not None:
            self._loop.unregister(self.socket.fileno())
            self._mask = None
        self.socket.close()


_HIGH_WATER_BYTES: Final = 1 << 19
"""With so many unsent bytes for one end, nothing is read from the other."""
_MAX_ANSWER_BYTES: Final = 4 * _HIGH_WATER_BYTES
"""With so many unsent bytes for a client, nothing is read from it: it does not read the relay's
answers."""
_SEND_BUFFER_BYTES: Final = 1 << 18
"""The kernel doubles it: one receive fits in one send while the previous one is still unread."""
_CALL_SLICES: Final = 4
"""More than this number of receives from the upstream, without one from the client, is a stream."""
STREAM_SECONDS: Final = 0.001
"""A slower receive has no further bytes waiting."""
_MAX_OF_MESSAGES_BYTES: Final = 1 << 16
"""A larger slice belongs to one long message, whose sender waits until the relay has read it."""
_CONNECT_RETRY_SECONDS: Final = 0.01
_CONNECT_ATTEMPTS: Final = 200


class Pair:
    """One client's connection and its upstream's; `ended` is called once, with the pair.

    `ended` also gets whether the upstream was reached. `faulted` is called with the exception of
    the relay that closed the connection.
    """

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        upstream: socket.socket,
        buffer: memoryview,
        make_relay: Callable[[Sink, Sink, AskAgain], Relay],
        ended: Callable[[Pair, bool], None],
        faulted: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._ended = ended
        self._faulted = faulted
        self._client = Port(loop, client)
        self._upstream = Port(loop, upstream)
        for port in (self._client, self._upstream):
            port.socket.setblocking(False)
            port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._relay = make_relay(self._client.write, self._upstream.write, self._ask_again)
        self._from_client = self._relay.from_client
        self._from_upstream = self._relay.from_upstream
        self._slices = 0  # received from the upstream since the client last sent
        self._streamed = 0.0  # when the last slice of a stream arrived
        self._half_closed = False
        self._closed = False

    def connect(self, path: str, attempts: int = _CONNECT_ATTEMPTS) -> None:
        """Connects to the upstream; tries again later while its queue of connections is full."""
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

    def send_goaway(self) -> None:
        """Lets the client finish its calls and connect again. Disconnects a client that can't get a
        GOAWAY at once."""
        if self._relay.send_goaway():
            self._settle(0)
        else:
            self._end(reached=True)

    def close(self) -> None:
        self._end(reached=True)

    def _ask_again(self, ask: Callable[[], None]) -> None:
        try:
            self._relay.ask_again(ask)
        except Exception as error:  # noqa: BLE001  one connection ends no other
            self._fail(error)
        self._settle(0)

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
                self._yield_to_writer()
            self._read_upstream()
        if upstream.strained or self._client.strained:
            self._settle(0)

    def _yield_to_writer(self) -> None:
        """Yields the CPU to the stream's writer: then many messages pass in one send."""
        now = perf_counter()
        if now - self._streamed < STREAM_SECONDS:
            os.sched_yield()
        self._streamed = now

    def _read_upstream(self) -> bool:
        data = self._upstream.read(self._buffer)
        if data is None:
            return False
        if len(data) > _MAX_OF_MESSAGES_BYTES:
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
        """Hooked calls are in progress: a queue may have grown."""
        if self._relay.queued_bytes:
            self._client.strained = True

    def _settle(self, client_events: int) -> None:
        """Closes or half-closes the connection when it is due; otherwise waits for events."""
        client, upstream = self._client, self._upstream
        if self._closed:
            return
        if upstream.broken and not upstream.eof:
            while len(client.backlog) < _MAX_ANSWER_BYTES and self._read_upstream():
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
        reads_client = (
            not client.eof
            and not upstream.eof
            and len(upstream.backlog) < _HIGH_WATER_BYTES
            and len(client.backlog) < _MAX_ANSWER_BYTES
            and self._relay.queued_bytes < _HIGH_WATER_BYTES
        )
        reads_upstream = not upstream.eof and len(client.backlog) < _HIGH_WATER_BYTES
        client.watch(reads_client, client.eof, self._client_ready)
        upstream.watch(reads_upstream, False, self._upstream_ready)

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


_READ_BYTES: Final = 1 << 18
_OUT_OF_DESCRIPTORS_SECONDS: Final = 0.1
_SPARE_DESCRIPTORS: Final = 32
"""Descriptors that connections don't use: hooks open files."""


class RelayServer:
    """Listens from construction on; `close` ends it and every connection.

    `listen` is a path, served under a lock (ListenError when another relay holds it), or a
    listening socket that the caller keeps and closes. While the upstream does not answer, the relay
    accepts and closes connections of clients, so that their calls end with UNAVAILABLE. Clients
    wait in the accept queue when the process has no descriptors left for them.
    """

    def __init__(
        self,
        loop: Loop,
        gate: Gate,
        listen: str | socket.socket,
        upstream: str,
        *,
        on_hook_error: OnHookError | None = None,
        on_fault: Callable[[Exception], None] | None = None,
        on_unreachable: Callable[[], None] | None = None,
        limits: RelayLimits | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.meter = Meter(observe)
        self.stats = RelayStats()
        self.unreachable = 0
        """Connections closed because the upstream could not be reached."""
        self.faults = 0
        """Connections closed because of a fault of the relay."""
        self._loop = loop
        self._upstream = upstream
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._gate = gate
        self.held: HeldCalls[HeldStream] = HeldCalls(loop.after)
        """The calls for which the gate answered Wait."""
        self.budget = MemoryBudget(limits or RelayLimits(), HeldCalls(loop.after))
        self._on_hook_error = on_hook_error or _ignore
        self._on_fault = on_fault or _ignore_fault
        self._on_unreachable = on_unreachable
        self._resume: Timer | None = None
        self._pairs: set[Pair] = set()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_pairs = max((descriptors - _SPARE_DESCRIPTORS) // 2, descriptors // 4)
        self._listener = None
        if isinstance(listen, str):
            self._listener = Listener(listen, 0o600)
            listen = self._listener.socket
        self._socket = listen
        self._socket.setblocking(False)
        self._listening = False
        self._closing = False
        self._listen_again()

    @property
    def accepting(self) -> bool:
        """Whether it accepts connections: not while it drains."""
        return self._listening

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def listen_on(self, listening: socket.socket) -> None:
        """Accepts connections from this socket from now on. The caller closes the former one."""
        self._pause()
        self._socket = listening
        self._socket.setblocking(False)
        if self._resume is None:
            self._listen_again()

    def drain(self) -> None:
        """Accepts no more connections, and asks every client to close its connection when its calls
        have ended. `connections` is 0 when all have closed theirs."""
        self._stop_accepting()
        for pair in list(self._pairs):
            pair.send_goaway()

    def close(self) -> None:
        """Closes every connection and stops listening; removes the socket if the relay created
        it."""
        self._stop_accepting()
        for pair in list(self._pairs):
            pair.close()
        if self._listener is not None:
            self._listener.close()

    def _stop_accepting(self) -> None:
        self._closing = True
        if self._resume is not None:
            self._resume.cancel()
        self._pause()

    def _new_relay(self, to_client: Sink, to_upstream: Sink, ask_again: AskAgain) -> Relay:
        return Relay(
            self._gate,
            to_client,
            to_upstream,
            self.stats,
            self._on_hook_error,
            self.budget,
            self.held,
            Timing(self.meter),
            ask_again,
        )

    def _ended(self, pair: Pair, reached: bool) -> None:
        self._pairs.discard(pair)
        if not reached:
            self.unreachable += 1
            if self._on_unreachable is not None:
                self._on_unreachable()
        if self._resume is None:
            self._listen_again()

    def _faulted(self, error: Exception) -> None:
        self.faults += 1
        self._on_fault(error)

    def _accept(self, events: int) -> None:
        client = None
        try:
            client, _ = self._socket.accept()
            upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if client is not None:
                client.close()
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            self._pause()
            self._resume = self._loop.after(_OUT_OF_DESCRIPTORS_SECONDS, self._resumed)
            return
        pair = Pair(
            self._loop,
            client,
            upstream,
            self._buffer,
            self._new_relay,
            self._ended,
            self._faulted,
        )
        self._pairs.add(pair)
        if len(self._pairs) >= self._max_pairs:
            self._pause()
        pair.connect(self._upstream)

    def _pause(self) -> None:
        if self._listening:
            self._loop.unregister(self._socket.fileno())
            self._listening = False

    def _resumed(self) -> None:
        self._resume = None
        self._listen_again()

    def _listen_again(self) -> None:
        if not (self._listening or self._closing) and len(self._pairs) < self._max_pairs:
            self._loop.register(self._socket.fileno(), READ, self._accept)
            self._listening = True


def _ignore(path: bytes, error: Exception) -> None:
    pass


def _ignore_fault(error: Exception) -> None:
    pass
