"""A header block read only as far as `:path` needs (HPACK, RFC 7541), for a relay in a hurry.

The dynamic table is kept in step with the sender's; values that neither enter it nor are the path
are stepped over without being decoded. Memory is bounded: the table by what the receiver offered
(and MAX_TABLE_BYTES), the memo of Huffman texts by its entries and their length.
"""

from __future__ import annotations

from typing import Final

from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from agent.rpc import frames
from agent.rpc.metadata import HeaderError

MAX_TABLE_BYTES: Final = 1 << 16
"""A receiver may offer more; a sender that uses more is refused."""

_PATH: Final = b":path"
_ENTRY_OVERHEAD: Final = 32
_STATIC: Final = len(HeaderTable.STATIC_TABLE)
_STATIC_NAMES: Final = [b"", *(name for name, _ in HeaderTable.STATIC_TABLE)]
_STATIC_PATHS: Final = {
    index: value for index, (name, value) in enumerate(HeaderTable.STATIC_TABLE, 1) if name == _PATH
}
_MEMO_ENTRIES: Final = 256
_MEMO_TEXT_BYTES: Final = 256


class PathReader:
    """One direction of one connection; it must see every block, in order."""

    __slots__ = ("_entries", "_limit", "_memo", "_offered", "_size")

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, bytes, int]] = []  # oldest first; the int is its size
        self._size = 0
        self._limit = frames.DEFAULT_HEADER_TABLE
        self._offered = frames.DEFAULT_HEADER_TABLE
        self._memo: dict[bytes, bytes] = {}

    def offer(self, table_bytes: int) -> None:
        """The receiver's SETTINGS allow the sender a table of this size."""
        self._offered = min(max(self._offered, table_bytes), MAX_TABLE_BYTES)

    def read(self, block: bytes) -> bytes | None:
        """The block's `:path`, None where it has none (trailers).

        Raises HeaderError; the table is out of step from then on.
        """
        path = None
        entries = self._entries
        at, size = 0, len(block)
        try:
            while at < size:
                first = block[at]
                if first > 0x80:  # a whole field by index
                    index, at = (first & 0x7F, at + 1) if first < 0xFF else _integer(block, at, 7)
                    if index > _STATIC:
                        entry = entries[_STATIC - index]
                        if entry[0] == _PATH:
                            path = entry[1]
                    elif index in _STATIC_PATHS:
                        path = _STATIC_PATHS[index]
                elif first > 0x40:  # a name by index and a value, to be kept
                    index, at = (first & 0x3F, at + 1) if first < 0x7F else _integer(block, at, 6)
                    name = _STATIC_NAMES[index] if index <= _STATIC else entries[_STATIC - index][0]
                    value, at = self._text(block, at)
                    if name == _PATH:
                        path = value
                    self._add(name, value)
                else:
                    passed, at = self._rarer(block, at)
                    path = path if passed is None else passed
        except IndexError:
            text = f"header block of {size} bytes: cut short, or an index beyond the table"
            raise HeaderError(text) from None
        except HPACKDecodingError as error:
            raise HeaderError(f"header block of {size} bytes: {error}") from None
        if at > size:
            raise HeaderError(f"header block of {size} bytes: cut short")
        return path

    def _rarer(self, block: bytes, at: int) -> tuple[bytes | None, int]:
        """(path or None, end) of a new name, a value that is not kept, a size of the table."""
        first = block[at]
        if first == 0x80:
            raise HeaderError("header block: index 0")
        if first & 0xE0 == 0x20:
            limit, at = _integer(block, at, 5)
            if limit > self._offered:
                raise HeaderError(f"header block: table of {limit} bytes was not offered")
            self._limit = limit
            self._evict(0)
            return None, at
        kept = first == 0x40
        index, at = _integer(block, at, 6 if kept else 4)
        if not index:
            name, at = self._text(block, at)
        elif index > _STATIC:
            name = self._entries[_STATIC - index][0]
        else:
            name = _STATIC_NAMES[index]
        if not kept and name != _PATH:
            length, at = _integer(block, at, 7)
            return None, at + length
        value, at = self._text(block, at)
        if kept:
            self._add(name, value)
        return value if name == _PATH else None, at

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        first = block[at]
        length = first & 0x7F
        at += 1
        if length == 0x7F:
            length, at = _integer(block, at - 1, 7)
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

    def _add(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value) + _ENTRY_OVERHEAD
        self._evict(size)
        if size <= self._limit:
            self._entries.append((name, value, size))
            self._size += size

    def _evict(self, wanted: int) -> None:
        """Drops the oldest entries until `wanted` bytes fit, or none is left."""
        entries = self._entries
        while entries and self._size + wanted > self._limit:
            self._size -= entries.pop(0)[2]


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
