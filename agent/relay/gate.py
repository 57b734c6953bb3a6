"""The interface between the relay and the hooks: the relay calls a `Gate` for each hooked call.

`GuardedGate` is what the relay calls: it counts and reports an exception of the gate and turns it
into a verdict, so that a fault of a hook affects one call only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from agent.model.verdict import FailureReason, Refuse, Wait, undecided
from agent.rpc import grpc


class Forward(NamedTuple):
    """Forward the message unchanged."""


class Replace(NamedTuple):
    """Send this message instead."""

    message: bytes


GateVerdict = Forward | Replace | Wait | Refuse
FORWARD = Forward()


class Call:
    """One hooked call, from the first call of the gate to the reply.

    `path` is the gRPC method (`b"/runtime.v1.RuntimeService/CreateContainer"`), `started` the
    `time.monotonic()` of the first call of the gate. `state` belongs to the gate; it is None at
    first.
    """

    __slots__ = ("path", "started", "state")

    def __init__(self, path: bytes, started: float) -> None:
        self.path = path
        self.started = started
        self.state: object = None


class Gate(Protocol):
    """The hooks of one relay. Messages are protobuf bytes, never compressed. An exception of a
    method is counted and reported. After one of `request`, `unhooked` decides about the call; after
    one of `unhooked`, the call is refused. No method may block: every connection of the relay would
    wait."""

    methods: frozenset[bytes]

    def request(self, call: Call, message: bytes) -> GateVerdict:
        """Called when the whole message has arrived, and again while the answer is Wait."""
        ...

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        """The answer to a call that can't be hooked. `reason`: INTERNAL_ERROR if `request` raised,
        TOO_LARGE, COMPRESSED or MALFORMED (no message, or several) if the relay could not read the
        message (FailureReason)."""
        ...

    def reply(self, call: Call, message: bytes | None) -> None:
        """Called once for each call that was forwarded or replaced, before the caller sees the end.

        `message` is the reply's first message when the stream ended normally (a server sends one
        only with status OK). It is None when the reply has none or exceeds the tap's limit, the
        call was cancelled or the connection broke.
        """
        ...

    def abandoned(self, call: Call) -> None:
        """The caller cancelled the held call, or its connection broke."""
        ...


class RelayStats:
    """Counters of all relays that share this object."""

    __slots__ = (
        "hook_errors",
        "hooked",
        "malformed",
        "no_room",
        "refused",
        "replaced",
        "replies_unread",
        "unread_compressed",
        "unread_malformed",
        "unread_too_large",
    )

    def __init__(self) -> None:
        self.hooked = 0
        """Calls whose message the gate received."""
        self.replaced = 0
        self.refused = 0
        self.hook_errors = 0
        self.no_room = 0
        """Calls that were refused because other requests held all memory for longer than a request
        waits."""
        self.unread_too_large = 0
        """Calls that were not hooked: the message, or the number of calls in progress, exceeds its
        limit."""
        self.unread_compressed = 0
        """Calls that were not hooked: the message can't be decompressed within the limit."""
        self.unread_malformed = 0
        """Calls that were not hooked: no message or several, an invalid prefix, or trailers after
        the message."""
        self.replies_unread = 0
        """Replies that exceed the tap's limit, or can't be decompressed."""
        self.malformed = 0
        """Connections whose bytes could not be decoded."""


OnHookError = Callable[[bytes, Exception], None]
"""Takes the method's path and the exception of its hook."""


class GuardedGate:
    """Returns each verdict with its header block: ready to send for a Refuse, b"" for other
    verdicts."""

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
            return self.unhooked(call, FailureReason.INTERNAL_ERROR, repr(error))

    def unhooked(self, call: Call, reason: str, detail: str) -> tuple[GateVerdict, bytes]:
        """Forward or Refuse for a call that can't be hooked. It is refused if the gate's `unhooked`
        raises an exception."""
        try:
            return _encoded(self._gate.unhooked(call, reason, detail))
        except Exception as error:  # noqa: BLE001  the one guard around a hook
            self._fault(call.path, error)
            return _encoded(undecided(error))

    def untracked(self, path: bytes, reason: str, detail: str) -> bytes | None:
        """The answer to a call that the relay can't track: None if it continues, otherwise the
        header block of the error."""
        call = Call(path, time.monotonic())
        verdict, encoded = self.unhooked(call, reason, detail)
        if isinstance(verdict, Refuse):
            return encoded
        self.reply(call, None)
        return None

    def reply(self, call: Call, message: bytes | None) -> None:
        self._guard(call.path, lambda: self._gate.reply(call, message))

    def abandoned(self, call: Call) -> None:
        self._guard(call.path, lambda: self._gate.abandoned(call))

    def _guard(self, path: bytes, call_gate: Callable[[], None]) -> None:
        try:
            call_gate()
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
    raise TypeError(f"not a verdict: {verdict!r}")
