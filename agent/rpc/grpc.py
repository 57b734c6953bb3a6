"""gRPC over HTTP/2: length-prefixed messages, statuses, and the few headers that carry them
(grpc/grpc: doc/PROTOCOL-HTTP2.md and doc/statuscodes.md).
"""

from __future__ import annotations

from typing import Final

from agent.model.verdict import Code
from agent.rpc import frames, headers

PREFIX_BYTES: Final = 5
STATUS_CHARACTERS: Final = 1_000
"""The longest message of a status that is sent, or kept of a received status."""


NO_ANSWER: Final = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED})
"""The peer did not process the request."""


class RpcError(Exception):
    """A call that ended with a status other than OK."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code_name(code)}: {message}")
        self.code = code
        """It may be a number without a name."""
        self.message = message


class MessageError(ValueError):
    """Bytes that are not a whole message, or can't be unpacked within the limit."""


def code_name(code: int) -> str:
    """`NOT_FOUND`, or `CODE_99` for a number without a name."""
    return Code(code).name if code in Code._value2member_map_ else f"CODE_{code}"


def encode_message(message: bytes) -> bytes:
    """The uncompressed message after its prefix."""
    return prefix(len(message)) + message


def prefix(size_bytes: int) -> bytes:
    """The prefix of an uncompressed message of that size."""
    return b"\0" + size_bytes.to_bytes(4, "big")


def read_prefix(buffer: bytes | bytearray | memoryview, at: int = 0) -> tuple[bool, int] | None:
    """(compressed, length) of the message at `at`; None until all five bytes have arrived.

    Raises MessageError for a flag other than 0 and 1.
    """
    if len(buffer) - at < PREFIX_BYTES:
        return None
    flag = buffer[at]
    if flag > 1:
        raise MessageError(f"message flag is {flag}")
    return flag == 1, int.from_bytes(buffer[at + 1 : at + PREFIX_BYTES], "big")


def unpacked_bytes(packed: bytes) -> int:
    """The size of the content as the trailer of a gzip member states it (RFC 1952 §2.3.1, ISIZE),
    not verified."""
    return int.from_bytes(packed[-4:], "little")


def gunzip(packed: bytes, limit_bytes: int) -> bytes:
    """The content of one gzip member. Raises MessageError if it is not one, or above the limit."""
    import zlib  # only here: no kubelet compresses its messages

    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(packed, limit_bytes + 1)
    except zlib.error as error:
        raise MessageError(f"message is not gzip: {error}") from None
    if len(content) > limit_bytes:
        raise MessageError(f"message unpacks to more than {limit_bytes} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise MessageError("message is not exactly one gzip member")
    return content


def percent_encode(text: str) -> bytes:
    """`text` as a `grpc-message`: printable ASCII, all else (and `%`) as %XX of UTF-8."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode()
    )


def percent_decode(raw: bytes) -> str:
    """The text of a `grpc-message`; invalid escapes and UTF-8 stay readable."""
    parts = raw.split(b"%")
    out = bytearray(parts[0])
    for part in parts[1:]:
        digits = part[:2]
        if len(digits) == 2 and _HEX.issuperset(digits):
            out.append(int(digits, 16))
            out += part[2:]
        else:
            out += b"%" + part
    return out.decode(errors="replace")


def timeout_value(seconds: float) -> bytes:
    """`grpc-timeout`: at most eight digits, so the unit grows with the time (at least 1 us)."""
    for unit, per_second in ((b"u", 1_000_000), (b"m", 1_000), (b"S", 1)):
        amount = max(int(seconds * per_second), 1)
        if amount <= 99_999_999:
            return b"%d%s" % (amount, unit)
    return b"99999999S"


def trailers_only(code: int, message: str) -> bytes:
    """The header block of a reply that has only a status; it does not change HPACK tables.

    The message is cut to STATUS_CHARACTERS: the block must fit one frame.
    """
    return headers.encode(
        [
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", b"%d" % code),
            (b"grpc-message", percent_encode(message[:STATUS_CHARACTERS])),
        ]
    )


def code_of_reset(error: int) -> Code:
    """The status of a stream that ended by RST_STREAM with an HTTP/2 error code."""
    return {
        frames.REFUSED_STREAM: Code.UNAVAILABLE,
        frames.CANCEL: Code.CANCELLED,
        frames.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
        frames.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
    }.get(error, Code.INTERNAL)


def code_of_http(status: bytes) -> Code:
    """The status of a reply that has an HTTP status other than 200 and no grpc-status."""
    return {
        b"400": Code.INTERNAL,
        b"401": Code.UNAUTHENTICATED,
        b"403": Code.PERMISSION_DENIED,
        b"404": Code.UNIMPLEMENTED,
        b"429": Code.UNAVAILABLE,
        b"502": Code.UNAVAILABLE,
        b"503": Code.UNAVAILABLE,
        b"504": Code.UNAVAILABLE,
    }.get(status, Code.UNKNOWN)


_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
