"""The relay of one client connection: frames pass unchanged, and hooked requests go to the gate.

No I/O: the owner passes received bytes to `from_client` and `from_upstream`, and two sinks take the
bytes to send. One walk over the frames serves two cases:

- While no stream is taken over and no credit is owed, all received bytes leave as one slice of the
receive buffer; the walk reads frame heads and does not wait for DATA.

- HEADERS of a hooked method pass at once (the connection's compression state does not change); its
  DATA is held until the gate has decided. Then the slice is cut where the relay inserts frames or
  removes frames of the client. Other streams keep passing.

See `forwarding` for the walks, `calls` for hooked calls, `flow_control` for windows and order.

When bytes are not HTTP/2, or header blocks can't be decoded or exceed the limit: a connection
without held bytes becomes opaque (every further byte passes verbatim, unhooked, and the endpoints
decide, as without a relay), otherwise RelayError is raised and the connection must be closed. In
addition to its part of the budget, a connection keeps in memory one unfinished frame that is needed
as a whole (header blocks up to their limit; held DATA up to the upstream's frame size, 16 KiB in
practice), and the bytes that wait for the upstream's credit, at most those that were held before.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from agent.relay.calls import AskAgain, HookedCalls
from agent.relay.flow_control import Credit, Lane, Sink
from agent.relay.forwarding import Downward, Upward
from agent.relay.gate import Gate, OnHookError, RelayStats
from agent.relay.meter import Meter, Timing
from agent.relay.streams import HeldStream, MemoryBudget
from agent.rpc import frames
from agent.rpc.held_calls import HeldCalls


class RelayError(Exception):
    """The connection can't be tracked and can't become opaque: both ends must be closed."""


class Relay:
    """The relay of one connection. The sinks must not keep the buffers that they get. `held` has
    the calls of all connections for which the gate answered Wait; `ask_again` asks for those of
    this one, by default the method of this name. `close` is called once, at the end of the
    connection."""

    def __init__(
        self,
        gate: Gate,
        to_client: Sink,
        to_upstream: Sink,
        stats: RelayStats,
        on_hook_error: OnHookError,
        budget: MemoryBudget,
        held: HeldCalls[HeldStream],
        timing: Timing | None = None,
        ask_again: AskAgain | None = None,
    ) -> None:
        self._timing = timing = timing or Timing(Meter())
        self._to_client, self._to_upstream = to_client, to_upstream
        self._is_quiet_up = self._is_quiet_down = True
        self._stats = stats
        self._up, self._down = Lane(to_upstream), Lane(to_client)
        self._credit = Credit()
        self._calls = HookedCalls(
            gate,
            stats,
            budget,
            self._credit,
            self._up,
            self._down,
            on_hook_error,
            timing,
            held,
            ask_again or self.ask_again,
        )
        self._uplink = self._calls.uplink
        self._streams = self._calls.streams
        self._upward = Upward(
            self._calls,
            self._up,
            self._credit,
            gate.methods,
            budget.limits.block_bytes,
            self._lose_track,
        )
        self._downward = Downward(
            self._calls, self._down, self._credit, self._upward.paths, self._lose_track
        )

    @property
    def queued_bytes(self) -> int:
        """Bytes of the client that wait for the upstream's credit. The owner reads no more from the
        client while they are many."""
        return self._uplink.queued_bytes

    def from_client(self, data: memoryview) -> bool:
        """Takes received bytes. Returns whether hooked calls are in progress, or frames of the
        relay wait. Raises RelayError."""
        timing = self._timing
        timing.arrived = perf_counter()
        if self._upward.feed(data):
            if self._is_quiet_up:
                self._to_upstream(data)
                if timing.noted:
                    timing.note()
                return False
            self._up.chunks.append(data)
        return self._flush()

    def from_upstream(self, data: memoryview) -> bool:
        """Takes received bytes. Returns whether hooked calls are in progress, or frames of the
        relay wait. Raises RelayError."""
        timing = self._timing
        timing.arrived = perf_counter()
        if self._is_quiet_down:
            self._to_client(data)
            self._downward.feed(data, was_sent=True)
            if timing.noted:
                timing.note()
            return False
        self._downward.feed(data, was_sent=False)
        return self._flush()

    def ask_again(self, ask: Callable[[], None]) -> None:
        """Asks again for the answer of a held call, and sends what the answer adds. Raises
        RelayError."""
        ask()
        self._flush()

    def send_goaway(self) -> bool:
        """Asks the client to open no more streams on this connection: calls in progress continue,
        and the client closes the connection after them. Returns False if that is impossible: the
        upstream has not sent its SETTINGS yet, or frames are not tracked."""
        if not self._downward.begun or self._down.opaque:
            return False
        self._down.insert(frames.goaway(frames.STREAM_MASK, frames.NO_ERROR))
        self._flush()
        return True

    def close(self) -> None:
        """Reports the end of every call in progress to the gate."""
        self._timing.close()
        self._calls.close()

    def _lose_track(self, error: Exception) -> None:
        self._stats.malformed += 1
        waits = self._uplink.queue or self._up.waiting or self._down.waiting
        if waits or self._calls.holds_bytes() or self._credit.excess:
            raise RelayError(str(error)) from None
        self._up.opaque = self._down.opaque = True
        self.close()

    def _flush(self) -> bool:
        busy = bool(self._streams or self._uplink.queue or self._credit.excess)
        if busy:
            self._uplink.pump()
            if self._credit.excess < 0:
                self._down.insert(frames.window_update(0, self._credit.settle()))
        if self._up.chunks:
            self._up.flush()
        if self._down.chunks:
            self._down.flush()
        if self._timing.noted:
            self._timing.note()
        self._is_quiet_up = not (self._streams or self._uplink.queue or self._up.waiting)
        self._is_quiet_down = self._is_quiet_up and not (
            self._credit.excess or self._down.waiting or self._downward.holds_back
        )
        return busy
