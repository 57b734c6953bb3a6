"""Encodes messages as frames and decodes them, however a sender splits them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.verdict import Code
from agent.nri import ttrpc
from agent.nri.ttrpc import PLUGIN, RUNTIME, Demux, Incoming, Message, MuxError, Session
from agent.proto import ttrpc_pb2 as pb
from agent.rpc.grpc import RpcError

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
    """The bytes of the message on its connection."""
    head = struct.pack(">IIBB", len(message.payload), *message[1:4])
    return head + message.payload


def per_connection(messages: list[Message]) -> list[list[Message]]:
    return [[each for each in messages if each.connection == number] for number in (1, 2)]


@given(MESSAGES, st.data())
def test_messages_are_decoded_however_the_bytes_are_split(
    messages: list[Message], data: st.DataObject
) -> None:
    sent = b"".join(map(ttrpc.encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    demux = Demux((1, 2))
    decoded = []
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        decoded += demux.feed(sent[begin:end])
    assert per_connection(decoded) == per_connection(messages)


@given(MESSAGES, st.data())
def test_messages_may_share_frames_and_frames_may_share_messages(
    messages: list[Message], data: st.DataObject
) -> None:
    """The frames of a connection form one stream of bytes. Empty frames and frames of other
    connections may be anywhere."""
    streams = {
        number: b"".join(map(content, of_connection))
        for number, of_connection in zip((1, 2), per_connection(messages), strict=True)
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
def test_a_frame_has_either_a_header_or_a_payload(messages: list[Message]) -> None:
    """Go's ttrpc needs a whole frame for each read."""
    sent = b"".join(map(ttrpc.encode, messages))
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


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (struct.pack(">II", 1, (4 << 20) + 11), "a frame of 4194315 bytes on connection 1"),
        (frame(2, struct.pack(">IIBB", (4 << 20) + 1, 1, 2, 0)), "a message of 4194305 bytes"),
    ],
)
def test_sizes_beyond_the_protocol_are_errors(sent: bytes, error: str) -> None:
    with pytest.raises(MuxError, match=error):
        list(Demux((1, 2)).feed(sent))


def test_the_largest_message_passes_and_a_larger_one_does_not() -> None:
    largest = Message(1, 1, ttrpc.REQUEST, 0, bytes(4 << 20))
    assert list(Demux((1, 2)).feed(ttrpc.encode(largest))) == [largest]
    with pytest.raises(MuxError, match="4194305 bytes: 4194304 are the maximum"):
        ttrpc.encode(Message(1, 1, ttrpc.REQUEST, 0, bytes((4 << 20) + 1)))


PAYLOADS = st.one_of(
    st.binary(max_size=30),
    st.builds(
        lambda method, payload: pb.Request(
            service="s", method=method, payload=payload
        ).SerializeToString(),
        st.text(max_size=5),
        st.binary(max_size=10),
    ),
    st.builds(
        lambda code: pb.Response(status=pb.Status(code=code)).SerializeToString(),
        st.integers(0, 20),
    ),
)
ANY_MESSAGES = st.lists(
    st.builds(
        Message,
        connection=st.sampled_from([PLUGIN, RUNTIME, 3]),
        stream=st.integers(0, 6),
        kind=st.integers(0, 4),
        flags=st.integers(0, 255),
        payload=PAYLOADS,
    ),
    max_size=10,
)


def echo(incoming: Incoming) -> None:
    incoming.answer(incoming.payload)
    incoming.refuse(Code.INTERNAL, "a second answer is dropped")


@given(ANY_MESSAGES)
def test_every_incoming_call_gets_one_answer_and_outgoing_ones_at_most_one(
    messages: list[Message],
) -> None:
    session = Session(echo)
    done: dict[int, list[bytes | RpcError]] = {}
    for _ in range(3):
        replies: list[bytes | RpcError] = []
        done[session.call("s", "m", b"", 1.0, replies.append)] = replies
    assert list(done) == [1, 3, 5]
    session.unsent.clear()
    session.receive(b"".join(map(ttrpc.encode, messages)))
    calls = [each for each in messages if (each.connection, each.kind) == (PLUGIN, ttrpc.REQUEST)]
    answers = list(Demux((PLUGIN, RUNTIME)).feed(bytes(session.unsent)))
    assert [(each.connection, each.stream, each.kind) for each in answers] == [
        (PLUGIN, each.stream, ttrpc.RESPONSE) for each in calls
    ]
    replied = {
        each.stream
        for each in messages
        if (each.connection, each.kind) == (RUNTIME, ttrpc.RESPONSE)
    }
    assert {stream for stream, replies in done.items() if replies} == replied & done.keys()
    session.close("closed")
    session.close("again")
    assert [len(replies) for replies in done.values()] == [1, 1, 1]
    with pytest.raises(RpcError, match="closed"):
        session.call("s", "m", b"", 1.0, lambda reply: None)


def test_nothing_is_sent_or_called_after_the_end() -> None:
    served: list[str] = []
    incoming_calls: list[Incoming] = []

    def serve(incoming: Incoming) -> None:
        served.append(incoming.method)
        incoming_calls.append(incoming)
        session.close("closed during a call")

    session = Session(serve)
    request = pb.Request(method="a").SerializeToString()
    both = [Message(PLUGIN, number, ttrpc.REQUEST, 1, request) for number in (1, 3)]
    session.receive(b"".join(map(ttrpc.encode, both)))
    incoming_calls[0].answer(b"late")
    assert (served, bytes(session.unsent)) == (["a"], b"")


def test_a_cancelled_call_gets_an_error_and_a_late_answer_is_dropped() -> None:
    session = Session(echo)
    replies: list[bytes | RpcError] = []
    stream = session.call("s", "m", b"", 1.0, replies.append)
    session.cancel_call(stream)
    session.cancel_call(stream)
    session.receive(ttrpc.encode(Message(RUNTIME, stream, ttrpc.RESPONSE, 0, b"")))
    (error,) = replies
    assert isinstance(error, RpcError)
    assert error.code == Code.DEADLINE_EXCEEDED
