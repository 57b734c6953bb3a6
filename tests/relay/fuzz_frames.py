"""Fuzzes the relay with frames of a client and of a server; it may raise only RelayError.

`connection(seed)` repeats one connection.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator

from agent.model.verdict import Refuse, Wait
from agent.relay.gate import FORWARD, Call, Forward, GateVerdict, RelayStats, Replace
from agent.relay.relay import Relay, RelayError
from agent.relay.streams import HeldStream, MemoryBudget, RelayLimits, Stage
from agent.rpc import frames, grpc
from agent.rpc.held_calls import HeldCalls
from tests.relay.hostile import block

LIMITS = RelayLimits(
    body_bytes=3_000,
    held_bytes=6_200,
    share_bytes=800,
    waiting_bytes=5_000,
    wait_seconds=1e9,
    streams=8,
    reply_bytes=500,
    block_bytes=2_000,
)
PATHS = [b"/grow", b"/keep", b"/refuse", b"/raise", b"/hold", b"/other"]
FRAMES = 60
INVALID = 0.01
"""The share of invalid frames, of each of several kinds."""


class HookError(Exception):
    """An error that a hook raises on purpose."""


class Hooks:
    """Records hook calls and errors, to check that each call ends once."""

    methods = frozenset(PATHS[:5])

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.held: set[Call] = set()
        self.sent: set[Call] = set()
        self.errors: list[Exception] = []

    def error(self, path: bytes, error: Exception) -> None:
        """Records an error that the relay catches."""
        if not isinstance(error, HookError):
            self.errors.append(error)

    def request(self, call: Call, message: bytes) -> GateVerdict:
        assert call not in self.sent, "called again after it was forwarded"
        self.held.discard(call)
        if call.path == b"/hold" and self._rng.random() < 0.8:
            self.held.add(call)
            return Wait()
        if call.path == b"/raise":
            raise HookError
        if call.path == b"/refuse":
            return Refuse(9, "no " * self._rng.randrange(500))
        self.sent.add(call)
        return Replace(message + bytes(99)) if call.path == b"/grow" else FORWARD

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        assert call not in self.held
        if self._rng.random() < 0.3:
            return Refuse(9, reason)
        self.sent.add(call)
        return FORWARD

    def reply(self, call: Call, message: bytes | None) -> None:
        self.sent.remove(call)

    def abandoned(self, call: Call) -> None:
        self.held.remove(call)


class Peers:
    """Generates frames of a client and of a server; most are valid."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = 1
        self._sending: list[int] = []
        self._opened = [0]

    def client(self) -> bytes:
        """A frame of the client."""
        rng = self._rng
        kinds = [frames.HEADERS] * 6 + [frames.DATA] * 12 + [frames.RST_STREAM]
        kind = rng.choice([*kinds, frames.SETTINGS, frames.WINDOW_UPDATE, frames.PING])
        if kind == frames.DATA and self._sending:
            number = rng.choice(self._sending)
            ends = rng.random() < 0.6
            if ends:
                self._sending.remove(number)
            return self._framed(kind, frames.END_STREAM * ends, number, self._message())
        if kind in (frames.HEADERS, frames.DATA):
            number, self._next = self._next, self._next + 2
            self._sending.append(number)
            self._opened.append(number)
            more = [(b"x", b"v" * rng.randrange(90))] * rng.randrange(3)
            payload = block(rng.choice(PATHS), *more)
            if self._invalid():
                payload = rng.choice(_HPACK) + payload
            ends = rng.random() < 0.05
            flags = frames.END_HEADERS | frames.END_STREAM * ends
            return self._framed(frames.HEADERS, flags, number, payload)
        if kind == frames.SETTINGS:
            return self._framed(kind, frames.ACK, 0, b"")
        return self._small(kind)

    def server(self) -> bytes:
        """A frame of the server."""
        rng = self._rng
        kinds = [frames.HEADERS, frames.DATA] * 4 + [frames.WINDOW_UPDATE] * 6
        kind = rng.choice([*kinds, frames.RST_STREAM, frames.SETTINGS, frames.PING])
        number = rng.choice(self._opened)
        if kind == frames.DATA:
            payload = grpc.encode_message(rng.randbytes(rng.choice([0, 1, 499, 800])))
            return self._framed(kind, rng.choice([0, 0, 1]), number, payload)
        if kind == frames.HEADERS:
            return self._framed(kind, rng.choice([4, 4, 5]), number, b"\x88")
        if kind == frames.SETTINGS:
            initial = rng.choice([0, 100, 65_535, 1 << 20, frames.MAX_WINDOW])
            table = rng.choice([0, 4_096, 1 << 30])
            values = {frames.INITIAL_WINDOW_SIZE: initial, frames.HEADER_TABLE_SIZE: table}
            return self._framed(kind, 0, 0, frames.settings(values)[frames.HEAD_BYTES :])
        return self._small(kind)

    def _message(self) -> bytes:
        rng = self._rng
        payload = grpc.encode_message(rng.randbytes(rng.choice([0, 1, 40, 900, 2_990, 3_100])))
        if rng.random() < 0.2:
            compressed = rng.choice(_COMPRESSED)
            payload = b"\1" + len(compressed).to_bytes(4, "big") + compressed
        return payload[rng.randrange(len(payload)) :] if self._invalid() else payload

    def _small(self, kind: int) -> bytes:
        rng = self._rng
        payload = rng.choice([1, 8, 500, 60_000, frames.MAX_WINDOW]).to_bytes(4, "big")
        if kind == frames.PING:
            payload += payload
        return self._framed(kind, 0, rng.choice(self._opened), payload)

    def _framed(self, kind: int, flags: int, number: int, payload: bytes) -> bytes:
        rng = self._rng
        if self._invalid():
            kind = rng.randrange(13)
        if self._invalid():
            flags = rng.randrange(256)
        if self._invalid():
            number = rng.choice([0, 2, self._next, max(self._next - 4, 1), frames.STREAM_MASK])
        if self._invalid():
            payload = payload[: rng.randrange(len(payload) + 1)] + rng.randbytes(rng.randrange(4))
        frame = frames.frame(kind, flags, number, payload)
        if rng.random() < INVALID / 10:
            frame = frame[: rng.randrange(len(frame))] + rng.randbytes(rng.randrange(9))
        return frame

    def _invalid(self) -> bool:
        return self._rng.random() < INVALID


