"""ttrpc messages in the frames of NRI's multiplexer, as `agent.nri.ttrpc` describes them. No
I/O."""

from __future__ import annotations

import struct

from agent.guard import wire
from agent.guard.wire import ProtobufError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

PLUGIN: Final = 1
"""The connection on which the runtime calls the plugin."""
RUNTIME: Final = 2
REQUEST: Final = 1
RESPONSE: Final = 2
_CLOSES: Final = 1
_FRAME: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")
_MOST_BYTES: Final = 4 << 20
"""The largest payload of a ttrpc message."""


class Frames:
    """Collects the bytes of a session, and the messages in them."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._streams = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def received(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """The messages that these bytes complete: connection, stream, kind and payload. Frames of
        other connections are ignored. Raises ProtobufError, which ends the session."""
        self._received += data
        while len(self._received) >= _FRAME.size:
            connection, size = _FRAME.unpack_from(self._received)
            if size > _MOST_BYTES + _HEADER.size:
                raise ProtobufError(f"a frame of {size} bytes")
            if len(self._received) < _FRAME.size + size:
                return
            stream = self._streams.get(connection)
            if stream is not None:
                with memoryview(self._received) as view:
                    stream += view[_FRAME.size : _FRAME.size + size]
            del self._received[: _FRAME.size + size]
            if stream is not None:
                for number, kind, payload in _messages(stream):
                    yield connection, number, kind, payload


def _messages(stream: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Removes the whole messages from the bytes of one connection."""
    while len(stream) >= _HEADER.size:
        size, number, kind, _ = _HEADER.unpack_from(stream)
        if size > _MOST_BYTES:
            raise ProtobufError(f"a message of {size} bytes")
        if len(stream) < _HEADER.size + size:
            return
        with memoryview(stream) as view:
            payload = bytes(view[_HEADER.size : _HEADER.size + size])
        del stream[: _HEADER.size + size]
        yield number, kind, payload


def call(stream: int, service: str, method: str, payload: bytes, seconds: float) -> bytes:
    """The frames of a call to the runtime."""
    request = (
        wire.encoded(1, service)
        + wire.encoded(2, method)
        + wire.encoded(3, payload)
        + wire.encoded(4, int(seconds * 1e9))
    )
    return _framed(RUNTIME, stream, REQUEST, _CLOSES, request)


def answer(stream: int, payload: bytes) -> bytes:
    """The frames of an answer to the runtime."""
    return _framed(PLUGIN, stream, RESPONSE, 0, wire.encoded(2, payload))


def error(stream: int, code: int, text: str) -> bytes:
    """The frames of an error for the runtime, with a code of gRPC."""
    status = wire.encoded(1, code) + wire.encoded(2, text)
    return _framed(PLUGIN, stream, RESPONSE, 0, wire.encoded(1, status))


def _framed(connection: int, stream: int, kind: int, flags: int, payload: bytes) -> bytes:
    """Header and payload are frames of their own: the runtime loses a larger frame than it
    expects."""
    header = _HEADER.pack(len(payload), stream, kind, flags)
    framed = _FRAME.pack(connection, len(header)) + header
    return framed + _FRAME.pack(connection, len(payload)) + payload if payload else framed
