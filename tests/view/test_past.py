"""The last hour of load and pressure as text."""

from __future__ import annotations

import datetime

import pytest

from agent.model import audit
from agent.model.audit import Record
from agent.usage.past import PastHour, PastLoad, PastPool, Values
from agent.view import past
from agent.view.history import as_text, cpu_changes, pod_histories
from agent.view.past import WaitedFor
from agent.view.terminal import Ability

FULL, ASCII = Ability(), Ability(unicode=False)


@pytest.mark.parametrize(
    ("load", "wait", "text"),
    [
        (PastLoad(), None, "None"),
        (PastLoad(cpu_pressure=(0.5, 0.25, None)), WaitedFor("cpu", 0.25), "cpu 25%"),
        (PastLoad(cpu_pressure=(0.0,), io_pressure=(0.01,)), WaitedFor("io", 0.01), "io 1%"),
        (
            PastLoad(cpu_pressure=(0.9,), throttled_cpus=(1.5,)),
            WaitedFor("quota", 1.5),
            "quota 1.50",
        ),
        (PastLoad(memory_pressure=(1.0,)), WaitedFor("memory", 1.0), "memory 100%"),
    ],
)
def test_what_is_waited_for_most_in_the_newest_minute(
    load: PastLoad, wait: WaitedFor | None, text: str
) -> None:
    assert past.most_waited(load) == wait
    assert str(wait) == text


@pytest.mark.parametrize(
    ("values", "columns", "highest"),
    [
        ((1.0, 2.0, None, None, 3.0, None), 3, [2.0, None, 3.0]),
        ((1.0, 2.0), 5, [1.0, 2.0]),
        ((), 5, []),
        ((1.0, 2.0), 0, []),
    ],
)
def test_a_column_has_the_highest_value_of_its_minutes(
    values: Values, columns: int, highest: list[float | None]
) -> None:
    assert past.over_columns(values, columns) == highest


def test_a_chart_is_scaled_by_its_highest_value_unless_that_is_small() -> None:
    rising = tuple(tenth / 10 for tenth in range(1, 11))
    assert past.line_chart(rising, 10, FULL) == "▁▂▂▃▄▅▆▆▇█"
    assert past.line_chart(rising, 10, ASCII) == "1234567899"
    assert past.line_chart(rising, 10, FULL, most=2.0) == "▁▁▁▂▂▂▃▃▄▄"
    assert past.line_chart((0.01,) * 10, 10, FULL) == "▁" * 10
    assert past.line_chart((*((None,) * 9), 5.0), 10, FULL) == " " * 9 + "█"
    assert past.line_chart(rising, 9, FULL) == "", "there is no room"
    assert past.line_chart((None,) * 10, 10, FULL) == ""


def test_the_pools_of_a_kind_have_one_load_and_a_minute_without_cpus_has_none() -> None:
    hour = PastHour(
        0.0,
        pools=(
            PastPool("LS", 0, PastLoad(cpus=(1.0, 0.0, None), of_cpus=(2.0, 0.0, 2.0))),
            PastPool("LS", 1, PastLoad(cpus=(2.0, 0.0, 3.0), of_cpus=(2.0, 0.0, 2.0))),
            PastPool("BE", 1, PastLoad(cpus=(9.0,), of_cpus=(9.0,))),
        ),
    )
    assert past.of_pools(hour, "LS") == (0.75, None, 0.75)
    assert past.of_pools(hour, "own") == ()


def test_each_known_quantity_has_a_row() -> None:
    load = PastLoad(
        cpus=(*((1.0,) * 10), 2.0, 0.5),
        memory_bytes=(3 * 1024.0**3,) * 12,
        throttled_cpus=(0.0,) * 12,
    )
    assert list(past.rows(load, 60, ASCII)) == [
        ("CPUs used       ", "0.50, most 2.00      ", "555555555592"),
        ("memory          ", "3 GiB, most 3 GiB    ", "999999999999"),
        ("quota took CPUs ", "0.00, most 0.00      ", "............"),
    ]
    assert {chart for _, _, chart in past.rows(load, 48, ASCII)} == {""}


BEGIN = 1_700_000_000.0
"""Of the hour."""


def test_a_change_of_cpus_is_seen_with_the_load_before_and_after() -> None:
    def record(minute: float, event: str, **values: str) -> Record:
        stamp = audit.stamp(BEGIN + 60 * minute)
        return Record(1, stamp, "", event, "default", "web", "u", **values)  # type: ignore[arg-type]

    records = [
        record(-1, "CPUsAssigned", after="0-3"),
        record(30.1, "CPUsChanged", before="0-3", after="0"),
        record(30.2, "CgroupWritten", field="cpuset.cpus", container="main", after="0"),
        record(30.3, "CgroupWritten", field="cpu.max", after="max"),
        record(59.5, "CPUsReleased", before="0"),
    ]
    hour = PastHour(
        BEGIN,
        pods={
            "u": PastLoad(
                cpus=(*((4.0,) * 30), 2.0, *((1.0,) * 29)),
                cpu_pressure=(*((None,) * 28), 0.02, 0.04, 0.1, *((0.5,) * 29)),
            )
        },
    )
    (history,) = pod_histories(records)
    beside = past.beside(history, cpu_changes(records)["u"], hour, 79, ASCII, datetime.UTC)
    assert beside is not None
    assert as_text([history], datetime.UTC, {"u": beside}).splitlines() == [
        "Pod default/web, uid u",
        "  Load and pressure since 22:13+0000",
        "    CPUs used        1.00, most 4.00       999999999999999999522222222222222222",
        "    waits for CPU    50%, most 50%                          .299999999999999999",
        "    CPUs changed                                             ^                ^",
        "  Tuesday, 2023-11-14",
        "    22:12:20.000+0000  The pod owns CPUs 0-3.",
        "    22:43:26.000+0000  The pod owns CPUs 0 instead of 0-3.",
        "    22:43:32.000+0000  Container main moves to CPUs 0.",
        "      5 minutes before -> after: CPUs used 4.00 -> 1.00, waits for CPU 3% -> 50%",
        "    22:43:38.000+0000  The file cpu.max of the pod's cgroup becomes max.",
        "    23:12:50.000+0000  The pod does not own CPUs 0 any more.",
        "      5 minutes before -> after: CPUs used 1.00 -> -, waits for CPU 50% -> -",
    ]
    assert past.beside(history, (), PastHour(BEGIN), 79, ASCII) is None
