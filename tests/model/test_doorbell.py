import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import doorbell
from agent.model.doorbell import Asked, Created, DoorbellError, Look, PodComes, PodFailed, Ring

text = st.text(st.characters(codec="utf-8"), max_size=20)
texts = st.dictionaries(text, text, max_size=3)
rings = st.one_of(
    st.builds(PodComes, text, text, text, texts, texts, text),
    st.builds(PodFailed, text),
    st.builds(Created, text, st.builds(Asked, text, text, st.integers(0, 9), st.integers(-1, 9))),
    st.just(Look()),
)


@given(rings)
def test_what_is_rung_is_heard(ring: Ring) -> None:
    assert doorbell.decode(doorbell.encode(ring)) == ring


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"ring",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"fire"}',
        b'{"type":"failed"}',
        b'{"type":"failed","uid":7}',
        b'{"type":"failed","uid":"\xff"}',
        b'{"type":"look","more":' + b"[" * 100_000,
    ],
)
def test_hostile_datagram_is_refused(datagram: bytes) -> None:
    with pytest.raises(DoorbellError, match="doorbell: "):
        doorbell.decode(datagram)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_ring_or_refused(datagram: bytes) -> None:
    with contextlib.suppress(DoorbellError):
        assert doorbell.decode(datagram) is not None


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert doorbell.decode(b'{"type":"look","since":1}') == Look()
