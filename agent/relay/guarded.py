"""A guard around a gate: it counts and logs the gate's exceptions and turns them into verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.model.verdict import Refuse, Wait
from agent.relay.gate import FORWARD, Call, Forward, Gate, GateVerdict, RelayStats, Replace
from agent.rpc import grpc

OnHookError = Callable[[bytes, Exception], None]
"""Told the method's path and what its hook raised."""


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
