"""JSON lines between the agent and the NVML child process."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover import gpumessages
from agent.discover.gpumessages import Answer, End, Event, Lines, Query, Result, line
from agent.model.devices.gpus import GpuEvent, GpuInventory, GpuReport, SilentGpu

MESSAGES: list[Answer] = [
    Event(GpuEvent("GPU-1", 79, 3)),
    End("DriverMismatch", 'a "text"\nof two lines\0'),
    Result(7, GpuReport(inventory=GpuInventory("550", silent=(SilentGpu(1, "GpuLost"),)))),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.data())
def test_messages_are_reassembled_however_they_are_split(
    messages: list[Answer], data: st.DataObject
) -> None:
    sent = b"".join(map(line, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    lines, found = Lines(), []
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += lines.feed(sent[begin:end])
    assert [msgspec.json.decode(each, type=Answer) for each in found] == messages


def test_too_long_a_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpumessages, "MAX_BYTES", 100)
    lines = Lines()
    assert lines.feed(b"x" * 100) == []
    with pytest.raises(ValueError, match="more than 100 bytes"):
        lines.feed(b"x")


def test_a_query_is_not_decoded_as_an_answer() -> None:
    with pytest.raises(ValueError, match="query"):
        msgspec.json.decode(line(Query(1)), type=Answer)
