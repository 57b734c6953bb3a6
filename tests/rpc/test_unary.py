"""The connection against h2's server, which raises on any error in framing, HPACK or windows."""

import random

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from agent.rpc import frames, grpc, headers
from agent.rpc.unary import ProtocolError, UnaryConnection
from tests.kept import kept_bytes

OK_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


def server() -> h2.connection.H2Connection:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    connection.initiate_connection()
    return connection


def flush(client: UnaryConnection) -> bytes:
    data = bytes(client.outgoing())
    client.outgoing().clear()
    return data


@pytest.mark.parametrize("seed", range(30))
def test_messages_of_any_size_are_sent_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    client, peer = UnaryConnection(), server()
    for _ in range(3):
        request = rng.randbytes(rng.choice([0, 1, 16_384, 70_000, 200_000]))
        reply = rng.randbytes(rng.choice([0, 1, 16_384, 70_000, 300_000]))
        client.start("/s/M", request, 5)
        received, unsent, stream = bytearray(), bytearray(grpc.encode_message(reply)), 0
        to_client, to_server = bytearray(), bytearray()
        answering = False
        for _ in range(100_000):
            if client.outcome is not None:
                break
            to_server += flush(client)
            piece = bytes(to_server[: rng.choice([1, 9, 5_000, 1 << 20])])
            del to_server[: len(piece)]
            for event in peer.receive_data(piece):
                if isinstance(event, h2.events.RequestReceived):
                    stream = event.stream_id
                if isinstance(event, h2.events.DataReceived):
                    received += event.data
                    peer.acknowledge_received_data(event.flow_controlled_length, stream)
                if isinstance(event, h2.events.StreamEnded):
                    peer.send_headers(stream, OK_HEADERS)
                    answering = True
            if answering and unsent:
                room = min(peer.local_flow_control_window(stream), 16_000, len(unsent))
                padding = rng.choice([None, 0, 30]) if room > 100 else None
                size = room - 31 if padding is not None else room
                peer.send_data(stream, bytes(unsent[:size]), pad_length=padding)
                del unsent[:size]
            elif answering:
                long = ("x-long", "v" * 20_000)  # h2 sends this block in CONTINUATION frames
                peer.send_headers(stream, [("grpc-status", "0"), long], end_stream=True)
                answering = False
            if rng.random() < 0.01:
                peer.ping(b"12345678")
            to_client += peer.data_to_send()
            part = bytes(to_client[: rng.choice([1, 9, 5_000, 1 << 20])])
            del to_client[: len(part)]
            client.receive(part)
        assert client.outcome == reply
        assert grpc.encode_message(request) == received
        client.receive(bytes(to_client))


def answered(client: UnaryConnection, *raw: bytes) -> bytes | grpc.RpcError | None:
    client.start("/s/M", b"", 5)
    client.receive(frames.settings({}) + b"".join(raw))
    return client.outcome


def block(*pairs: tuple[bytes, bytes]) -> bytes:
    return frames.frame(frames.HEADERS, 5, 1, headers.encode(pairs))


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        (
            block((b":status", b"200"), (b"grpc-status", b"5"), (b"grpc-message", b"a%20b")),
            5,
            "a b",
        ),
        (block((b":status", b"503")), 14, "503"),
        (block((b":status", b"404")), 12, "404"),
        (block((b":status", b"200")), 2, "grpc-status"),
        (block((b":status", b"200"), (b"grpc-status", b"x")), 2, "grpc-status"),
        (block((b":status", b"200"), (b"grpc-status", b"9" * 5_000)), 2, "grpc-status"),
        (block((b":status", b"200"), (b"grpc-status", b"0")), 13, "whole message"),
        (frames.rst_stream(1, frames.CANCEL), 1, "reset"),
        (frames.rst_stream(1, frames.ENHANCE_YOUR_CALM), 8, "reset"),
    ],
)
def test_every_failure_has_a_status(raw: bytes, code: int, text: str) -> None:
    outcome = answered(UnaryConnection(), raw)
    assert isinstance(outcome, grpc.RpcError)
    assert (outcome.code, text in outcome.message) == (code, True)


