"""Who may stay connected to a server, and whose request is next. No I/O: the clock's time is given.

A port that pods reach must answer the kubelet's probes whatever the pods do. So connections are
limited in number, in all and by peer, and in time, by phase; a part of them is reserved for the
node's own addresses; and a full server closes the oldest idle connection for a new one. A client
that sends a byte now and then does not become younger: the age counts from the begin of the phase.
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
    """What a connection does. HELLO: its TLS handshake. HEAD, BODY: it sends a request. HANDLING:
    the request is complete and has no reply yet. IDLE: between two requests. CLOSING: the reply is
    sent, and what the client still sends is dropped."""

    HELLO = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    HANDLING = enum.auto()
    REPLY = enum.auto()
    IDLE = enum.auto()
    CLOSING = enum.auto()


PAGES_EACH_SECOND: Final = 5.0
"""New connections of one address, of which each asks for a page."""
HANDSHAKES_EACH_SECOND: Final = 100.0
"""TLS handshakes of one address that shows no accepted certificate: a tenth of the loop's time with
RSA keys."""
UNCERTIFIED_EACH_SECOND: Final = 400.0
"""New connections of one address to a server that asks for no certificate, so that its own client
has this limit too: more than a kube-scheduler binds pods a second, with a connection for each."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """`connections`: in all, of which `reserved` are for the node's own addresses; `each_peer`: of
    one other address, and `new_each_second`: how many of these it may open, 0 for any number.
    `idle_seconds`: between two requests, 0 for one request a connection. The
    other times are of one phase each. `bodies_bytes`: of all requests together that have no reply
    yet."""

    connections: int
    reserved: int
    each_peer: int
    new_each_second: float = 0.0
    hello_seconds: float = 5.0
    head_seconds: float = 5.0
    body_seconds: float = 5.0
    reply_seconds: float = 10.0
    idle_seconds: float = 0.0
    head_bytes: int = 8 << 10
    body_bytes: int = 0
    bodies_bytes: int = 0

    def seconds(self, phase: ConnectionPhase) -> float | None:
        """None for a phase without an end of its own."""
        return {
            ConnectionPhase.HELLO: self.hello_seconds,
            ConnectionPhase.HEAD: self.head_seconds,
            ConnectionPhase.BODY: self.body_seconds,
            ConnectionPhase.REPLY: self.reply_seconds,
            ConnectionPhase.IDLE: self.idle_seconds,
            ConnectionPhase.CLOSING: _CLOSING_SECONDS,
        }.get(phase)


_CLOSING_SECONDS: Final = 2.0


class _Place:
    __slots__ = ("answered", "bytes", "local", "peer", "phase", "since")

    def __init__(self, peer: str, local: bool, now: float) -> None:
        self.peer = peer
        self.local = local
        self.phase = ConnectionPhase.HELLO
        self.since = now
        self.answered = False
        self.bytes = 0

    @property
    def age_order(self) -> tuple[int, float]:
        """A client that never had an answer is closed before one that had, and both before one
        that reads its answer."""
        return 2 if self.phase is ConnectionPhase.REPLY else int(self.answered), self.since


class Places(Generic[Key]):
    """The open connections. Only a connection whose request is being handled is never closed for
    another one."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._places: dict[Key, _Place] = {}
        self._of_peer: Counter[str] = Counter()
        self._remote = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._places)

    def admit(self, key: Key, peer: str, local: bool, now: float) -> Key | None:
        """Gives the new connection a place. Returns the one to close for it, which has lost its
        place already; None for none. Raises FullError if no place can be made."""
        limits, victim = self._limits, None
        if not local and self._of_peer[peer] >= limits.each_peer:
            victim = self._leave(lambda each: each.peer == peer and not each.local)
        elif not local and self._remote >= limits.connections - limits.reserved:
            victim = self._leave(lambda each: not each.local)
        elif len(self._places) >= limits.connections:
            victim = self._leave(lambda each: True)
        self._places[key] = _Place(peer, local, now)
        if not local:
            self._of_peer[peer] += 1
            self._remote += 1
        return victim

    def crowded(self) -> bool:
        """Whether other addresses have all their places, and a request in each of them."""
        remote = [each for each in self._places.values() if not each.local]
        full = len(remote) >= self._limits.connections - self._limits.reserved
        return full and all(each.phase is ConnectionPhase.HANDLING for each in remote)

    def shed(self) -> Key | None:
        """Takes the place of the oldest idle connection, of another address first; None if there is
        none. For a process without free descriptors."""
        for of_some in (lambda each: not each.local, lambda each: each.local):
            with contextlib.suppress(FullError):
                return self._leave(of_some)
        return None

    def enter(self, key: Key, phase: ConnectionPhase, now: float) -> None:
        """The connection begins a phase."""
        place = self._places[key]
        if place.phase is ConnectionPhase.REPLY:
            place.answered = True
        place.phase, place.since = phase, now

    def hold(self, key: Key, held_bytes: int) -> Key | None:
        """The request of the connection has so many bytes now. Returns the connection to close for
        it, which has lost its place: the oldest one that still sends a body, maybe this one; None
        for none."""
        place = self._places[key]
        self._bytes += held_bytes - place.bytes
        place.bytes = held_bytes
        if self._bytes <= self._limits.bodies_bytes or not held_bytes:
            return None
        try:
            return self._leave(lambda each: each.phase is ConnectionPhase.BODY and each.bytes > 0)
        except FullError:
            self.remove(key)
            return key

    def next_end(self) -> float | None:
        """When the time of the first connection is over; None if none has an end."""
        ends = (
            place.since + seconds
            for place in self._places.values()
            if (seconds := self._limits.seconds(place.phase)) is not None
        )
        return min(ends, default=None)

    def late(self, now: float) -> list[tuple[Key, ConnectionPhase]]:
        """The connections whose phase has lasted too long; they keep their places."""
        found = []
        for key, place in self._places.items():
            seconds = self._limits.seconds(place.phase)
            if seconds is not None and now - place.since >= seconds:
                found.append((key, place.phase))
        return found

    def remove(self, key: Key) -> None:
        """The connection has ended; does nothing if it has lost its place before."""
        place = self._places.pop(key, None)
        if place is None:
            return
        self._bytes -= place.bytes
        if not place.local:
            self._remote -= 1
            self._of_peer[place.peer] -= 1
            if not self._of_peer[place.peer]:
                del self._of_peer[place.peer]

    def _leave(self, may: Callable[[_Place], bool]) -> Key:
        idle = (
            (place.age_order, key)
            for key, place in self._places.items()
            if place.phase is not ConnectionPhase.HANDLING and may(place)
        )
        oldest = min(idle, key=lambda each: each[0], default=None)
        if oldest is None:
            raise FullError("all connections are busy")
        self.remove(oldest[1])
        return oldest[1]


