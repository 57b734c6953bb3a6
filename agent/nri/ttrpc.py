"""ttrpc calls both ways over one byte stream, as NRI multiplexes them (NRI:
pkg/net/multiplex/mux.go and ttrpc.go; ttrpc: channel.go). No I/O.

On connection 1 the runtime calls the plugin, on connection 2 the plugin calls the runtime. A frame
of the multiplexer is `connection u32 | length u32 | bytes`, and the bytes of one connection are a
stream of messages `length u32 | stream u32 | type u8 | flags u8 | payload`; all numbers are
big-endian. NRI's sender splits messages into frames at any byte. NRI's reader loses a frame that is
larger than its buffer (mux.go, conn.Read: ENOMEM): 4096 bytes while it waits for a header of 10
bytes, and the size of the payload while it waits for a longer payload. So each message is sent as
two frames, header and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from agent.model.verdict import Code
from agent.proto import DecodeError
from agent.proto import ttrpc_pb2 as pb
from agent.rpc.grpc import RpcError

PLUGIN: Final = 1
RUNTIME: Final = 2
REQUEST: Final = 1
RESPONSE: Final = 2
_CLOSES: Final = 1
"""Flag of a request: its stream ends with it."""
_LARGEST_PAYLOAD_BYTES: Final = 4 << 20
_FRAME: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")
_LARGEST_FRAME_BYTES: Final = _LARGEST_PAYLOAD_BYTES + _HEADER.size
_STATUS_CHARACTERS: Final = 1_000
_Done = Callable[[bytes | RpcError], None]
"""Takes the reply to a call, or the error; called once."""


class MuxError(ValueError):
    """Bytes that can't be decoded, or a message that must not be sent; the text is the reason."""


class Message(NamedTuple):
    """One ttrpc message of the multiplexer's connection `connection`."""

    connection: int
    stream: int
    kind: int
    flags: int
    payload: bytes


class Incoming:
    """A call of the runtime, to be answered once; a second answer is dropped."""

    def __init__(self, session: Session, stream: int, request: pb.Request) -> None:
        self.service = request.service
        self.method = request.method
        self.payload = request.payload
        self._session: Session | None = session
        self._stream = stream

    def answer(self, payload: bytes) -> None:
        """A reply larger than the protocol allows becomes a refusal."""
        self._respond(pb.Response(payload=payload))

    def refuse(self, code: Code, message: str) -> None:
        """The runtime treats it as a failure of its request."""
        status = pb.Status(code=int(code), message=message[:_STATUS_CHARACTERS])
        self._respond(pb.Response(status=status))

    def _respond(self, response: pb.Response) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.send(PLUGIN, self._stream, RESPONSE, 0, response.SerializeToString())
        except MuxError as error:
            status = pb.Status(code=int(Code.RESOURCE_EXHAUSTED), message=str(error))
            small = pb.Response(status=status).SerializeToString()
            session.send(PLUGIN, self._stream, RESPONSE, 0, small)


