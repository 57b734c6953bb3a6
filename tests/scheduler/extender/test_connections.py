from __future__ import annotations

import io
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.extender import connections
from agent.scheduler.extender.connections import RequestReader, Writer


class Pieces:
    """A stream that reads and writes any number of bytes at a time, at least one."""

    def __init__(self, sizes: Iterator[int], data: bytes = b"") -> None:
        self._sizes = sizes
        self._data = io.BytesIO(data)
        self.sent = b""

    def recv_into(self, buffer: memoryview | bytearray) -> int:
        some = self._data.read(min(next(self._sizes), len(buffer)))
        buffer[: len(some)] = some
        return len(some)

    def send(self, data: memoryview) -> int:
        some = data[: next(self._sizes)]
        self.sent += some
        return len(some)

    def pending(self) -> int:
        return 0


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=9)


def again(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"d" * 40]), max_size=60),
    SIZES,
    st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=20),
)
def test_the_reader_reads_as_a_file_does(
    parts: list[bytes], sizes: list[int], reads: list[tuple[bool, int]]
) -> None:
    data = b"".join(parts)
    reader, file = RequestReader(Pieces(again(sizes), data)), io.BytesIO(data)
    for whole, size in reads:
        if whole:
            assert reader.read(size) == file.read(size)
        else:
            assert reader.readline(size) == file.readline(size)
        assert reader.bytes_read == file.tell()


@given(st.binary(max_size=300), SIZES)
def test_the_writer_writes_all_data(data: bytes, sizes: list[int]) -> None:
    pieces = Pieces(again(sizes))
    writer = Writer(pieces)
    assert writer.write(data) == writer.bytes_written == len(data)
    assert pieces.sent == data


def test_received_data_is_reported_until_it_is_read() -> None:
    reader = RequestReader(Pieces(again([50]), b"a\nb\n"))
    assert not reader.has_data()
    assert reader.readline(256) == b"a\n"
    assert reader.has_data()
    assert reader.read(2) == b"b\n"
    assert not reader.has_data()


def test_each_request_has_its_own_time_limit() -> None:
    ours, theirs = socket.socketpair()
    with connections.with_deadline(ours, 0.05, lambda: False) as bounded, theirs:
        with pytest.raises(TimeoutError):
            bounded.recv_into(bytearray(1))
        theirs.send(b"a")
        with pytest.raises(TimeoutError):
            bounded.recv_into(bytearray(1))
        assert bounded.send(b"late") == 4
        assert bounded.recv_into(bytearray(1)) == 1, "the next request begins"
