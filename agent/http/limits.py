"""Who may stay connected to a server, and whose request is next. No I/O: callers pass the time.

A port that pods reach must answer the kubelet's probes whatever the pods do. So the number of
connections is limited, in total and by peer, and so is the time of each phase of a connection. Some
connections are reserved for the node's own addresses. A full server closes the oldest idle
connection for a new one. The age counts from the begin of the phase, so that a client does not
become younger by sending a byte now and then.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

Key = TypeVar("Key")
Item = TypeVar("Item")


class ConnectionPhase(enum.IntEnum):
    """What a connection does."""

    HANDSHAKE = enum.auto()
    """The TLS handshake."""
    HEAD = enum.auto()
    """The client sends the head of a request."""
    BODY = enum.auto()
    """The client sends the body of a request."""
    HANDLING = enum.auto()
    """The request is complete and has no reply yet."""
    REPLY = enum.auto()
    """The reply is being sent."""
    IDLE = enum.auto()
    """Between two requests."""
    CLOSING = enum.auto()
    """The reply was sent, and what the client still sends is dropped."""


PAGES_EACH_SECOND: Final = 5.0
"""New connections of one address, if each of them requests a page."""
LOCAL_EACH_SECOND: Final = 50.0
"""Requests for pages of all clients on the node: a browser with the node's page makes a few."""
HANDSHAKES_EACH_SECOND: Final = 100.0
"""TLS handshakes of one address that shows no accepted certificate: a tenth of the loop's time with
RSA keys."""
UNCERTIFIED_EACH_SECOND: Final = 400.0
"""New connections of one address to a server that asks for no certificate, so that its own client
has this limit too: more than a kube-scheduler binds pods a second, with a connection for each."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of one port. Each time but `idle_seconds` is for one phase of a request."""

    connections: int
    """The largest number in total."""
    reserved: int
    """How many of them are for the node's own addresses."""
    each_peer: int
    """The largest number of another peer."""
    new_each_second: float = 0.0
    """How many connections another peer may open in a second, 0 for any number."""
    local_each_second: float = 0.0
    """Requests of all clients on the node in a second but probes, after `connections` at once; 0
    for any number."""
    handshake_seconds: float = 5.0
    head_seconds: float = 5.0
    body_seconds: float = 5.0
    reply_seconds: float = 10.0
    idle_seconds: float = 0.0
    """The time between two requests, 0 for one request on each connection."""
    head_bytes: int = 8 << 10
    body_bytes: int = 0
    bodies_bytes: int = 0
    """The bodies of all requests without a reply."""

    def seconds(self, phase: ConnectionPhase) -> float | None:
        """The longest time of a phase, None if it has no limit."""
        return {
            ConnectionPhase.HANDSHAKE: self.handshake_seconds,
            ConnectionPhase.HEAD: self.head_seconds,
            ConnectionPhase.BODY: self.body_seconds,
            ConnectionPhase.REPLY: self.reply_seconds,
            ConnectionPhase.IDLE: self.idle_seconds,
            ConnectionPhase.CLOSING: _CLOSING_SECONDS,
        }.get(phase)


_CLOSING_SECONDS: Final = 2.0


class _Entry:
    """One connection."""

    __slots__ = ("answered", "bytes", "local", "peer", "phase", "since")

    def __init__(self, peer: str, local: bool, now: float) -> None:
        self.peer = peer
        self.local = local
        self.phase = ConnectionPhase.HANDSHAKE
        self.since = now
        """The begin of its phase."""
        self.answered = False
        """It had a reply."""
        self.bytes = 0
        """The size of the body of its request."""

    @property
    def age_order(self) -> tuple[int, float]:
        """The smallest is closed first: clients that never had a reply, then those that had one,
        then those to which a reply is being sent; among them the oldest phase."""
        return 2 if self.phase is ConnectionPhase.REPLY else int(self.answered), self.since


