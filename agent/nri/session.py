"""One connection with the runtime: ttrpc calls both ways over the multiplexer. No I/O.

On connection 1 the runtime calls us, on connection 2 we call it (NRI: pkg/net/multiplex/ttrpc.go).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from agent.model.verdict import Code
from agent.proto import ttrpc_pb2 as pb
from agent.rpc import mux
from agent.rpc.grpc import RpcError
from agent.rpc.mux import Demux, Message, MuxError

PLUGIN: Final = 1
RUNTIME: Final = 2

_STATUS_CHARACTERS: Final = 1_000

Done = Callable[[bytes | RpcError], None]
"""Takes the reply to a call of ours, or why there is none; called once."""


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
        """The runtime takes it for a failure of what it asked about."""
        status = pb.Status(code=int(code), message=message[:_STATUS_CHARACTERS])
        self._respond(pb.Response(status=status))

    def _respond(self, response: pb.Response) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.send(PLUGIN, self._stream, mux.RESPONSE, 0, response.SerializeToString())
        except MuxError as error:
            status = pb.Status(code=int(Code.RESOURCE_EXHAUSTED), message=str(error))
            small = pb.Response(status=status).SerializeToString()
            session.send(PLUGIN, self._stream, mux.RESPONSE, 0, small)


class Session:
    """Bytes in, `unsent` bytes out. `serve` gets every call of the runtime."""

    def __init__(self, serve: Callable[[Incoming], None]) -> None:
        self.unsent = bytearray()
        self._serve = serve
        self._demux = Demux((PLUGIN, RUNTIME))
        self._pending: dict[int, Done] = {}
        self._next_stream = 1
        self._closed = ""

    def receive(self, data: bytes) -> None:
        """Raises MuxError, which ends the session. Ignores messages that are neither a call nor a
        reply to a pending one."""
        for message in self._demux.feed(data):
            if self._closed:
                return
            if (message.connection, message.kind) == (PLUGIN, mux.REQUEST):
                self._called(message)
            elif (message.connection, message.kind) == (RUNTIME, mux.RESPONSE):
                done = self._pending.pop(message.stream, None)
                if done is not None:
                    done(_reply(message.payload))

    def call(self, service: str, method: str, payload: bytes, seconds: float, done: Done) -> int:
        """The number of the call, for `give_up`. Raises MuxError for a payload that is too large,
        RpcError once the session is closed."""
        if self._closed:
            raise RpcError(Code.UNAVAILABLE, self._closed)
        request = pb.Request(
            service=service, method=method, payload=payload, timeout_nano=int(seconds * 1e9)
        )
        stream = self._next_stream
        self.send(RUNTIME, stream, mux.REQUEST, mux.CLOSES, request.SerializeToString())
        self._next_stream += 2
        self._pending[stream] = done
        return stream

    def give_up(self, stream: int) -> None:
        """A late reply is left out; without effect for a call that has its reply."""
        done = self._pending.pop(stream, None)
        if done is not None:
            done(RpcError(Code.DEADLINE_EXCEEDED, "no answer in time"))

    def close(self, why: str) -> None:
        """Ends every call of ours with UNAVAILABLE; sends nothing any more."""
        if self._closed:
            return
        self._closed = why
        pending, self._pending = self._pending, {}
        for done in pending.values():
            done(RpcError(Code.UNAVAILABLE, why))

    def send(self, connection: int, stream: int, kind: int, flags: int, payload: bytes) -> None:
        """Raises MuxError for a payload that is too large."""
        if not self._closed:
            self.unsent += mux.encode(Message(connection, stream, kind, flags, payload))

    def _called(self, message: Message) -> None:
        try:
            request = pb.Request.FromString(message.payload)
        except DecodeError:
            Incoming(self, message.stream, pb.Request()).refuse(
                Code.INVALID_ARGUMENT, "the request is no ttrpc request"
            )
            return
        self._serve(Incoming(self, message.stream, request))


def _reply(payload: bytes) -> bytes | RpcError:
    try:
        response = pb.Response.FromString(payload)
    except DecodeError:
        return RpcError(Code.INTERNAL, "the reply is no ttrpc response")
    if response.status.code:
        return RpcError(response.status.code, response.status.message)
    return response.payload
