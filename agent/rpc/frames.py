"""HTTP/2 frames (RFC 9113, sections 4 and 6): their numbers, and how to build and read one.

Readers check every length: a frame that does not fit raises FrameError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
STREAM_MASK: Final = 0x7FFF_FFFF
DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 0x7FFF_FFFF
DEFAULT_MAX_FRAME: Final = 16_384
"""The largest payload that every peer accepts; more needs the peer's SETTINGS_MAX_FRAME_SIZE."""
DEFAULT_HEADER_TABLE: Final = 4_096

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

NO_ERROR: Final = 0
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
ENHANCE_YOUR_CALM: Final = 11
INADEQUATE_SECURITY: Final = 12


class FrameError(ValueError):
    """Bytes that are not a valid frame; the message names the frame's kind and the fault."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream) + payload


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of `length` bytes."""
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")


unpack_head: Final = struct.Struct(">IBI").unpack_from
"""(payload length << 8 | kind, flags, stream and reserved bit) of the nine bytes at an offset."""


def read_head(buffer: bytes | bytearray | memoryview, at: int) -> tuple[int, int, int, int]:
    """(payload length, kind, flags, stream) of the frame whose nine bytes begin at `at`."""
    word, flags, number = unpack_head(buffer, at)
    return word >> 8, word & 0xFF, flags, number & STREAM_MASK


def content(kind: int, flags: int, payload: memoryview) -> memoryview:
    """The content of a DATA or HEADERS payload, without padding and priority fields."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not end:
            raise FrameError(f"frame of kind {kind}: padded but empty")
        start, end = 1, end - payload[0]
    if kind == HEADERS and flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise FrameError(f"frame of kind {kind}: more padding than payload")
    return payload[start:end]


def window_update(stream: int, credit: int) -> bytes:
    """Allows the peer `credit` more bytes (1 .. MAX_WINDOW); stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, credit.to_bytes(4, "big"))


def rst_stream(stream: int, error: int) -> bytes:
    """Ends a stream at once."""
    return frame(RST_STREAM, 0, stream, error.to_bytes(4, "big"))


def goaway(last_stream: int, error: int) -> bytes:
    """Allows no new streams on this connection; those up to `last_stream` continue."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + error.to_bytes(4, "big"))


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame with `values` by identifier."""
    parts = [key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()]
    return frame(SETTINGS, 0, 0, b"".join(parts))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def read_settings(payload: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """(identifier, value) of every entry, in order. Raises FrameError for a wrong length."""
    if len(payload) % 6:
        raise FrameError(f"SETTINGS of {len(payload)} bytes")
    for at in range(0, len(payload), 6):
        key = int.from_bytes(payload[at : at + 2], "big")
        yield key, int.from_bytes(payload[at + 2 : at + 6], "big")


def read_uint(payload: bytes | memoryview, kind: int) -> int:
    """The four bytes of WINDOW_UPDATE (without the reserved bit) or RST_STREAM. Raises
    FrameError."""
    if len(payload) != 4:
        raise FrameError(f"frame of kind {kind}: {len(payload)} bytes instead of 4")
    value = int.from_bytes(payload, "big")
    return value & MAX_WINDOW if kind == WINDOW_UPDATE else value
