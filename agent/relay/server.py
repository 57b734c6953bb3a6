"""The relay on sockets: one upstream connection for each client connection, in one epoll loop.

A process creates a Loop and a RelayServer with its Gate, and runs the loop. `stats`, `budget`,
`connections` and `unreachable` are for metrics. Everything happens in the loop's thread.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Callable
from typing import Final

from agent.host.listener import Listener
from agent.host.loop import READ, Loop, Timer
from agent.relay.calls import AskAgain
from agent.relay.flow_control import Sink
from agent.relay.gate import Gate, OnHookError, RelayStats
from agent.relay.meter import Meter, Observe, Timing
from agent.relay.pair import Pair
from agent.relay.relay import Relay
from agent.relay.streams import HeldStream, MemoryBudget, RelayLimits
from agent.rpc.held_calls import HeldCalls

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
