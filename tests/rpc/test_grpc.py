import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rpc import grpc, headers


@given(st.text())
def test_a_status_message_is_escaped_and_unescaped(text: str) -> None:
    raw = grpc.percent_encode(text)
    assert all(0x20 <= byte <= 0x7E for byte in raw)
    assert grpc.percent_decode(raw) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"plain", "plain"),
        (b"100%", "100%"),
        (b"%zz", "%zz"),
        (b"%4", "%4"),
        (b"%e2%82%ac", "\u20ac"),
        (b"%ff", "\ufffd"),
        (b"a%20b%25", "a b%"),
    ],
)
def test_a_malformed_status_message_stays_readable(raw: bytes, text: str) -> None:
    assert grpc.percent_decode(raw) == text


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        (0, b"1u"),
        (0.0005, b"500u"),
        (2, b"2000000u"),
        (99.0, b"99000000u"),
        (120, b"120000m"),
        (200_000, b"200000S"),
        (1e12, b"99999999S"),
    ],
)
def test_a_timeout_has_at_most_eight_digits(seconds: float, value: bytes) -> None:
    assert grpc.timeout_value(seconds) == value


@pytest.mark.parametrize("message", ["no", "", "caf\u00e9 100%", "x" * 127, "\u20ac" * 5_000])
def test_a_trailers_only_block_is_read_by_any_decoder(message: str) -> None:
    block = grpc.trailers_only(grpc.Code.FAILED_PRECONDITION, message)
    decoded = dict(headers.Decoder().decode(block))
    assert len(block) < 16_384
    assert decoded[b":status"] == b"200"
    assert decoded[b"grpc-status"] == b"9"
    text = grpc.percent_decode(decoded[b"grpc-message"])
    assert message.startswith(text)
    assert text == message or len(message) > 1_000


def test_gunzip_is_bounded() -> None:
    packed = gzip.compress(b"a" * 1_000)
    assert grpc.gunzip(packed, 1_000) == b"a" * 1_000
    for wrong in (packed[:-1], packed + b"x", b"no gzip", b""):
        with pytest.raises(grpc.MessageError):
            grpc.gunzip(wrong, 1_000)
    with pytest.raises(grpc.MessageError, match="999"):
        grpc.gunzip(packed, 999)


def test_a_code_without_a_name_is_named_by_its_number() -> None:
    assert str(grpc.RpcError(5, "no pod")) == "NOT_FOUND: no pod"
    assert grpc.code_name(99) == "CODE_99"
    assert grpc.RpcError(99, "").code == 99
