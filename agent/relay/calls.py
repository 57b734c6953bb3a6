"""The hooked calls of one connection: collects and holds their messages, calls the gate, forwards
them, and watches the replies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from agent.model.verdict import Code, FailureReason, Refuse, Wait
from agent.relay.flow_control import Credit, Lane, Uplink
from agent.relay.gate import Call, Gate, GuardedGate, OnHookError, RelayStats, Replace
from agent.relay.meter import Timing
from agent.relay.streams import ConnectionBudget, HeldStream, MemoryBudget, ReplyTap, Stage
from agent.rpc import frames, grpc
from agent.rpc.held_calls import HeldCalls

AskAgain = Callable[[Callable[[], None]], None]
"""Takes a function that asks again for the answer of a held call, calls it, and sends the bytes
that the answer adds."""


class HookedCalls:
    """The hooked calls of one connection. `streams` has every stream whose frames don't pass
    unchanged; it is empty most of the time."""

    def __init__(
        self,
        gate: Gate,
        stats: RelayStats,
        budget: MemoryBudget,
        credit: Credit,
        up: Lane,
        down: Lane,
        on_hook_error: OnHookError,
        timing: Timing,
        held: HeldCalls[HeldStream],
        ask_again: AskAgain,
    ) -> None:
        self.timing = timing
        self.streams: dict[int, HeldStream] = {}
        self.uplink = Uplink(up, credit, self.streams, self._sent)
        self._gate = GuardedGate(gate, stats, on_hook_error)
        self._stats = stats
        self._limits = budget.limits
        self._credit = credit
        self._down = down
        self._budget = ConnectionBudget(budget)
        self._held = held
        self._ask_again = ask_again

    def begin(self, number: int, path: bytes, headers_sent: bool, ended: bool) -> None:
        """HEADERS of a hooked method; `ended`: no message follows."""
        if ended:
            self._stats.unread_malformed += 1
            self._untracked(number, path, FailureReason.MALFORMED, "no message")
        elif len(self.streams) >= self._limits.streams:
            self._stats.unread_too_large += 1
            detail = f"{len(self.streams)} hooked calls are in progress"
            self._untracked(number, path, FailureReason.TOO_LARGE, detail)
        else:
            window = self._credit.initial
            self.streams[number] = HeldStream(number, path, window, headers_sent)

    def data(self, stream: HeldStream, flags: int, payload: memoryview) -> None:
        """A DATA frame of the client. Raises FrameError."""
        content = frames.content(frames.DATA, flags, payload)
        ends = bool(flags & frames.END_STREAM)
        size = len(payload)
        if stream.stage is Stage.COLLECTING and not stream.done:
            self._credit.excess -= size
            stream.body += content
            stream.owed += size
            stream.ends = stream.done = ends
            self._collect(stream)
        elif stream.stage is Stage.PASSING and not stream.done:
            self._credit.excess -= size
            stream.debt -= size - len(content)
            self._settle(stream)
            stream.body += content
            stream.ends = stream.done = ends
            self.uplink.send(stream, len(content))
        elif stream.stage is Stage.ENDED:
            self._credit.excess -= size
            if ends:
                self._remove(stream)
        else:
            raise frames.FrameError(f"DATA on stream {stream.id} after its end")

    def trailers(self, stream: HeldStream) -> None:
        """The client ends its side with HEADERS, as no gRPC client does: the call is not hooked."""
        if stream.stage is Stage.COLLECTING and not stream.done:
            self._stats.unread_malformed += 1
            if not self._continue_or_answer(
                stream, FailureReason.MALFORMED, "trailers behind the message"
            ):
                self._remove(stream)
                return
            self._pass_on(stream)
        elif stream.stage is Stage.ENDED:
            self._remove(stream)
        elif stream.stage is not Stage.PASSING or stream.done:
            raise frames.FrameError(f"HEADERS on stream {stream.id} after its end")
        stream.debt = 0
        stream.done = True
        if not stream.body and stream.tap is None:
            self._remove(stream)

    def reset_by_client(self, stream: HeldStream) -> None:
        """The client cancelled the call."""
        self._finish(stream, None)

    def ended_by_upstream(self, stream: HeldStream, reset: bool) -> None:
        """The upstream ended its side, in order or by RST_STREAM."""
        unsent = stream.stage is not Stage.ENDED and not (stream.done and stream.is_sent)
        client_is_done = stream.done
        message = None
        if not reset and stream.tap is not None:
            message = stream.tap.message()
            self._stats.replies_unread += stream.tap.given_up
        self._finish(stream, message)
        if unsent and not reset:
            self.uplink.reset(stream.id)
            if not client_is_done:
                stream.stage = Stage.ENDED
                self.streams[stream.id] = stream

    def credited(self, stream: HeldStream, credit: int) -> int:
        """The upstream gave the stream credit. Returns the part that goes to the client. Raises
        FrameError."""
        stream.window += credit
        if stream.window > frames.MAX_WINDOW:
            raise frames.FrameError(f"stream {stream.id}: a window of {stream.window} bytes")
        if stream.stage is not Stage.PASSING:
            stream.kept += credit
            return 0
        kept = min(credit, stream.debt)
        stream.debt -= kept
        self._drained(stream)
        return credit - kept

    def holds_bytes(self) -> bool:
        """Whether the relay holds bytes of the client, or windows differ: then the connection can't
        become opaque."""
        return any(each.stage is not Stage.SENT for each in self.streams.values())

    def close(self) -> None:
        """The connection broke, or is not tracked any more."""
        for stream in list(self.streams.values()):
            self._finish(stream, None)

    def _collect(self, stream: HeldStream) -> None:
        """More bytes of the message arrived."""
        if not stream.size_bytes:
            try:
                prefix = grpc.read_prefix(stream.body)
            except grpc.MessageError as error:
                self._malformed(stream, str(error))
                return
            if prefix is None:
                if stream.done:
                    self._malformed(stream, "not exactly one message")
                else:
                    self._send_owed_credit(stream)
                return
            _, length = prefix
            if length > self._limits.body_bytes:
                self._stats.unread_too_large += 1
                maximum = f"{self._limits.body_bytes} are the maximum"
                self._unhooked(
                    stream, FailureReason.TOO_LARGE, f"a message of {length} bytes: {maximum}"
                )
                return
            stream.size_bytes = stream.needs_bytes = grpc.PREFIX_BYTES + length
        missing = stream.size_bytes - len(stream.body)
        if missing < 0 or (missing and stream.done):
            self._malformed(stream, "not exactly one message")
        else:
            self._reserve_memory(stream)

    def _reserve_memory(self, stream: HeldStream) -> None:
        """Reserves memory for the message, or waits for it."""
        if stream.reserved_bytes == stream.needs_bytes:
            self._read_message(stream)
        elif self._budget.reserve(stream, stream.needs_bytes):
            self._budget.stop_waiting(stream)
            self._read_message(stream)
        elif not self._budget.wait(stream, self._ask(self._reserve_memory, stream)):
            self._stats.no_room += 1
            why = f"other requests use the memory for one of {stream.needs_bytes} bytes: try again"
            self._refuse(stream, grpc.trailers_only(Code.RESOURCE_EXHAUSTED, why))

    def _read_message(self, stream: HeldStream) -> None:
        """Reads the message if it is complete, otherwise lets the client send the rest. Memory for
        the whole message is reserved."""
        if not stream.done:
            self._send_owed_credit(stream)
            return
        message = bytes(memoryview(stream.body)[grpc.PREFIX_BYTES :])
        if stream.body[0]:
            self._unpack(stream, message)
        else:
            stream.body.clear()
            self._complete(stream, message)

    def _unpack(self, stream: HeldStream, packed: bytes) -> None:
        """Decompresses the message once memory for its content is reserved too."""
        size = min(grpc.unpacked_bytes(packed), self._limits.body_bytes)
        if stream.needs_bytes != stream.size_bytes + size:
            stream.needs_bytes = stream.size_bytes + size
            self._reserve_memory(stream)
            return
        try:
            message = grpc.gunzip(packed, size)
        except grpc.MessageError as error:
            self._stats.unread_compressed += 1
            self._unhooked(stream, FailureReason.COMPRESSED, str(error))
            return
        self._complete(stream, message)

    def _complete(self, stream: HeldStream, message: bytes) -> None:
        self.timing.message_complete(stream.id)
        stream.message = message
        stream.call = Call(stream.path, time.monotonic())
        self._stats.hooked += 1
        self._decide(stream)

    def _decide(self, stream: HeldStream) -> None:
        call = stream.call
        if call is None:
            return
        verdict, encoded = self._gate.request(call, stream.message)
        if isinstance(verdict, Wait):
            stream.stage = Stage.HELD
            self._held.hold(stream, self._ask(self._decide, stream))
            return
        self._release(stream)
        if isinstance(verdict, Refuse):
            self._refuse(stream, encoded)
            return
        stream.tap = ReplyTap(self._limits.reply_bytes)
        message, stream.message = stream.message, b""
        if isinstance(verdict, Replace):
            self._stats.replaced += 1
            message = verdict.message
            stream.body.clear()
        if not stream.body:  # otherwise it is forwarded compressed, as it arrived
            stream.body += grpc.prefix(len(message))
            stream.body += message
        self._commit(stream)

    def _ask(self, step: Callable[[HeldStream], None], stream: HeldStream) -> Callable[[], None]:
        return partial(self._ask_again, partial(step, stream))

    def _untracked(self, number: int, path: bytes, reason: str, detail: str) -> None:
        """Lets a call pass that the connection does not track, or refuses it."""
        error = self._gate.untracked(path, reason, detail)
        if error is not None:
            self._answer(number, error)

    def _malformed(self, stream: HeldStream, detail: str) -> None:
        self._stats.unread_malformed += 1
        self._unhooked(stream, FailureReason.MALFORMED, detail)

    def _unhooked(self, stream: HeldStream, reason: str, detail: str) -> None:
        """Lets a call pass unchanged that can't be hooked, or refuses it."""
        if not self._continue_or_answer(stream, reason, detail):
            return
        if stream.done:
            self._commit(stream)
        else:
            self._pass_on(stream)

    def _continue_or_answer(self, stream: HeldStream, reason: str, detail: str) -> bool:
        """Answers a call that can't be hooked as the gate refuses it, or prepares it for passing.
        Returns whether it continues."""
        call = Call(stream.path, time.monotonic())
        verdict, encoded = self._gate.unhooked(call, reason, detail)
        if isinstance(verdict, Refuse):
            self._refuse(stream, encoded)
            return False
        self._budget.stop_waiting(stream)
        stream.call = call
        stream.tap = ReplyTap(self._limits.reply_bytes)
        return True

    def _refuse(self, stream: HeldStream, encoded: bytes) -> None:
        client_is_done = stream.done
        self._remove(stream)
        self._answer(stream.id, encoded)
        if not client_is_done:
            stream.stage = Stage.ENDED
            self.streams[stream.id] = stream

    def _answer(self, number: int, encoded: bytes) -> None:
        # Frames that the upstream sends before it sees the reset pass: clients ignore them, and
        # their header blocks belong to the connection's compression state.
        self._stats.refused += 1
        self.timing.noted.append((number, None))
        flags = frames.END_STREAM | frames.END_HEADERS
        self._down.insert(frames.frame(frames.HEADERS, flags, number, encoded))
        self.uplink.reset(number)

    def _commit(self, stream: HeldStream) -> None:
        stream.stage = Stage.SENDING
        stream.message = b""
        self.uplink.send(stream, len(stream.body))

    def _pass_on(self, stream: HeldStream) -> None:
        stream.stage = Stage.PASSING
        stream.debt = len(stream.body) - stream.owed - stream.kept
        stream.owed = 0
        self._settle(stream)
        self.uplink.send(stream, len(stream.body))

    def _send_owed_credit(self, stream: HeldStream) -> None:
        credit, stream.owed = stream.owed, 0
        self._send_credit(stream, credit)

    def _settle(self, stream: HeldStream) -> None:
        if stream.debt < 0:
            self._send_credit(stream, -stream.debt)
            stream.debt = 0

    def _send_credit(self, stream: HeldStream, credit: int) -> None:
        if credit:
            self._down.insert(frames.window_update(stream.id, credit))

    def _sent(self, stream: HeldStream) -> None:
        self._budget.release(stream)
        self.timing.message_sent(stream.id)
        if stream.stage is Stage.PASSING:
            self._drained(stream)
        elif stream.tap is None:
            self._remove(stream)
        else:
            stream.stage = Stage.SENT

    def _drained(self, stream: HeldStream) -> None:
        if (
            not stream.body
            and stream.id not in self.uplink.sending
            and (stream.done or not stream.debt)
            and stream.tap is None
        ):
            self._remove(stream)

    def _finish(self, stream: HeldStream, message: bytes | None) -> None:
        """The call has ended, at any stage."""
        call, tap, held = stream.call, stream.tap, self._release(stream)
        stream.tap = None
        self._remove(stream)
        if call is None:
            return
        if held:
            self._gate.abandoned(call)
        elif tap is not None:
            self._gate.reply(call, message)

    def _release(self, stream: HeldStream) -> bool:
        """Ends the wait of a held call. Returns whether the call was held."""
        if stream.stage is not Stage.HELD:
            return False
        stream.stage = Stage.SENDING
        return self._held.release(stream)

    def _remove(self, stream: HeldStream) -> None:
        self.streams.pop(stream.id, None)
        self.uplink.drop(stream.id)
        stream.body.clear()
        self._budget.release(stream)
