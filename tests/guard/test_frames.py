"""The guard's frames against those of the plugin (`agent.nri.ttrpc`)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.guard import frames
from agent.guard.frames import Frames
from agent.guard.wire import ProtobufError
from agent.nri.ttrpc import Demux
from agent.proto import ttrpc_pb2 as ttrpc
from tests.nri.fake import PLUGIN, RUNTIME, Reader

LARGE = b"x" * 6_000


def sent(data: bytes, connection: int) -> list[tuple[int, int, bytes]]:
    """The messages as Go's ttrpc reads them, which loses frames that it does not expect."""
    reader = Reader()
    while data:
        number, size = struct.unpack_from(">II", data)
        assert number == connection
        reader.frame(data[8 : 8 + size])
        data = data[8 + size :]
    return reader.messages


@pytest.mark.parametrize("payload", [b"", b"p", LARGE], ids=["empty", "small", "large"])
def test_the_runtime_reads_what_the_guard_sends(payload: bytes) -> None:
    ((stream, kind, received),) = sent(frames.call(1, "S", "M", payload, 2.0), RUNTIME)
    request = ttrpc.Request.FromString(received)
    assert (stream, kind, request.method, request.payload) == (1, 1, "M", payload)
    assert request.timeout_nano == 2_000_000_000
    ((stream, kind, received),) = sent(frames.answer(7, payload), PLUGIN)
    assert (stream, kind, ttrpc.Response.FromString(received).payload) == (7, 2, payload)
    ((_, _, received),) = sent(frames.error(9, 12, "no"), PLUGIN)
    status = ttrpc.Response.FromString(received).status
    assert (status.code, status.message) == (12, "no")


@given(st.lists(st.integers(1, 40), max_size=30), st.binary(max_size=200))
def test_messages_are_complete_wherever_the_bytes_are_cut(cuts: list[int], payload: bytes) -> None:
    data = frames.call(3, "S", "M", payload, 1.0) + frames.answer(5, payload)
    data += struct.pack(">II", 9, 3) + b"???" + frames.answer(7, b"")
    reader, received = Frames(), []
    for size in [*cuts, len(data)]:
        received += reader.received(data[:size])
        data = data[size:]
    demux = Demux((PLUGIN, RUNTIME))
    expected = list(demux.feed(frames.call(3, "S", "M", payload, 1.0)))
    assert received[0] == (expected[0].connection, 3, expected[0].kind, expected[0].payload)
    assert [each[1] for each in received] == [3, 5, 7]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 1, 5 << 20),
        struct.pack(">II", 1, 10) + struct.pack(">IIBB", 5 << 20, 1, 1, 0),
    ],
    ids=["frame", "message"],
)
def test_what_is_too_large_ends_the_session(data: bytes) -> None:
    with pytest.raises(ProtobufError, match="bytes"):
        list(Frames().received(data))