_COMPRESSED = [gzip.compress(bytes(size)) for size in (10, 2_900, 3_000, 4_000, 1 << 20)]
_HPACK = [b"\x20", b"\x3f\xe1\x1f", b"\x3f\xff\xff\xff\x7f", b"\xbe", b"\xff\x00", b"\x80", b"\x40"]
_HPACK += [b"\x40\x01x\x7f\xff\xff", b"\x40\x82\xff\xff\x01v", b"\x00\x85\xff\xff\xff\xff\xff\x00"]


def connection(seed: int) -> None:
    """One connection from its preface to its end."""
    rng = random.Random(seed)
    hooks, stats, peers = Hooks(rng), RelayStats(), Peers(rng)
    budget = MemoryBudget(LIMITS, HeldCalls())
    held: HeldCalls[HeldStream] = HeldCalls()
    relay = Relay(hooks, len, len, stats, hooks.error, budget, held)  # type: ignore[arg-type]
    ends = {relay.from_client: bytearray(frames.PREFACE), relay.from_upstream: bytearray()}
    ends[relay.from_upstream] += frames.settings({})
    try:
        for _ in range(FRAMES):
            ends[relay.from_client] += peers.client()
            if rng.random() < 0.6:
                ends[relay.from_upstream] += peers.server()
            for receive, waiting in ends.items():
                size = rng.choice([0, 1, 9, 13, 700, 1 << 20])
                part = bytes(waiting[:size])
                del waiting[:size]
                if part:
                    receive(memoryview(part))
            if rng.random() < 0.1:
                held.ask_again()
                budget.waiting.ask_again()
            assert len(held) == len(hooks.held)
            assert not hooks.errors, hooks.errors
            assert all(each.stage is Stage.COLLECTING for each in budget.waiting)
            assert budget.reserved_bytes <= LIMITS.held_bytes
            assert budget.waiting_bytes <= LIMITS.waiting_bytes
            if rng.random() < 0.01:
                relay.send_goaway()
    except RelayError:
        pass
    relay.close()
    assert not hooks.errors, hooks.errors
    assert not hooks.held, "calls were not abandoned"
    assert not hooks.sent, "calls have no reply"
    assert not held
    assert (budget.reserved_bytes, budget.waiting_bytes, list(budget.waiting)) == (0, 0, [])


def run(connections: int, seed: int) -> Iterator[tuple[int, Exception | None]]:
    """Yields the seed of each connection, and its error or None."""
    for each in range(seed, seed + connections):
        try:
            connection(each)
        except Exception as error:  # noqa: BLE001  a fuzzer reports each error
            yield each, error
        else:
            yield each, None
