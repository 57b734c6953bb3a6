import contextlib

import hpack
import pytest
from hpack.hpack import encode_integer
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rpc import headers
from agent.rpc.headers import MAX_TABLE_BYTES, HeaderError, PathReader
from tests.kept import kept_bytes

NAMES = [":path", ":method", "grpc-timeout", "user-agent", "x-a", "x-b", "x-c"]
texts = st.one_of(
    st.sampled_from(["", "/", "/index.html", "POST", "/runtime.v1.RuntimeService/CreateContainer"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=200),
)
fields = st.tuples(st.sampled_from(NAMES), texts, st.sampled_from(["index", "never"]))
blocks = st.tuples(
    st.lists(fields, max_size=12),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 5_000)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(blocks, max_size=12))
def test_the_path_equals_that_of_a_full_decoder(
    sequence: list[tuple[list[tuple[str, str, str]], bool, int | None]],
) -> None:
    encoder, decoder, reader = hpack.Encoder(), hpack.Decoder(), PathReader()
    decoder.max_allowed_table_size = 5_000
    reader.offer(5_000)
    for header, huffman, table in sequence:
        if table is not None:
            encoder.header_table_size = table
        block = encoder.encode(
            [
                (hpack.HeaderTuple if kind == "index" else hpack.NeverIndexedHeaderTuple)(
                    key, value
                )
                for key, value, kind in header
            ],
            huffman=huffman,
        )
        paths = [bytes(v) for k, v in decoder.decode(block, raw=True) if bytes(k) == b":path"]
        assert reader.read(block) == (paths[-1] if paths else None)
    entries = decoder.header_table.dynamic_entries
    table = [bytes(value) if bytes(name) == b":path" else None for name, value in entries]
    assert [reader.read(indexed(each)) for each in range(len(table))] == table


def indexed(number: int) -> bytes:
    """A block that refers to an entry of the dynamic table: 0 is the newest."""
    block = bytearray(encode_integer(62 + number, 7))
    block[0] |= 0x80
    return bytes(block)


@given(st.lists(st.binary(max_size=60), max_size=30))
def test_random_bytes_are_refused_or_read_in_bounded_memory(data: list[bytes]) -> None:
    reader = PathReader()
    for block in data:
        with contextlib.suppress(HeaderError):
            reader.read(block)
        with pytest.raises(HeaderError):
            reader.read(indexed(256))


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # index 62 of an empty table
        b"\x7e\x01a",  # the name of index 62
        b"\xff",
        b"\xff\x80\x80\x80\x80\x80\x80",
        b"\x44",
        b"\x44\x05/abc",
        b"\x04\x05/abc",
        b"\x0f\x10\x05ab",
        b"\x44\x81\x00",  # wrong Huffman padding
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
    ],
)
def test_a_malformed_block_is_refused(block: bytes) -> None:
    with pytest.raises(HeaderError):
        PathReader().read(block)


def test_the_table_never_exceeds_the_readers_limit() -> None:
    reader = PathReader()
    reader.offer(1 << 32)
    encoder = hpack.Encoder()
    encoder.header_table_size = MAX_TABLE_BYTES
    reader.read(encoder.encode([("a", "b")]))
    encoder.header_table_size = MAX_TABLE_BYTES + 1
    with pytest.raises(HeaderError, match="not offered"):
        reader.read(encoder.encode([("a", "b")]))


@pytest.mark.parametrize("digits", [300, 4_000])
def test_the_cache_is_bounded(digits: int) -> None:
    """The cache of decoded Huffman strings has few entries of limited length."""
    encoder, reader = hpack.Encoder(), PathReader()
    blocks = [
        encoder.encode([("x-long", f"{number:0{digits}}"), ("x-number", str(number))])
        for number in range(600)
    ]
    assert kept_bytes(lambda: [reader.read(each) for each in blocks]) < 200_000


def test_a_literal_path_outside_the_table_is_read() -> None:
    pairs = [(b"x", b"y"), (b":path", b"/s/M"), (b"te", b"trailers")]
    assert PathReader().read(headers.encode(pairs)) == b"/s/M"


def test_an_entry_larger_than_the_table_is_not_stored() -> None:
    """Such an entry empties the receiver's table, so a later index counts from the next entry."""
    encoder, reader = hpack.Encoder(), PathReader()
    reader.read(encoder.encode([(":path", "/s/A")]))
    reader.read(encoder.encode([("x-long", "v" * 4_100)], huffman=False))
    assert reader.read(encoder.encode([(":path", "/s/B")])) == b"/s/B"
    assert reader.read(b"\xbe") == b"/s/B"


def test_long_paths_cost_bounded_memory() -> None:
    encoder, reader = hpack.Encoder(), PathReader()
    paths = [f"/{number:03000}" for number in range(1_000)]
    blocks = [encoder.encode([(":path", path)], huffman=False) for path in paths]

    def read() -> None:
        for path, block in zip(paths, blocks, strict=True):
            assert reader.read(block) == path.encode()

    assert kept_bytes(read) < 100_000
