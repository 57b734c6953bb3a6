"""ttrpc messages on several connections over one stream, as NRI carries them (NRI:
pkg/net/multiplex/mux.go; ttrpc: channel.go). No I/O.

A frame is `connection u32 | length u32 | bytes`, and the bytes of one connection are a stream of
messages `length u32 | stream u32 | type u8 | flags u8 | payload`; all numbers big-endian. A sender
in Go cuts messages where it likes, but a reader in Go loses every frame that is larger than the
buffer it reads into (mux.go, conn.Read: ENOMEM). That buffer has 4096 bytes where it waits for a
header of 10 bytes, and the size of the payload where it waits for a longer payload. So each message
of ours goes as two frames, header and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

REQUEST: Final = 1
RESPONSE: Final = 2
CLOSES: Final = 1
"""Flag of a request: its stream ends with it."""
LARGEST_PAYLOAD_BYTES: Final = 4 << 20

_FRAME: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")
_LARGEST_FRAME_BYTES: Final = LARGEST_PAYLOAD_BYTES + _HEADER.size


class MuxError(ValueError):
    """Bytes that can't be decoded, or a message that must not be sent; the text is the reason."""


class Message(NamedTuple):
    """One ttrpc message of the multiplexer's connection `connection`."""

    connection: int
    stream: int
    kind: int
    flags: int
    payload: bytes


class Demux:
    """Bytes as they come to whole messages; frames of other connections are left out."""

    def __init__(self, connections: Collection[int]) -> None:
        self._frames = bytearray()
        self._streams = {each: bytearray() for each in connections}

    def feed(self, data: bytes) -> Iterator[Message]:
        """To be used up before the next call. Raises MuxError: nothing behind it can be read."""
        self._frames += data
        self._part()
        for connection, stream in self._streams.items():
            yield from self._messages(connection, stream)

    def _part(self) -> None:
        """Gives each connection its bytes."""
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
            if size > LARGEST_PAYLOAD_BYTES:
                raise MuxError(f"a message of {size} bytes on connection {connection}")
            end = at + _HEADER.size + size
            if len(stream) < end:
                break
            yield Message(connection, number, kind, flags, bytes(stream[at + _HEADER.size : end]))
            at = end
        del stream[:at]


def encode(message: Message) -> bytes:
    """One frame with the header and, unless it is empty, one with the payload. Raises MuxError for
    a payload that its reader would not take."""
    size = len(message.payload)
    if size > LARGEST_PAYLOAD_BYTES:
        raise MuxError(f"a message of {size} bytes: {LARGEST_PAYLOAD_BYTES} are the most")
    header = _FRAME.pack(message.connection, _HEADER.size) + _HEADER.pack(
        size, message.stream, message.kind, message.flags
    )
    return header + _FRAME.pack(message.connection, size) + message.payload if size else header