class Session:
    """Bytes in, `unsent` bytes out. `serve` gets every call of the runtime."""

    def __init__(self, serve: Callable[[Incoming], None]) -> None:
        self.unsent = bytearray()
        self._serve = serve
        self._demux = Demux((PLUGIN, RUNTIME))
        self._pending: dict[int, _Done] = {}
        self._next_stream = 1
        self._closed = ""

    def receive(self, data: bytes) -> None:
        """Raises MuxError, which ends the session. Ignores messages that are neither a call nor a
        reply to a pending one."""
        for message in self._demux.feed(data):
            if self._closed:
                return
            if (message.connection, message.kind) == (PLUGIN, REQUEST):
                self._called(message)
            elif (message.connection, message.kind) == (RUNTIME, RESPONSE):
                done = self._pending.pop(message.stream, None)
                if done is not None:
                    done(_reply(message.payload))

    def call(self, service: str, method: str, payload: bytes, seconds: float, done: _Done) -> int:
        """Returns the number of the call, for `cancel_call`. Raises MuxError for a payload that is
        too large, RpcError after the session was closed."""
        if self._closed:
            raise RpcError(Code.UNAVAILABLE, self._closed)
        request = pb.Request(
            service=service, method=method, payload=payload, timeout_nano=int(seconds * 1e9)
        )
        stream = self._next_stream
        self.send(RUNTIME, stream, REQUEST, _CLOSES, request.SerializeToString())
        self._next_stream += 2
        self._pending[stream] = done
        return stream

    def cancel_call(self, stream: int) -> None:
        """Ends the call with DEADLINE_EXCEEDED, and ignores a later reply. Without effect after the
        reply."""
        done = self._pending.pop(stream, None)
        if done is not None:
            done(RpcError(Code.DEADLINE_EXCEEDED, "no answer in time"))

    def close(self, why: str) -> None:
        """Ends every pending call with UNAVAILABLE. Nothing is sent after it."""
        if self._closed:
            return
        self._closed = why
        pending, self._pending = self._pending, {}
        for done in pending.values():
            done(RpcError(Code.UNAVAILABLE, why))

    def send(self, connection: int, stream: int, kind: int, flags: int, payload: bytes) -> None:
        """Raises MuxError for a payload that is too large."""
        if not self._closed:
            self.unsent += encode(Message(connection, stream, kind, flags, payload))

    def _called(self, message: Message) -> None:
        try:
            request = pb.Request.FromString(message.payload)
        except DecodeError:
            Incoming(self, message.stream, pb.Request()).refuse(
                Code.INVALID_ARGUMENT, "the request is not a ttrpc request"
            )
            return
        self._serve(Incoming(self, message.stream, request))


def _reply(payload: bytes) -> bytes | RpcError:
    try:
        response = pb.Response.FromString(payload)
    except DecodeError:
        return RpcError(Code.INTERNAL, "the reply is not a ttrpc response")
    if response.status.code:
        return RpcError(response.status.code, response.status.message)
    return response.payload


class Demux:
    """Assembles whole messages from received bytes; ignores frames of other connections."""

    def __init__(self, connections: Collection[int]) -> None:
        self._frames = bytearray()
        self._streams = {each: bytearray() for each in connections}

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes. The iterator must be exhausted before
        the next call. Raises MuxError: nothing after it can be decoded."""
        self._frames += data
        self._split()
        for connection, stream in self._streams.items():
            yield from self._messages(connection, stream)

    def _split(self) -> None:
        """Moves the bytes of whole frames to their connections. Raises MuxError."""
        frames = self._frames
        at = 0
        while len(frames) - at >= _FRAME.size:
            connection, size = _FRAME.unpack_from(frames, at)
            if size > _LARGEST_FRAME_BYTES:
                raise MuxError(f"a frame of {size} bytes on connection {connection}")
            end = at + _FRAME.size + size
            if len(frames) < end:
                break
            if connection in self._streams:
                self._streams[connection] += frames[at + _FRAME.size : end]
            at = end
        del frames[:at]

    def _messages(self, connection: int, stream: bytearray) -> Iterator[Message]:
        at = 0
        while len(stream) - at >= _HEADER.size:
            size, number, kind, flags = _HEADER.unpack_from(stream, at)
            if size > _LARGEST_PAYLOAD_BYTES:
                raise MuxError(f"a message of {size} bytes on connection {connection}")
            end = at + _HEADER.size + size
            if len(stream) < end:
                break
            yield Message(connection, number, kind, flags, bytes(stream[at + _HEADER.size : end]))
            at = end
        del stream[:at]


def encode(message: Message) -> bytes:
    """One frame with the header and, unless it is empty, one with the payload. Raises MuxError for
    a payload that is larger than the protocol allows."""
    size = len(message.payload)
    if size > _LARGEST_PAYLOAD_BYTES:
        raise MuxError(f"a message of {size} bytes: {_LARGEST_PAYLOAD_BYTES} are the maximum")
    header = _FRAME.pack(message.connection, _HEADER.size) + _HEADER.pack(
        size, message.stream, message.kind, message.flags
    )
    return header + _FRAME.pack(message.connection, size) + message.payload if size else header
