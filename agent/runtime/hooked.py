"""The hooked calls of one connection: collected, decided, held, sent on, their replies watched."""

from __future__ import annotations

import time

from agent.rpc import frames, grpc
from agent.runtime.credit import Credit
from agent.runtime.custody import Custody
from agent.runtime.gate import Call, Gate, Hold, Refuse, Replace, Stats
from agent.runtime.guarded import GuardedGate, OnHookError
from agent.runtime.held import HeldStream, Limits, Stage
from agent.runtime.lane import Lane
from agent.runtime.meter import Timing
from agent.runtime.tap import ReplyTap
from agent.runtime.uplink import Uplink


class HookedCalls:
    """`streams` holds every stream that needs more than passing by; empty most of the time."""

    def __init__(
        self,
        gate: Gate,
        stats: Stats,
        limits: Limits,
        credit: Credit,
        up: Lane,
        down: Lane,
        on_hook_error: OnHookError,
        timing: Timing,
    ) -> None:
        self.timing = timing
        self.streams: dict[int, HeldStream] = {}
        self.uplink = Uplink(up, credit, self.streams, self._sent)
        self._gate = GuardedGate(gate, stats, on_hook_error)
        self._stats = stats
        self._limits = limits
        self._credit = credit
        self._down = down
        self._custody = Custody(limits, stats)

    def begin(self, number: int, path: bytes, announced: bool, ended: bool) -> None:
        """HEADERS of a hooked method; `ended`: no message will follow."""
        if ended:
            self._stats.passed_irregular += 1
            self._not_followed(number, path, "irregular", "no message")
        elif len(self.streams) >= self._limits.streams:
            self._stats.passed_oversize += 1
            under_way = f"{len(self.streams)} hooked calls are under way"
            self._not_followed(number, path, "oversize", under_way)
        else:
            window = self._credit.initial
            self.streams[number] = HeldStream(number, path, window, announced)

    def data(self, stream: HeldStream, flags: int, payload: memoryview) -> None:
        """A DATA frame of the client. Raises FrameError."""
        content = frames.content(frames.DATA, flags, payload)
        ends = bool(flags & frames.END_STREAM)
        size = len(payload)
        if stream.stage is Stage.COLLECTING:
            self._credit.excess -= size
            stream.body += content
            self._custody.take(stream, len(content))
            stream.ends = stream.done = ends
            if ends:
                self._complete(stream)
                return
            self._give(stream, size)
            if stream.taken > self._limits.body_bytes + grpc.PREFIX_BYTES or self._custody.room < 0:
                self._stats.passed_oversize += 1
                if self._goes_on(stream, "oversize", f"more than {stream.taken} bytes"):
                    self._loosen(stream)
        elif stream.stage is Stage.LOOSE and not stream.done:
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
        """The client ends its side by HEADERS: no gRPC call does, so it passes unhooked."""
        if stream.stage is Stage.COLLECTING:
            self._stats.passed_irregular += 1
            if not self._goes_on(stream, "irregular", "trailers behind the message"):
                self._remove(stream)
                return
            self._loosen(stream)
        elif stream.stage is Stage.ENDED:
            self._remove(stream)
        elif stream.stage is not Stage.LOOSE or stream.done:
            raise frames.FrameError(f"HEADERS on stream {stream.id} after its end")
        stream.debt = 0
        stream.done = True
        if not stream.body and stream.tap is None:
            self._remove(stream)

    def reset_by_client(self, stream: HeldStream) -> None:
        """The caller gave up."""
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

    def granted(self, stream: HeldStream, credit: int) -> int:
        """The upstream gave the stream credit; returns how much of it the client is to have. Raises
        FrameError."""
        stream.window += credit
        if stream.window > frames.MAX_WINDOW:
            raise frames.FrameError(f"stream {stream.id}: a window of {stream.window} bytes")
        if stream.stage is not Stage.LOOSE:
            stream.kept += credit
            return 0
        kept = min(credit, stream.debt)
        stream.debt -= kept
        self._drained(stream)
        return credit - kept

    def ask_again(self) -> None:
        """Asks the gate about every held call."""
        for stream in [each for each in self.streams.values() if each.stage is Stage.HELD]:
            self._decide(stream)

    def custody(self) -> bool:
        """Bytes of the client are here, or windows differ: the connection can't be left alone."""
        return any(each.stage is not Stage.SENT for each in self.streams.values())

    def close(self) -> None:
        """The connection broke, or is followed no longer."""
        for stream in list(self.streams.values()):
            self._finish(stream, None)

    def _complete(self, stream: HeldStream) -> None:
        limits, stats = self._limits, self._stats
        self.timing.whole(stream.id)
        packed = stream.packed_message()
        if packed is None:
            stats.passed_irregular += 1
            self._commit_unhooked(stream, "irregular", "not exactly one message")
            return
        compressed, message = packed
        room = self._custody.room
        if len(message) > limits.body_bytes or room < 0:
            stats.passed_oversize += 1
            self._commit_unhooked(stream, "oversize", f"{len(message)} bytes")
            return
        if compressed:
            try:
                message = grpc.gunzip(message, min(limits.body_bytes, room))
            except grpc.MessageError as error:
                stats.passed_compressed += 1
                self._commit_unhooked(stream, "compressed", str(error))
                return
            self._custody.take(stream, len(message))
        stream.message = message
        stream.call = Call(stream.path, time.monotonic())
        stats.hooked += 1
        self._decide(stream)

    def _decide(self, stream: HeldStream) -> None:
        call = stream.call
        if call is None:
            return
        verdict, encoded = self._gate.request(call, stream.message)
        if isinstance(verdict, Hold):
            if stream.stage is not Stage.HELD:
                stream.stage = Stage.HELD
                self._stats.held_now += 1
            return
        self._unhold(stream)
        if isinstance(verdict, Refuse):
            self._refuse(stream, encoded)
            return
        stream.tap = ReplyTap(self._limits.reply_bytes)
        if isinstance(verdict, Replace):
            self._stats.replaced += 1
            stream.body = bytearray(encoded)
        self._commit(stream)

    def _not_followed(self, number: int, path: bytes, reason: str, detail: str) -> None:
        """A call that the connection keeps nothing of."""
        error = self._gate.not_followed(path, reason, detail)
        if error is not None:
            self._answer(number, error)

    def _commit_unhooked(self, stream: HeldStream, reason: str, detail: str) -> None:
        if self._goes_on(stream, reason, detail):
            self._commit(stream)

    def _goes_on(self, stream: HeldStream, reason: str, detail: str) -> bool:
        """What the gate says of a call that it can't be asked about; if no, it is answered."""
        call = Call(stream.path, time.monotonic())
        verdict, encoded = self._gate.unhooked(call, reason, detail)
        if isinstance(verdict, Refuse):
            self._refuse(stream, encoded)
            return False
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
        # What the upstream sends before it sees the reset passes: clients ignore it, and its
        # header blocks belong to the connection's compression state.
        self._stats.refused += 1
        self.timing.noted.append((number, None))
        flags = frames.END_STREAM | frames.END_HEADERS
        self._down.insert(frames.frame(frames.HEADERS, flags, number, encoded))
        self.uplink.reset(number)

    def _commit(self, stream: HeldStream) -> None:
        stream.stage = Stage.SENDING
        stream.message = b""
        self.uplink.send(stream, len(stream.body))

    def _loosen(self, stream: HeldStream) -> None:
        stream.stage = Stage.LOOSE
        stream.debt = len(stream.body) - stream.kept
        self._settle(stream)
        self.uplink.send(stream, len(stream.body))

    def _settle(self, stream: HeldStream) -> None:
        if stream.debt < 0:
            self._give(stream, -stream.debt)
            stream.debt = 0

    def _give(self, stream: HeldStream, credit: int) -> None:
        if credit:
            self._down.insert(frames.window_update(stream.id, credit))

    def _sent(self, stream: HeldStream) -> None:
        self._custody.release(stream)
        self.timing.left(stream.id)
        if stream.stage is Stage.LOOSE:
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
        """The call is over, whatever its stage."""
        call, tap, held = stream.call, stream.tap, stream.stage is Stage.HELD
        self._unhold(stream)
        stream.tap = None
        self._remove(stream)
        if call is None:
            return
        if held:
            self._gate.gone(call)
        elif tap is not None:
            self._gate.reply(call, message)

    def _unhold(self, stream: HeldStream) -> None:
        if stream.stage is Stage.HELD:
            stream.stage = Stage.SENDING
            self._stats.held_now -= 1

    def _remove(self, stream: HeldStream) -> None:
        self.streams.pop(stream.id, None)
        self.uplink.drop(stream.id)
        stream.body.clear()
        self._custody.release(stream)
