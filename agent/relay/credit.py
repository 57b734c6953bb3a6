"""The flow-control account of one client connection at the relay (RFC 9113, sections 5.2 and 6.9).

The client's picture of the connection window is the upstream's real window, less what the relay
has taken over from the client and not sent yet, plus `excess`: bytes that the client may send
though the upstream has given no credit for them. Taking a frame from the client lowers it,
committing bytes to the upstream raises it. Above zero, credit that the upstream gives is kept
until the debt is paid; below zero, the client is given the difference at once.
"""

from __future__ import annotations

from collections import deque

from agent.rpc import frames


class Credit:
    """`window`: what the upstream accepts now; `initial`: what it gives a new stream;
    `frame_bytes`: the largest payload of a frame that it has ever accepted."""

    __slots__ = ("excess", "frame_bytes", "initial", "offers", "window")

    def __init__(self) -> None:
        self.window = frames.DEFAULT_WINDOW
        self.excess = 0
        self.initial = frames.DEFAULT_WINDOW
        self.frame_bytes = frames.DEFAULT_MAX_FRAME
        self.offers: deque[int | None] = deque()
        """The upstream's SETTINGS that the client has not acknowledged: their initial window.

        One applies when the client's ACK goes up, not when the SETTINGS come down: the upstream
        counts by the old value until it sees the ACK.
        """

    def granted(self, credit: int) -> int:
        """The upstream gave credit; returns how much of it the client is to have."""
        self.window += credit
        kept = min(credit, self.excess)
        self.excess -= kept
        return credit - kept

    def acknowledged(self) -> int:
        """The client's ACK goes up; returns by how much every stream's window changes."""
        offer = self.offers.popleft() if self.offers else None
        if offer is None:
            return 0
        change = offer - self.initial
        self.initial = offer
        return change

    def settle(self) -> int:
        """The credit that the client is to have now that `excess` is below zero."""
        due, self.excess = -self.excess, 0
        return due
