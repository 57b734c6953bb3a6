"""Protobuf's wire format, without protobuf: fields of a message, and encoded fields."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

_VARINT: Final = 0
_BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_VARINT_BYTES: Final = 10


class ProtobufError(ValueError):
    """The bytes are not a message; the text says why."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field in order: a number for a varint, bytes for a text, a message
    or a fixed number. Raises ProtobufError."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ProtobufError(f"field {number} has the wire type {kind}")
        if size > end - at:
            raise ProtobufError(f"field {number} ends after the message")
        yield number, message[at : at + size]
        at += size


def messages(message: bytes, number: int) -> Iterator[bytes]:
    """The values of a repeated field of texts or messages. Raises ProtobufError."""
    for each, value in fields(message):
        if each == number:
            if isinstance(value, int):
                raise ProtobufError(f"field {number} is a number")
            yield value


def message_at(message: bytes, *path: int) -> bytes:
    """The field at a path of field numbers; of several, all in one, as protobuf merges messages.
    Empty if it is absent. Raises ProtobufError."""
    for number in path:
        message = b"".join(messages(message, number))
    return message


def text(message: bytes, number: int) -> str:
    """The last value of a field; "" if it is absent. Raises ProtobufError."""
    values = list(messages(message, number))
    return values[-1].decode(errors="replace") if values else ""


def integer(message: bytes, number: int) -> int:
    """The last value of a varint field; 0 if it is absent. Raises ProtobufError."""
    last = 0
    for each, value in fields(message):
        if each == number:
            if not isinstance(value, int):
                raise ProtobufError(f"field {number} is not a number")
            last = value
    return last


def texts(message: bytes, number: int) -> dict[str, str]:
    """A map of texts, or repeated messages of the fields `key` and `value`. Raises
    ProtobufError."""
    return {text(entry, 1): text(entry, 2) for entry in messages(message, number)}


def encoded(number: int, value: str | bytes | int) -> bytes:
    """One field; nothing for an empty value, which is the default of proto3."""
    if not value:
        return b""
    if isinstance(value, int):
        return _encoded_varint(number << 3 | _VARINT) + _encoded_varint(value)
    content = value.encode(errors="replace") if isinstance(value, str) else value
    return _encoded_varint(number << 3 | _BYTES) + _encoded_varint(len(content)) + content


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    raise ProtobufError("a number does not end")


def _encoded_varint(value: int) -> bytes:
    built = bytearray()
    while value >= 0x80:
        built.append(value & 0x7F | 0x80)
        value >>= 7
    built.append(value)
    return bytes(built)
