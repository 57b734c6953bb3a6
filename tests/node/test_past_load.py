"""The agent's answer about the last hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.node import past_load
from agent.usage.past import PastHour, PastLoad

HOUR = (
    b'{"schema_version":1,"hour":{"begin":60.0,"machine":{"cpus":[null,1.5]},'
    b'"numa_nodes":{"1":{}},"pools":[],"pods":{"u":{"cpu_pressure":[0.25]}}}}'
)


@pytest.mark.parametrize(
    ("reply", "hour"),
    [
        (
            HOUR,
            PastHour(
                60.0,
                PastLoad(cpus=(None, 1.5)),
                {1: PastLoad()},
                (),
                {"u": PastLoad(cpu_pressure=(0.25,))},
            ),
        ),
        (b'{"schema_version":1,"hour":null}', None),
        (HOUR[:-9], None),
        (HOUR.replace(b"1.5", b'"x"'), None),
        (b"", None),
    ],
)
def test_a_reply_has_the_hour_or_none(reply: bytes, hour: PastHour | None) -> None:
    assert past_load.decoded(reply) == hour


def test_without_an_agent_there_is_no_hour(tmp_path: Path) -> None:
    assert past_load.read("/", str(tmp_path)) is None
