from __future__ import annotations

import datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.model import audit
from agent.model.audit import AuditEvent, Record
from agent.model.bounds import REASON_CHARACTERS

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def written(record: Record) -> Record:
    return msgspec.structs.replace(record, version=audit.VERSION, time=audit.stamp(0), process="p")


@given(st.builds(Record, pod=TEXTS, before=TEXTS, after=st.none() | TEXTS, message=TEXTS))
def test_a_record_is_one_line_and_is_decoded_to_the_same_record(record: Record) -> None:
    line = audit.encode(written(record))
    assert line.count(b"\n") == 1
    assert audit.decode(line) == written(record)


@given(st.binary(max_size=200))
def test_a_line_that_is_not_a_record_is_none(line: bytes) -> None:
    audit.decode(line)
    assert audit.decode(b'{"pod": "x"}') is None
    assert audit.decode(audit.encode(written(Record()))[:-9]) is None


def test_bytes_that_are_not_utf8_are_replaced_and_messages_are_truncated() -> None:
    group = b"/a\xff".decode(errors="surrogateescape")
    line = audit.encode(written(Record(group=group, message="x" * 10_000)))
    read = audit.decode(line)
    assert read is not None
    assert read.group == "/a?"
    assert len(read.message) == REASON_CHARACTERS


def test_later_versions_are_read() -> None:
    line = b'{"version":2,"time":"2031-01-01T00:00:00.000000Z","event":"New","more":[1]}'
    record = audit.decode(line)
    assert record is not None
    assert (record.version, record.event) == (2, "New")


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_times_compare_as_texts(one: float, other: float) -> None:
    first, second = audit.stamp(one), audit.stamp(other)
    assert (first < second) == (round(one * 1e6) < round(other * 1e6))
    assert abs(datetime.datetime.fromisoformat(first).timestamp() - one) < 1e-5


def test_the_title_of_a_pod() -> None:
    record = audit.of_pod("default/web", AuditEvent.POD_DECIDED, uid="u")
    assert (record.namespace, record.pod, record.title) == ("default", "web", "default/web")
    assert Record().title == ""
