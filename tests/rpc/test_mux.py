"""Messages to frames and back, however a sender cuts them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rpc import mux
from agent.rpc.mux import Demux, Message, MuxError

MESSAGES = st.lists(
    st.builds(
        Message,
        connection=st.sampled_from([1, 2]),
        stream=st.integers(0, 2**32 - 1),
        kind=st.integers(0, 255),
        flags=st.integers(0, 255),
        payload=st.binary(max_size=40),
    ),
    max_size=8,
)


def frame(connection: int, content: bytes) -> bytes:
    return struct.pack(">II", connection, len(content)) + content


def content(message: Message) -> bytes:
    """Its bytes on its connection's stream."""
    head = struct.pack(">IIBB", len(message.payload), *message[1:4])
    return head + message.payload


def per_connection(messages: list[Message]) -> list[list[Message]]:
    return [[each for each in messages if each.connection == number] for number in (1, 2)]


@given(MESSAGES, st.data())
def test_what_is_encoded_comes_out_however_the_bytes_arrive(
    messages: list[Message], data: st.DataObject
) -> None:
    sent = b"".join(map(mux.encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    demux = Demux((1, 2))
    got = []
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        got += demux.feed(sent[begin:end])
    assert per_connection(got) == per_connection(messages)


@given(MESSAGES, st.data())
def test_messages_may_share_frames_and_frames_may_share_messages(
    messages: list[Message], data: st.DataObject
) -> None:
    """The bytes of a connection are a stream: where its frames end means nothing. Empty frames and
    those of other connections may stand anywhere."""
    streams = {
        number: b"".join(map(content, of_one))
        for number, of_one in zip((1, 2), per_connection(messages), strict=True)
    }
    sent = b""
    while any(streams.values()):
        number = data.draw(st.sampled_from([1, 2, 7]))
        size = data.draw(st.integers(0, 50))
        rest = streams.get(number, b"x" * size)
        sent += frame(number, rest[:size])
        if number in streams:
            streams[number] = rest[size:]
    assert per_connection(list(Demux((1, 2)).feed(sent))) == per_connection(messages)


@given(MESSAGES)
def test_no_frame_holds_parts_of_a_header_and_a_payload(messages: list[Message]) -> None:
    """What a reader in Go takes whole, of any size (runtime.md 4.1)."""
    sent = b"".join(map(mux.encode, messages))
    frames = []
    while sent:
        connection, size = struct.unpack_from(">II", sent)
        frames.append((connection, sent[8 : 8 + size]))
        sent = sent[8 + size :]
    expected = []
    for each in messages:
        expected.append((each.connection, content(each)[:10]))
        if each.payload:
            expected.append((each.connection, each.payload))
    assert frames == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_followed_or_named(data: bytes) -> None:
    with contextlib.suppress(MuxError):
        list(Demux((1, 2)).feed(data))


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (struct.pack(">II", 1, (4 << 20) + 11), "a frame of 4194315 bytes on connection 1"),
        (frame(2, struct.pack(">IIBB", (4 << 20) + 1, 1, 2, 0)), "a message of 4194305 bytes"),
    ],
)
def test_sizes_beyond_the_protocol_end_it(sent: bytes, error: str) -> None:
    with pytest.raises(MuxError, match=error):
        list(Demux((1, 2)).feed(sent))


def test_the_largest_message_goes_and_a_larger_one_does_not() -> None:
    largest = Message(1, 1, mux.REQUEST, 0, bytes(4 << 20))
    assert list(Demux((1, 2)).feed(mux.encode(largest))) == [largest]
    with pytest.raises(MuxError, match="4194305 bytes: 4194304 are the most"):
        mux.encode(largest._replace(payload=bytes((4 << 20) + 1)))