class NewConnections:
    """How often each peer may open a connection: `each_peer` at once, and then `new_each_second`. A
    connection costs a handshake or a page, which take the loop a thousand times as long as to close
    it at once."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, peer: str, now: float) -> bool:
        """Whether the peer may open one more now."""
        if not self._limits.new_each_second:
            return True
        left = self._of(peer, now)
        self._put(peer, left - 1 if left >= 1 else left, now)
        return left >= 1

    def certified(self, peer: str, now: float) -> None:
        """The peer's connection does not count: it has shown an accepted certificate."""
        if self._limits.new_each_second:
            self._put(peer, self._of(peer, now) + 1, now)

    def _of(self, peer: str, now: float) -> float:
        most: float = self._limits.each_peer
        left, since = self._left.get(peer, (most, now))
        return min(most, left + (now - since) * self._limits.new_each_second)

    def _put(self, peer: str, left: float, now: float) -> None:
        self._left[peer] = left, now
        self._left.move_to_end(peer)
        if len(self._left) > _MAX_PEERS:
            self._left.popitem(last=False)


_MAX_PEERS: Final = 4096
"""The one that connected longest ago is forgotten first."""


class FullError(RuntimeError):
    """No connection can be closed for another one."""


class Turns(Generic[Item]):
    """Requests that wait for one of `threads`. The node's own come first, and `reserved` threads
    are for them; the other peers take turns, so that none waits for all requests of another."""

    def __init__(self, threads: int, reserved: int) -> None:
        self._most_remote = threads - reserved
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
        if not self._remote or self._running >= self._most_remote:
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
