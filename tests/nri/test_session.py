"""Whatever bytes a runtime sends, a session goes on or ends with a clear error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.verdict import Code
from agent.nri.session import PLUGIN, RUNTIME, Incoming, Session
from agent.proto import ttrpc_pb2 as pb
from agent.rpc import mux
from agent.rpc.grpc import RpcError
from agent.rpc.mux import Demux, Message, MuxError

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
MESSAGES = st.lists(
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


@given(MESSAGES)
def test_every_call_gets_one_answer_and_ours_at_most_one(messages: list[Message]) -> None:
    session = Session(echo)
    done: dict[int, list[bytes | RpcError]] = {}
    for _ in range(3):
        replies: list[bytes | RpcError] = []
        done[session.call("s", "m", b"", 1.0, replies.append)] = replies
    assert list(done) == [1, 3, 5]
    session.unsent.clear()
    session.receive(b"".join(map(mux.encode, messages)))
    calls = [each for each in messages if (each.connection, each.kind) == (PLUGIN, mux.REQUEST)]
    answers = list(Demux((PLUGIN, RUNTIME)).feed(bytes(session.unsent)))
    assert [(each.connection, each.stream, each.kind) for each in answers] == [
        (PLUGIN, each.stream, mux.RESPONSE) for each in calls
    ]
    replied = {
        each.stream for each in messages if (each.connection, each.kind) == (RUNTIME, mux.RESPONSE)
    }
    assert {stream for stream, replies in done.items() if replies} == replied & done.keys()
    session.close("over")
    session.close("again")
    assert [len(replies) for replies in done.values()] == [1, 1, 1]
    with pytest.raises(RpcError, match="over"):
        session.call("s", "m", b"", 1.0, lambda reply: None)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_order(data: bytes) -> None:
    session = Session(echo)
    with contextlib.suppress(MuxError):
        session.receive(data)


def test_nothing_is_sent_after_the_end_and_nobody_is_asked() -> None:
    asked: list[str] = []
    held: list[Incoming] = []

    def serve(incoming: Incoming) -> None:
        asked.append(incoming.method)
        held.append(incoming)
        session.close("ends while it is asked")

    session = Session(serve)
    request = pb.Request(method="a").SerializeToString()
    both = [Message(PLUGIN, number, mux.REQUEST, 1, request) for number in (1, 3)]
    session.receive(b"".join(map(mux.encode, both)))
    held[0].answer(b"late")
    assert (asked, bytes(session.unsent)) == (["a"], b"")


def test_a_call_that_is_given_up_has_its_answer_and_drops_a_late_one() -> None:
    session = Session(echo)
    replies: list[bytes | RpcError] = []
    stream = session.call("s", "m", b"", 1.0, replies.append)
    session.give_up(stream)
    session.give_up(stream)
    session.receive(mux.encode(Message(RUNTIME, stream, mux.RESPONSE, 0, b"")))
    (error,) = replies
    assert isinstance(error, RpcError)
    assert error.code == Code.DEADLINE_EXCEEDED
