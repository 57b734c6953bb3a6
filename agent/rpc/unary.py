"""One gRPC client connection that makes unary calls one after the other. No I/O.

The owner sends `outgoing()`, passes arriving bytes to `receive`, and reads `outcome`. `unprocessed`
is set for a call that the server certainly did not process: it may be made again elsewhere. The
messages of a call with a streamed answer are read with `take_messages` until it has an outcome.
"""

from __future__ import annotations

from typing import Final

from agent.model.verdict import Code
from agent.rpc import frames, grpc, headers
from agent.rpc.grpc import RpcError

_WINDOW_BYTES: Final = 4 << 20
_MAX_BLOCK_BYTES: Final = 1 << 17
_MAX_UNSENT_BYTES: Final = 1 << 20
"""The bound for a server that sends frames and does not read the answers to them."""
_READ_HEADERS: Final = frozenset((b":status", b"grpc-status", b"grpc-message"))
_STATUS_DIGITS: Final = 9
MAX_MESSAGE_BYTES: Final = 256 << 20


class ProtocolError(Exception):
    """The server violated HTTP/2; the connection must be closed."""


class _Stream:
    __slots__ = ("headers", "id", "message", "owed", "request", "sent", "window")

    def __init__(self, number: int, request: bytes, window: int) -> None:
        self.id = number
        self.request = request
        self.sent = 0
        self.window = window
        self.owed = 0
        self.message = bytearray()
        self.headers: dict[bytes, bytes] = {}


