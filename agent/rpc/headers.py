"""Header blocks of HTTP/2 (HPACK, RFC 7541): whole blocks, and their `:path` alone for the relay.

`Decoder` keeps the dynamic table, `encode` never uses one. `PathReader` reads a block only as far
as `:path` needs. It keeps the order of the sender's dynamic table and the paths in it; other values
are skipped, not decoded. It evicts nothing by size: an index counts from the newest entry, so a
valid one never refers to an entry that the receiver has evicted, and the receiver refuses an
invalid one. Memory is bounded: the table by the number of entries for which the receiver offered
room (and MAX_TABLE_BYTES), the memo of Huffman texts by its entries and their length.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import hpack
from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from agent.rpc import frames

_MAX_LIST_BYTES: Final = 1 << 16
"""Names, values and 32 bytes for each entry (RFC 9113 §6.5.2) of one block."""
MAX_TABLE_BYTES: Final = 1 << 16
"""A receiver may offer more, but a sender that uses more is refused."""
_PATH: Final = b":path"
_ENTRY_OVERHEAD: Final = 32
_STATIC: Final = len(HeaderTable.STATIC_TABLE)
_STATIC_ENTRIES: Final = [
    (0, None),
    *((len(name), value if name == _PATH else None) for name, value in HeaderTable.STATIC_TABLE),
]
_MAX_PATH_BYTES: Final = 256
"""The limit of a path in the table: no known method is longer."""
_MEMO_ENTRIES: Final = 256
_MEMO_TEXT_BYTES: Final = 256


class HeaderError(ValueError):
    """A header block that can't be decoded; its connection is unusable from then on."""


def encode(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of literals without indexing and Huffman: no decoder's table changes."""
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


class Decoder:
    """Decodes one direction of one connection; it must get all blocks in their order."""

    def __init__(self) -> None:
        self._hpack = hpack.Decoder(max_header_list_size=_MAX_LIST_BYTES)

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Names and values in their order. Raises HeaderError."""
        try:
            pairs = self._hpack.decode(block, raw=True)
        except hpack.HPACKError as error:
            raise HeaderError(f"header block of {len(block)} bytes: {error}") from None
        return [(bytes(name), bytes(value)) for name, value in pairs]


class PathReader:
    """Reads one direction of one connection; it must get all blocks in their order."""

    __slots__ = ("_entries", "_limit", "_memo", "_offered")

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes | None]] = []  # length of the name, path; oldest first
        self._limit = frames.DEFAULT_HEADER_TABLE
        self._offered = frames.DEFAULT_HEADER_TABLE
        self._memo: dict[bytes, bytes] = {}

    def offer(self, table_bytes: int) -> None:
        """The receiver's SETTINGS allow the sender a table of this size."""
        self._offered = min(max(self._offered, table_bytes), MAX_TABLE_BYTES)

    def read(self, block: bytes) -> bytes | None:
        """The block's `:path`, None if it has none (trailers).

        Raises HeaderError; the table is out of step from then on.
        """
        path = None
        entries = self._entries
        at, size = 0, len(block)
        try:
            while at < size:
                first = block[at]
                if first > 0x80:  # an indexed field
                    if first < 0xFF:
                        index = first & 0x7F
                        at += 1
                    else:
                        index, at = _integer(block, at, 7)
                    entry = entries[_STATIC - index] if index > _STATIC else _STATIC_ENTRIES[index]
                    if entry[1] is not None:
                        path = entry[1]
                elif first > 0x40:  # an indexed name and a value, with indexing
                    if first < 0x7F:
                        index = first & 0x3F
                        at += 1
                    else:
                        index, at = _integer(block, at, 6)
                    entry = entries[_STATIC - index] if index > _STATIC else _STATIC_ENTRIES[index]
                    length = block[at] & 0x7F
                    # The shortest Huffman code has five bits: a text is at most twice as long.
                    if entry[1] is None and (
                        entry[0] + 2 * length + _ENTRY_OVERHEAD <= self._limit and length < 0x7F
                    ):
                        entries.append(entry)
                        at += 1 + length
                    else:
                        passed, at = self._keep(entry, block, at)
                        path = path if passed is None else passed
                else:
                    passed, at = self._uncommon(block, at)
                    path = path if passed is None else passed
        except IndexError:
            text = f"header block of {size} bytes: cut short, or an index beyond the table"
            raise HeaderError(text) from None
        except HPACKDecodingError as error:
            raise HeaderError(f"header block of {size} bytes: {error}") from None
        if at > size:
            raise HeaderError(f"header block of {size} bytes: cut short")
        most = self._offered // _ENTRY_OVERHEAD
        if len(entries) > 2 * most:
            del entries[:-most]
        return path

    def _uncommon(self, block: bytes, at: int) -> tuple[bytes | None, int]:
        """(path or None, end) of a new name, a value without indexing, or a new table size."""
        first = block[at]
        if first == 0x80:
            raise HeaderError("header block: index 0")
        if first & 0xE0 == 0x20:
            limit, at = _integer(block, at, 5)
            if limit > self._offered:
                raise HeaderError(f"header block: table of {limit} bytes was not offered")
            self._limit = limit
            return None, at
        kept = first == 0x40
        index, at = _integer(block, at, 6 if kept else 4)
        if not index:
            name, at = self._text(block, at)
            entry = len(name), name if name == _PATH else None
        else:
            entry = self._entries[_STATIC - index] if index > _STATIC else _STATIC_ENTRIES[index]
        if kept:
            return self._keep(entry, block, at)
        if entry[1] is not None:
            return self._text(block, at)
        length, at = _integer(block, at, 7)
        return None, at + length

    def _keep(
        self, named: tuple[int, bytes | None], block: bytes, at: int
    ) -> tuple[bytes | None, int]:
        """(path or None, end) of a field whose name is that of entry `named`, and whose value is at
        `at`; it enters the table if it fits."""
        value, end = self._text(block, at)
        path = None if named[1] is None else value
        if named[0] + len(value) + _ENTRY_OVERHEAD <= self._limit:
            self._entries.append((named[0], path and path[:_MAX_PATH_BYTES]))
        return path, end

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        first = block[at]
        length, at = _integer(block, at, 7)
        end = at + length
        raw = block[at:end]
        if len(raw) != length:
            raise HeaderError(f"header block of {len(block)} bytes: cut short")
        if first < 0x80:
            return raw, end
        text = self._memo.get(raw)
        if text is None:
            text = bytes(decode_huffman(raw))
            if length <= _MEMO_TEXT_BYTES:
                if len(self._memo) >= _MEMO_ENTRIES:
                    self._memo.clear()
                self._memo[raw] = text
        return text, end


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 35, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HeaderError("header block: an integer of more than five bytes")