class ConnectionTable(Generic[Key]):
    """The open connections. To make room for a new one, any of them may be closed except one whose
    request is being handled."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._entries: dict[Key, _Entry] = {}
        self._of_peer: Counter[str] = Counter()
        self._remote = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def admit(self, key: Key, peer: str, local: bool, now: float) -> Key | None:
        """Adds a connection. Returns the connection that the caller has to close for it, which is
        already removed; None for none. Raises FullError if none can be closed."""
        limits, victim = self._limits, None
        if not local and self._of_peer[peer] >= limits.each_peer:
            victim = self._remove_oldest(lambda each: each.peer == peer and not each.local)
        elif not local and self._remote >= limits.connections - limits.reserved:
            victim = self._remove_oldest(lambda each: not each.local)
        elif len(self._entries) >= limits.connections:
            victim = self._remove_oldest(lambda each: True)
        self._entries[key] = _Entry(peer, local, now)
        if not local:
            self._of_peer[peer] += 1
            self._remote += 1
        return victim

    def crowded(self) -> bool:
        """Whether peers other than the node have as many connections as they may have, and a
        request is being handled on each."""
        remote = [each for each in self._entries.values() if not each.local]
        full = len(remote) >= self._limits.connections - self._limits.reserved
        return full and all(each.phase is ConnectionPhase.HANDLING for each in remote)

    def shed(self) -> Key | None:
        """Removes and returns the connection to close in a process without free descriptors: the
        oldest idle one, if possible not of the node; None if there is none."""
        for may_close in (lambda each: not each.local, lambda each: each.local):
            with contextlib.suppress(FullError):
                return self._remove_oldest(may_close)
        return None

    def enter(self, key: Key, phase: ConnectionPhase, now: float) -> None:
        """The connection begins a phase."""
        entry = self._entries[key]
        if entry.phase is ConnectionPhase.REPLY:
            entry.answered = True
        entry.phase, entry.since = phase, now

    def hold(self, key: Key, held_bytes: int) -> Key | None:
        """Notes the size of the body of the connection's request. If all bodies are too large
        together, removes and returns the connection to close: the oldest one that still sends a
        body, which may be this one. None for none."""
        entry = self._entries[key]
        self._bytes += held_bytes - entry.bytes
        entry.bytes = held_bytes
        if self._bytes <= self._limits.bodies_bytes or not held_bytes:
            return None
        try:
            return self._remove_oldest(
                lambda each: each.phase is ConnectionPhase.BODY and each.bytes > 0
            )
        except FullError:
            self.remove(key)
            return key

    def next_end(self) -> float | None:
        """The time at which the first phase of a connection has lasted too long, None without
        one."""
        ends = (
            entry.since + seconds
            for entry in self._entries.values()
            if (seconds := self._limits.seconds(entry.phase)) is not None
        )
        return min(ends, default=None)

    def late(self, now: float) -> list[tuple[Key, ConnectionPhase]]:
        """The connections whose phase has lasted too long; they are not removed."""
        found = []
        for key, entry in self._entries.items():
            seconds = self._limits.seconds(entry.phase)
            if seconds is not None and now - entry.since >= seconds:
                found.append((key, entry.phase))
        return found

    def remove(self, key: Key) -> None:
        """The connection has ended. Does nothing if it is already removed."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._bytes -= entry.bytes
        if not entry.local:
            self._remote -= 1
            self._of_peer[entry.peer] -= 1
            if not self._of_peer[entry.peer]:
                del self._of_peer[entry.peer]

    def _remove_oldest(self, may_close: Callable[[_Entry], bool]) -> Key:
        """Closes the connection that waits longest.

        Raises FullError if none may be closed."""
        idle = (
            (entry.age_order, key)
            for key, entry in self._entries.items()
            if entry.phase is not ConnectionPhase.HANDLING and may_close(entry)
        )
        oldest = min(idle, key=lambda entry: entry[0], default=None)
        if oldest is None:
            raise FullError("all connections are busy")
        self.remove(oldest[1])
        return oldest[1]


class NewConnections:
    """Limits how often each peer opens connections: `each_peer` at once, then `new_each_second` (a
    token bucket). A handshake or a page takes the loop a thousand times as long as to close a new
    connection."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, peer: str, now: float) -> bool:
        """Whether the peer may open a connection now."""
        if not self._limits.new_each_second:
            return True
        left = self._tokens_of(peer, now)
        self._put(peer, left - 1 if left >= 1 else left, now)
        return left >= 1

    def certified(self, peer: str, now: float) -> None:
        """Gives the peer back the connection that it opened: it has shown an accepted
        certificate."""
        if self._limits.new_each_second:
            self._put(peer, self._tokens_of(peer, now) + 1, now)

    def _tokens_of(self, peer: str, now: float) -> float:
        most: float = self._limits.each_peer
        left, since = self._tokens.get(peer, (most, now))
        return min(most, left + (now - since) * self._limits.new_each_second)

    def _put(self, peer: str, left: float, now: float) -> None:
        self._tokens[peer] = left, now
        self._tokens.move_to_end(peer)
        if len(self._tokens) > _MAX_PEERS:
            self._tokens.popitem(last=False)


_MAX_PEERS: Final = 4096
"""The peer that connected longest ago is removed first."""


class FullError(RuntimeError):
    """No connection can be closed for another one."""


class WaitingRequests(Generic[Item]):
    """A fair queue of requests for a number of threads, of which some are reserved for requests
    from the node, which come first. The other peers take turns, so that none of them waits for all
    requests of another."""

    def __init__(self, threads: int, reserved: int) -> None:
        self._max_remote = threads - reserved
        self._local: deque[Item] = deque()
        self._remote: OrderedDict[str, deque[Item]] = OrderedDict()
        self._running = 0

    def put(self, peer: str, local: bool, item: Item) -> None:
        if local:
            self._local.append(item)
        else:
            self._remote.setdefault(peer, deque()).append(item)

    def take(self) -> tuple[Item, bool] | None:
        """The next request, and whether it is the node's own; None if none may run now."""
        if self._local:
            return self._local.popleft(), True
        if not self._remote or self._running >= self._max_remote:
            return None
        peer, waiting = self._remote.popitem(last=False)
        item = waiting.popleft()
        if waiting:
            self._remote[peer] = waiting
        self._running += 1
        return item, False

    def end(self, local: bool) -> None:
        """A request that was taken has its reply."""
        self._running -= not local
