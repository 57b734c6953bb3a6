"""Whole header blocks: a decoder that keeps the dynamic table, an encoder that never uses one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import hpack

MAX_LIST_BYTES: Final = 1 << 16
"""Names, values and 32 bytes an entry (RFC 9113 §6.5.2) of one block."""


class HeaderError(ValueError):
    """A header block that can't be decoded; its connection is unusable from then on."""


class Decoder:
    """One direction of one connection; blocks must be decoded in the connection's order."""

    def __init__(self) -> None:
        self._hpack = hpack.Decoder(max_header_list_size=MAX_LIST_BYTES)

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Names and values in their order. Raises HeaderError."""
        try:
            pairs = self._hpack.decode(block, raw=True)
        except hpack.HPACKError as error:
            raise HeaderError(f"header block of {len(block)} bytes: {error}") from None
        return [(bytes(name), bytes(value)) for name, value in pairs]


def encode(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of literals without indexing and Huffman: any decoder's table stays as it is."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def _text(raw: bytes) -> bytes:
    size = len(raw)
    if size < 127:
        return bytes((size,)) + raw
    length = bytearray((127,))
    size -= 127
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes(length) + raw
