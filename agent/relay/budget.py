"""The memory of a relay for requests: one budget for all of its connections.

A request reserves its whole size when its length is known, before its bytes arrive. So half
received requests never wait for each other: each one that has begun to fill can be completed. A
compressed request reserves its unpacked size when it is complete. A request without room waits, in
the order of arrival, and its client gets no credit for it (RFC 9113, section 5.2): it can't send
more than its first window.
"""

from __future__ import annotations

import time
from typing import Final

from agent.relay.held import HeldStream, RelayLimits

_SMALL_PART: Final = 4
"""Of a connection's share: a request of more than the fourth part is not small."""


class MemoryBudget:
    """`reserved_bytes` of all requests that were let in; `waiting_bytes` of those that were not."""

    __slots__ = ("limits", "reserved_bytes", "waiting", "waiting_bytes")

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.reserved_bytes = 0
        self.waiting_bytes = 0
        self.waiting: dict[HeldStream, float] = {}
        """Since when, first the one that came first."""


class ConnectionBudget:
    """The budget as one connection uses it. Beside it each connection has a share of its own for
    small requests, so that large ones delay no other call. `share_bytes`: reserved of that."""

    __slots__ = ("_budget", "_limits", "share_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._limits = budget.limits
        self.share_bytes = 0

    def reserve(self, stream: HeldStream, size: int) -> bool:
        """Raises the stream's reservation to `size`. False when there is no room for it now. A
        stream with room for it does not queue."""
        budget, limits = self._budget, self._limits
        more = size - stream.reserved_bytes
        if not self._has_turn(stream) or budget.reserved_bytes + more > limits.held_bytes:
            share = self.share_bytes + more
            if size > limits.share_bytes // _SMALL_PART or share > limits.share_bytes:
                return False
            self.share_bytes = share
            stream.share_bytes += more
        else:
            budget.reserved_bytes += more
        stream.reserved_bytes = size
        return True

    def _has_turn(self, stream: HeldStream) -> bool:
        waiting = self._budget.waiting
        return not waiting or stream.reserved_bytes > 0 or next(iter(waiting)) is stream

    def wait(self, stream: HeldStream) -> bool:
        """Queues a request without room, and counts the bytes of its client. False when it must not
        wait any longer: the waiting clients have sent too much, or its time is over."""
        budget, limits = self._budget, self._limits
        since = budget.waiting.setdefault(stream, time.monotonic())
        here = max(len(stream.body) - stream.reserved_bytes, 0)
        budget.waiting_bytes += here - stream.waiting_bytes
        stream.waiting_bytes = here
        late = time.monotonic() - since > limits.wait_seconds
        return budget.waiting_bytes <= limits.waiting_bytes and not late

    def waits(self, stream: HeldStream) -> bool:
        return stream in self._budget.waiting

    def stop_waiting(self, stream: HeldStream) -> None:
        """The request has its room, or needs none any more."""
        if self._budget.waiting.pop(stream, None) is not None:
            self._budget.waiting_bytes -= stream.waiting_bytes
            stream.waiting_bytes = 0

    def release(self, stream: HeldStream) -> None:
        """The relay holds nothing for the stream any more."""
        if stream.reserved_bytes:
            self.share_bytes -= stream.share_bytes
            self._budget.reserved_bytes -= stream.reserved_bytes - stream.share_bytes
            stream.reserved_bytes = stream.share_bytes = 0
        self.stop_waiting(stream)
