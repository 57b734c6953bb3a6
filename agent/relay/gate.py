"""The interface between the relay and the hooks: the relay asks a `Gate` about each hooked call.

`GuardedGate` is the relay's side of it: an exception of the gate is counted, reported and turned
into a verdict, so that a fault of a hook costs one call only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from agent.model.verdict import Refuse, Wait
from agent.rpc import grpc


class Forward(NamedTuple):
    """Let the message pass as it is."""


class Replace(NamedTuple):
    """Send this message in its place."""

    message: bytes


GateVerdict = Forward | Replace | Wait | Refuse
FORWARD = Forward()


class Call:
    """One hooked call, from its first question to its reply.

    `path` is the gRPC method (`b"/runtime.v1.RuntimeService/CreateContainer"`), `started` the
    `time.monotonic()` of the first question, `state` the gate's own, None at first.
    """

    __slots__ = ("path", "started", "state")

    def __init__(self, path: bytes, started: float) -> None:
        self.path = path
        self.started = started
        self.state: object = None


class Gate(Protocol):
    """The hooks of one relay. Messages are protobuf bytes, never compressed. An exception of a
    method is counted and reported, and `unhooked` decides about the call. No method may block:
    every connection of the relay would wait."""

    methods: frozenset[bytes]

    def request(self, call: Call, message: bytes) -> GateVerdict:
        """Asked when the whole message has arrived, and again while the answer is Wait."""
        ...

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        """Asked about a call that can't be hooked: `request` raised (`hook_error`), or the relay
        could not hand the message over: `oversize`, `compressed` (and not to be unpacked),
        `irregular` (no or several messages)."""
        ...

    def reply(self, call: Call, message: bytes | None) -> None:
        """Called once for each call that was forwarded or replaced, before the caller sees the end.

        The message is the reply's first when the stream ended in order (a server sends one only
        with status OK); None when it has none, is larger than the tap's limit, the call was
        cancelled or the connection broke.
        """
        ...

    def gone(self, call: Call) -> None:
        """The caller gave up, or the connection broke, while the call was held."""
        ...


class RelayStats:
    """Counters of all relays that share it; `held_now` is a gauge."""

    __slots__ = (
        "held_now",
        "hook_errors",
        "hooked",
        "malformed",
        "no_room",
        "passed_compressed",
        "passed_irregular",
        "passed_oversize",
        "refused",
        "replaced",
        "replies_unread",
    )

    def __init__(self) -> None:
        self.hooked = 0
        """Calls that the gate was asked about."""
        self.replaced = 0
        self.refused = 0
        self.held_now = 0
        self.hook_errors = 0
        self.no_room = 0
        """Refused: other requests held all memory for longer than a request waits for it."""
        self.passed_oversize = 0
        """Not hooked: the message, or the number of calls under way, is beyond its limit."""
        self.passed_compressed = 0
        """Not hooked: compressed, and not to be unpacked within the limit."""
        self.passed_irregular = 0
        """Not hooked: none or several messages, a broken prefix, or trailers behind it."""
        self.replies_unread = 0
        """Replies larger than the tap's limit, or not to be unpacked."""
        self.malformed = 0
        """Connections whose bytes could not be followed."""


OnHookError = Callable[[bytes, Exception], None]
"""Takes the method's path and the exception of its hook."""


class GuardedGate:
    """A Refuse has its header block, ready to send; other verdicts have b""."""

    def __init__(self, gate: Gate, stats: RelayStats, on_hook_error: OnHookError) -> None:
        self._gate = gate
        self._stats = stats
        self._on_hook_error = on_hook_error

    def request(self, call: Call, message: bytes) -> tuple[GateVerdict, bytes]:
        """The verdict on a whole message."""
        try:
            return _encoded(self._gate.request(call, message))
        except Exception as error:  # noqa: BLE001  the one guard around a hook
            self._fault(call.path, error)
            return self.unhooked(call, "hook_error", repr(error))

    def unhooked(self, call: Call, reason: str, detail: str) -> tuple[GateVerdict, bytes]:
        """Forward or Refuse for a call that the gate can't be asked about."""
        said: tuple[GateVerdict, bytes] = FORWARD, b""

        def ask() -> None:
            nonlocal said
            said = _encoded(self._gate.unhooked(call, reason, detail))

        self._guard(call.path, ask)
        return said

    def not_followed(self, path: bytes, reason: str, detail: str) -> bytes | None:
        """For a call that can't be tracked: None if it continues, otherwise the header block of the
        error."""
        call = Call(path, time.monotonic())
        verdict, encoded = self.unhooked(call, reason, detail)
        if isinstance(verdict, Refuse):
            return encoded
        self.reply(call, None)
        return None

    def reply(self, call: Call, message: bytes | None) -> None:
        self._guard(call.path, lambda: self._gate.reply(call, message))

    def gone(self, call: Call) -> None:
        self._guard(call.path, lambda: self._gate.gone(call))

    def _guard(self, path: bytes, ask: Callable[[], None]) -> None:
        try:
            ask()
        except Exception as error:  # noqa: BLE001  the one guard around a hook
            self._fault(path, error)

    def _fault(self, path: bytes, error: Exception) -> None:
        self._stats.hook_errors += 1
        self._on_hook_error(path, error)


def _encoded(verdict: GateVerdict) -> tuple[GateVerdict, bytes]:
    if isinstance(verdict, Refuse):
        return verdict, grpc.trailers_only(verdict.code, verdict.message)
    if isinstance(verdict, Forward | Wait):
        return verdict, b""
    if isinstance(verdict, Replace) and isinstance(verdict.message, bytes):
        return verdict, b""
    raise TypeError(f"no verdict: {verdict!r}")