class UnaryConnection:
    """A client connection that runs one call at a time."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.outcome: bytes | RpcError | None = None
        """None while the call runs, then the reply's message or the RpcError."""
        self.unprocessed = False
        self.closing = False
        self._limit = max_message_bytes
        self._out = bytearray(
            frames.PREFACE
            + frames.settings({frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
            + frames.window_update(0, _WINDOW_BYTES)
        )
        self._in = bytearray()
        self._decoder = headers.Decoder()
        self._block: bytearray | None = None
        self._block_ends_stream = False
        self._block_stream = 0
        self._stream: _Stream | None = None
        self._next = 1
        self._window = frames.DEFAULT_WINDOW
        self._peer_initial = frames.DEFAULT_WINDOW
        self._owed = 0

    @property
    def reusable(self) -> bool:
        """False after a GOAWAY of the server, or when no stream ids are left."""
        return not self.closing and self._next < frames.STREAM_MASK - 2

    def start(self, method: str, request: bytes, timeout_seconds: float | None) -> None:
        """Begins a call; None: without a deadline. The last call must have ended or been
        cancelled."""
        self.outcome, self.unprocessed = None, False
        stream = _Stream(self._next, grpc.encode_message(request), self._peer_initial)
        self._next += 2
        pairs = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        if timeout_seconds is not None:
            pairs.append((b"grpc-timeout", grpc.timeout_value(timeout_seconds)))
        block = headers.encode(pairs)
        self._out += frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, block)
        self._stream = stream
        self._send_request(stream)

    def take_messages(self) -> list[bytes]:
        """Returns the complete messages that the server has streamed for the running call since
        the last time. Raises ProtocolError."""
        stream = self._stream
        messages: list[bytes] = []
        if stream is None:
            return messages
        buffer, at = stream.message, 0
        try:
            while (prefix := grpc.read_prefix(buffer, at)) is not None:
                start = at + grpc.PREFIX_BYTES
                end = start + prefix[1]
                if end > len(buffer):
                    break
                messages.append(bytes(buffer[start:end]))
                at = end
        except grpc.MessageError as error:
            self.closing = True
            raise ProtocolError(str(error)) from None
        del buffer[:at]
        return messages

    def cancel(self) -> None:
        if self._stream is not None:
            self._out += frames.rst_stream(self._stream.id, frames.CANCEL)
            self._stream = None

    def lost(self, reason: str) -> None:
        """The connection was lost: a running call ends with UNAVAILABLE."""
        self.closing = True
        self._end(RpcError(Code.UNAVAILABLE, reason))

    def outgoing(self) -> bytearray:
        """The bytes to send; the owner deletes those that were sent."""
        return self._out

    def receive(self, data: bytes | memoryview) -> None:
        """Takes bytes of the server. Raises ProtocolError after the call ended with INTERNAL."""
        self._in += data
        at, size = 0, len(self._in)
        try:
            with memoryview(self._in) as view:
                while size - at >= frames.HEAD_BYTES:
                    length, kind, flags, stream = frames.read_head(view, at)
                    if length > frames.DEFAULT_MAX_FRAME:
                        raise frames.FrameError(f"frame of {length} bytes")
                    end = at + frames.HEAD_BYTES + length
                    if end > size:
                        break
                    with view[at + frames.HEAD_BYTES : end] as payload:
                        self._frame(kind, flags, stream, payload)
                    self._check_unsent()
                    at = end
        except (frames.FrameError, headers.HeaderError, grpc.MessageError) as error:
            self.closing = True
            self._end(RpcError(Code.INTERNAL, f"server violated HTTP/2: {error}"))
            raise ProtocolError(str(error)) from None
        del self._in[:at]

    def _check_unsent(self) -> None:
        request = self._stream.request if self._stream is not None else b""
        if len(self._out) > _MAX_UNSENT_BYTES + 2 * len(request):
            raise frames.FrameError(f"{len(self._out)} bytes wait for a server that does not read")

    def _frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        if self._block is not None and (
            kind != frames.CONTINUATION or number != self._block_stream
        ):
            raise frames.FrameError("a header block is interrupted")
        if kind == frames.DATA:
            self._data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._block = bytearray(frames.content(kind, flags, payload))
            self._block_stream = number
            self._block_ends_stream = bool(flags & frames.END_STREAM)
            self._block_part(flags)
        elif kind == frames.CONTINUATION:
            if self._block is None:
                raise frames.FrameError("CONTINUATION without HEADERS")
            self._block += payload
            self._block_part(flags)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.WINDOW_UPDATE:
            self._credit(number, frames.read_uint(payload, kind))
        elif kind == frames.PING and not flags & frames.ACK:
            self._out += frames.frame(frames.PING, frames.ACK, 0, bytes(payload))
        elif kind == frames.RST_STREAM:
            self._reset(number, frames.read_uint(payload, kind))
        elif kind == frames.GOAWAY:
            self._goaway(payload)

    def _data(self, flags: int, number: int, payload: memoryview) -> None:
        size = len(payload)
        self._owed += size
        if self._owed >= _WINDOW_BYTES // 2:
            self._out += frames.window_update(0, self._owed)
            self._owed = 0
        stream = self._stream
        if stream is None or number != stream.id:
            return
        stream.message += frames.content(frames.DATA, flags, payload)
        if len(stream.message) > self._limit + grpc.PREFIX_BYTES:
            self._out += frames.rst_stream(number, frames.CANCEL)
            text = f"reply is larger than {self._limit} bytes"
            self._end(RpcError(Code.RESOURCE_EXHAUSTED, text))
        elif flags & frames.END_STREAM:
            self._end(self._result(stream))
        else:
            stream.owed += size
            if stream.owed >= _WINDOW_BYTES // 2:
                self._out += frames.window_update(number, stream.owed)
                stream.owed = 0

    def _block_part(self, flags: int) -> None:
        block = self._block
        if block is None or len(block) > _MAX_BLOCK_BYTES:
            raise frames.FrameError(f"header block of more than {_MAX_BLOCK_BYTES} bytes")
        if not flags & frames.END_HEADERS:
            return
        self._block = None
        pairs = self._decoder.decode(bytes(block))
        stream = self._stream
        if stream is None or self._block_stream != stream.id:
            return
        stream.headers.update(each for each in pairs if each[0] in _READ_HEADERS)
        if self._block_ends_stream:
            self._end(self._result(stream))

    def _settings(self, payload: memoryview) -> None:
        for key, value in frames.read_settings(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise frames.FrameError(f"initial window of {value} bytes")
                if self._stream is not None:
                    self._stream.window += value - self._peer_initial
                self._peer_initial = value
        self._out += frames.SETTINGS_ACK
        if self._stream is not None:
            self._send_request(self._stream)

    def _credit(self, number: int, credit: int) -> None:
        stream = self._stream
        if number == 0:
            self._window += credit
        elif stream is not None and number == stream.id:
            stream.window += credit
        if stream is not None:
            self._send_request(stream)

    def _send_request(self, stream: _Stream) -> None:
        size = len(stream.request)
        while stream.sent < size:
            room = min(self._window, stream.window, frames.DEFAULT_MAX_FRAME, size - stream.sent)
            if room <= 0:
                return
            part = stream.request[stream.sent : stream.sent + room]
            stream.sent += room
            stream.window -= room
            self._window -= room
            flags = frames.END_STREAM if stream.sent == size else 0
            self._out += frames.frame(frames.DATA, flags, stream.id, part)

    def _reset(self, number: int, error: int) -> None:
        stream = self._stream
        if stream is None or number != stream.id:
            return
        self.unprocessed = error == frames.REFUSED_STREAM
        stream.sent = len(stream.request)
        self._end(RpcError(grpc.code_of_reset(error), f"stream reset with error {error}"))

    def _goaway(self, payload: memoryview) -> None:
        if len(payload) < 8:
            raise frames.FrameError(f"GOAWAY of {len(payload)} bytes")
        last = int.from_bytes(payload[:4], "big") & frames.STREAM_MASK
        self.closing = True
        stream = self._stream
        if stream is not None and stream.id > last:
            self.unprocessed = True
            stream.sent = len(stream.request)
            self._end(RpcError(Code.UNAVAILABLE, "server is going away"))

    def _end(self, outcome: bytes | RpcError) -> None:
        stream = self._stream
        if stream is None:
            return
        if stream.sent < len(stream.request):
            self._out += frames.rst_stream(stream.id, frames.CANCEL)
        self._stream = None
        self.outcome = outcome

    def _result(self, stream: _Stream) -> bytes | RpcError:
        status = stream.headers.get(b"grpc-status")
        http = stream.headers.get(b":status", b"")
        if status is None and http != b"200":
            text = f"HTTP status {http.decode(errors='replace')}"
            return RpcError(grpc.code_of_http(http), text)
        if status is None or not status.isdigit() or len(status) > _STATUS_DIGITS:
            return RpcError(Code.UNKNOWN, "reply without a grpc-status")
        message = grpc.percent_decode(stream.headers.get(b"grpc-message", b""))
        message = message[: grpc.STATUS_CHARACTERS]
        if int(status) != Code.OK:
            return RpcError(int(status), message)
        prefix = grpc.read_prefix(stream.message)
        if prefix is None or len(stream.message) != grpc.PREFIX_BYTES + prefix[1]:
            return RpcError(Code.INTERNAL, "reply is not one whole message")
        if prefix[0]:
            return RpcError(Code.INTERNAL, "reply is compressed, which was not requested")
        del stream.message[: grpc.PREFIX_BYTES]
        return bytes(stream.message)
