"""The guard's reader of protobuf against protobuf itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.guard import wire
from agent.guard.wire import ProtobufError
from agent.proto import nri_pb2 as nri
from agent.proto import ttrpc_pb2 as ttrpc

TEXT = st.text(max_size=300)


@given(TEXT, TEXT, st.binary(max_size=300), st.integers(0, (1 << 63) - 1))
def test_what_is_encoded_is_protobufs(
    service: str, method: str, payload: bytes, nanoseconds: int
) -> None:
    request = ttrpc.Request(
        service=service, method=method, payload=payload, timeout_nano=nanoseconds
    )
    built = (
        wire.encoded(1, service)
        + wire.encoded(2, method)
        + wire.encoded(3, payload)
        + wire.encoded(4, nanoseconds)
    )
    assert built == request.SerializeToString()
    assert wire.text(built, 2) == method
    assert wire.message_at(built, 3) == payload
    assert wire.integer(built, 4) == nanoseconds


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_maps_are_read(annotations: dict[str, str]) -> None:
    pod = nri.PodSandbox(annotations=annotations)
    assert wire.texts(pod.SerializeToString(), 6) == annotations


def test_nested_messages_are_read_and_absent_ones_are_empty() -> None:
    container = nri.Container()
    container.linux.resources.cpu.shares.value = 300
    encoded = container.SerializeToString()
    assert wire.integer(wire.message_at(encoded, 11, 3, 2, 1), 1) == 300
    assert wire.message_at(encoded, 11, 2, 2) == b""
    assert wire.text(encoded, 1) == ""


@pytest.mark.parametrize(
    "message",
    [b"\x80", b"\x80" * 12, b"\x0a\x05abc", b"\x0b", b"\x09\x01", b"\x0f"],
    ids=["half a key", "endless", "short text", "group", "short fixed", "unknown type"],
)
def test_other_bytes_are_an_error(message: bytes) -> None:
    with pytest.raises(ProtobufError):
        list(wire.fields(message))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_an_error(message: bytes) -> None:
    try:
        values = list(wire.fields(message))
    except ProtobufError:
        return
    assert sum(len(value) for _, value in values if isinstance(value, bytes)) <= len(message)


def test_a_field_of_another_type_is_an_error() -> None:
    with pytest.raises(ProtobufError, match="field 1 is a number"):
        wire.text(b"\x08\x01", 1)
    with pytest.raises(ProtobufError, match="field 1 is not a number"):
        wire.integer(b"\x0a\x00", 1)