def test_a_call_that_the_server_did_not_process_is_marked() -> None:
    for raw in (
        frames.rst_stream(1, frames.REFUSED_STREAM),
        frames.frame(frames.GOAWAY, 0, 0, bytes(8)),
    ):
        client = UnaryConnection()
        assert isinstance(answered(client, raw), grpc.RpcError)
        assert client.unprocessed


def test_a_goaway_lets_the_running_call_end() -> None:
    client = UnaryConnection()
    goaway = frames.frame(frames.GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4))
    assert answered(client, goaway) is None
    assert not client.reusable
    data = frames.frame(frames.DATA, 0, 1, grpc.encode_message(b"late"))
    client.receive(block((b":status", b"200")).replace(b"\x05", b"\x04", 1) + data)
    trailers = headers.encode([(b"grpc-status", b"0")])
    client.receive(frames.frame(frames.HEADERS, 5, 1, trailers))
    assert client.outcome == b"late"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frames.frame(frames.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff"),
        frames.frame(frames.CONTINUATION, 4, 1, b""),
        frames.frame(frames.HEADERS, 1, 1, b"") + frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.HEADERS, 1, 1, b"")
        + frames.frame(frames.CONTINUATION, 0, 1, bytes(16_384)) * 10,
        frames.frame(frames.DATA, frames.PADDED, 1, b"\x09abc"),
        frames.frame(frames.DATA, frames.PADDED, 1),
        frames.frame(frames.SETTINGS, 0, 0, b"12345"),
        frames.frame(frames.WINDOW_UPDATE, 0, 0, b"12345"),
        frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}),
        frames.frame(frames.GOAWAY, 0, 0, b""),
    ],
)
def test_an_invalid_answer_ends_the_call(raw: bytes) -> None:
    client = UnaryConnection()
    with pytest.raises(ProtocolError):
        answered(client, raw)
    assert isinstance(client.outcome, grpc.RpcError)
    assert not client.reusable


def test_a_reply_beyond_the_limit_is_refused() -> None:
    client = UnaryConnection(max_message_bytes=100)
    data = frames.frame(frames.DATA, 0, 1, grpc.encode_message(bytes(101)))
    outcome = answered(client, block((b":status", b"200")).replace(b"\x05", b"\x04", 1), data)
    assert isinstance(outcome, grpc.RpcError)
    assert outcome.code == grpc.Code.RESOURCE_EXHAUSTED


def test_a_long_status_message_is_truncated() -> None:
    long = (b"grpc-message", b"a" * 10_000)
    outcome = answered(UnaryConnection(), block((b":status", b"200"), (b"grpc-status", b"5"), long))
    assert isinstance(outcome, grpc.RpcError)
    assert outcome.message == "a" * grpc.STATUS_CHARACTERS


def test_headers_without_end_of_a_hostile_server_are_not_kept() -> None:
    """A stream of events has no deadline."""
    client = UnaryConnection()
    client.start("/s/M", b"", None)

    def receive() -> None:
        for number in range(500):
            more = headers.encode([(b"name-%d" % number, b"x" * 1_000)])
            client.receive(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, more))

    assert kept_bytes(receive) < 100_000


@pytest.mark.parametrize("raw", [frames.frame(frames.PING, 0, 0, bytes(8)), frames.settings({})])
def test_the_connection_to_a_server_that_sends_and_does_not_read_ends(raw: bytes) -> None:
    client = UnaryConnection()
    client.start("/s/M", b"", None)
    with pytest.raises(ProtocolError, match="wait for a server that does not read"):
        client.receive(raw * 200_000)
    assert len(client.outgoing()) < 2 << 20
    assert not client.reusable
