"""How many bytes of requests one connection holds, and all of them together."""

from __future__ import annotations

from agent.runtime.gate import Stats
from agent.runtime.held import HeldStream, Limits


class Custody:
    """Of one connection; what all hold is in the `stats` that they share."""

    __slots__ = ("_limits", "_stats", "taken")

    def __init__(self, limits: Limits, stats: Stats) -> None:
        self._limits = limits
        self._stats = stats
        self.taken = 0

    def take(self, stream: HeldStream, size: int) -> None:
        """So many bytes more are held for the stream."""
        stream.taken += size
        self.taken += size
        self._stats.held_bytes += size

    def release(self, stream: HeldStream) -> None:
        """Nothing is held for the stream any more."""
        self.taken -= stream.taken
        self._stats.held_bytes -= stream.taken
        stream.taken = 0

    @property
    def room(self) -> int:
        """How many bytes more the connection may hold; below zero: it holds too many."""
        limits = self._limits
        of_all = limits.all_held_bytes - self._stats.held_bytes
        return min(limits.held_bytes - self.taken, max(of_all, limits.fair_bytes - self.taken))
