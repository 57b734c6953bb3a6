"""Protobuf messages as bytes: single fields are read, and changes are appended as patches.

Few fields of a message are read and fewer are changed, so it is never decoded as a whole, and no
protobuf library is loaded. Two rules of the encoding make that possible: all occurrences of an
embedded message are merged, and the last occurrence of a scalar counts. So the concatenated
payloads of all occurrences are the merged message, and a patch at the end of a message overrides a
nested field, while all other bytes stay, also those of unknown fields.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes that are not a protobuf message."""


def fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, payload) in order; a varint's payload is its bytes."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        field, kind = key >> 3, key & 7
        start = at
        if kind == BYTES:
            size, start = _varint(message, at)
            at = start + size
        elif kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise WireError(f"wire type {kind} of field {field} at byte {at}")
        if at > end or not field:
            raise WireError(f"field {field} runs past the end at byte {end}")
        yield field, kind, message[start:at]


def payloads(message: bytes, wanted: int) -> Iterator[bytes]:
    """The strings or embedded messages of a field. Raises WireError."""
    return (payload for field, kind, payload in fields(message) if (field, kind) == (wanted, BYTES))


def merged(message: bytes, *path: int) -> bytes:
    """The embedded message at the path of field numbers; empty when absent. Raises WireError."""
    for wanted in path:
        message = b"".join(payloads(message, wanted))
    return message


def text(message: bytes, wanted: int) -> str:
    """A string field, "" when absent. Raises WireError."""
    return _decode([b"", *payloads(message, wanted)][-1])


def number(message: bytes, wanted: int) -> int:
    """An int64 field, 0 when absent. Raises WireError."""
    last = b"\0"
    for each, kind, payload in fields(message):
        if (each, kind) == (wanted, _VARINT):
            last = payload
    return _int64(last)


def texts(message: bytes, wanted: Container[int]) -> dict[int, str]:
    """The strings of those fields that the message has.

    Raises WireError."""
    last = {
        field: payload
        for field, kind, payload in fields(message)
        if kind == BYTES and field in wanted
    }
    return {field: _decode(payload) for field, payload in last.items()}


def numbers(message: bytes) -> dict[int, int]:
    """All int64 fields that the message has. Raises WireError."""
    return {field: _int64(payload) for field, kind, payload in fields(message) if kind == _VARINT}


def string_map(message: bytes, wanted: int) -> dict[str, str]:
    """A map<string, string> field. Raises WireError."""
    return {text(entry, 1): text(entry, 2) for entry in payloads(message, wanted)}


def filtered(message: bytes, keeps: Callable[[int, bytes], bool], *path: int) -> bytes:
    """The message without those fields of the embedded message at the path for which `keeps`, with
    number and payload, returns False. Fields of other types than BYTES stay. Raises WireError."""
    kept = []
    for field, kind, payload in fields(message):
        if kind == BYTES:
            if path and field == path[0]:
                payload = filtered(payload, keeps, *path[1:])
            elif not path and not keeps(field, payload):
                continue
            kept.append(_embedded(field, payload))
        else:
            kept.append(_encode_varint(field << 3 | kind) + payload)
    return b"".join(kept)


def patch(path: tuple[int, ...], value: str | int | bytes) -> bytes:
    """Bytes that, appended to a message, set the field (a string, an int64, or the bytes of one
    more message) at the path of field numbers."""
    *above, last = path
    if isinstance(value, int):
        encoded = _encode_varint(last << 3 | _VARINT) + _encode_varint(value & (1 << 64) - 1)
    else:
        encoded = _embedded(last, value if isinstance(value, bytes) else value.encode())
    for each in reversed(above):
        encoded = _embedded(each, encoded)
    return encoded


def _embedded(wanted: int, payload: bytes) -> bytes:
    return _encode_varint(wanted << 3 | BYTES) + _encode_varint(len(payload)) + payload


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a string is not UTF-8: {error}") from None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise WireError(f"a number is cut off at byte {at}")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _int64(payload: bytes) -> int:
    value = _varint(payload, 0)[0] & (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
