import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.linux_resources import LinuxResources
from agent.model.notifications import (
    Created,
    Notification,
    NotificationError,
    PodAnnounced,
    PodFailed,
    SnapshotRequest,
    decode,
    encode,
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
texts = st.dictionaries(text, text, max_size=3)
sent = st.one_of(
    st.builds(PodAnnounced, text, text, text, texts, texts, text),
    st.builds(PodFailed, text),
    st.builds(
        Created,
        text,
        st.builds(
            LinuxResources, st.none() | text, st.none() | text, st.none() | st.integers(0, 9)
        ),
    ),
    st.builds(SnapshotRequest, st.booleans()),
)


@given(sent)
def test_notifications_are_encoded_and_decoded(notification: Notification) -> None:
    assert decode(encode(notification)) == notification


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
        b'{"type":"snapshot","more":' + b"[" * 100_000,
    ],
)
def test_invalid_datagram_is_refused(datagram: bytes) -> None:
    with pytest.raises(NotificationError, match="notification: "):
        decode(datagram)


def test_unknown_fields_are_ignored() -> None:
    assert decode(b'{"type":"snapshot","since":1}') == SnapshotRequest()


def test_an_error_does_not_quote_the_datagram() -> None:
    with pytest.raises(NotificationError) as raised:
        decode(b'{"type": "' + b"9" * 200_000 + b'"}')
    assert len(str(raised.value)) < 400
