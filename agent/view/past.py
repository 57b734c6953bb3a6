"""The last hour of load and pressure as text: numbers, and charts of one line."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from agent.usage.past import MINUTE_SECONDS, MINUTES, NOTHING, PastHour, PastLoad, Values
from agent.view import terminal
from agent.view.format import size
from agent.view.history import HourOfPod, PodHistory, local
from agent.view.terminal import Ability

_LEAST_PEAK: Final = 0.1
"""A chart is scaled by its highest value, at least by a tenth of a CPU or of the time."""
_LEAST_COLUMNS: Final = 10
"""A narrower chart is left out."""


class WaitedFor(msgspec.Struct, frozen=True):
    """What a part of the node waits for."""

    cause: str
    """One of cpu, memory, io and quota."""
    amount: float
    """The part of time, from 0 to 1; of a quota the number of CPUs that it took away."""

    def __str__(self) -> str:
        return f"{self.cause} {_cpus(self.amount) if self.cause == 'quota' else _part(self.amount)}"


def _cpus(amount: float) -> str:
    return f"{amount:.2f}"


def _part(amount: float) -> str:
    return f"{amount:.0%}"


def last(values: Values) -> float | None:
    """The newest value that is known; None without one."""
    return next((value for value in reversed(values) if value is not None), None)


def most_waited(load: PastLoad) -> WaitedFor | None:
    """What the part of the node waits for most in the newest minute; None if that is not known."""
    waits = [
        WaitedFor(cause, amount)
        for cause, values in (
            ("cpu", load.cpu_pressure),
            ("memory", load.memory_pressure),
            ("io", load.io_pressure),
            ("quota", load.throttled_cpus),
        )
        if (amount := last(values)) is not None
    ]
    return max(waits, key=lambda wait: wait.amount, default=None)


def of_pod(hour: PastHour | None, uid: str) -> PastLoad:
    """The load of the pod; NOTHING if it is not known."""
    return hour.pods.get(uid, NOTHING) if hour else NOTHING


def of_pools(hour: PastHour, kind: str) -> Values:
    """The part of the CPUs of all pools of a kind that was in use, from 0 to 1."""
    loads = [pool.load for pool in hour.pools if pool.kind == kind]
    used, of_cpus = (
        [sum(value or 0.0 for value in minute) for minute in zip(*values, strict=False)]
        for values in ([load.cpus for load in loads], [load.of_cpus for load in loads])
    )
    return tuple(
        min(cpus / of, 1.0) if of else None for cpus, of in zip(used, of_cpus, strict=False)
    )


def over_columns(values: Values, columns: int) -> list[float | None]:
    """The highest value of each part of the hour."""
    columns = min(columns, len(values))
    edges = [len(values) * column // columns for column in range(columns + 1)] if columns else []
    return [
        max((value for value in values[begin:end] if value is not None), default=None)
        for begin, end in pairwise(edges)
    ]


def line_chart(values: Values, columns: int, ability: Ability, most: float | None = None) -> str:
    """A line that draws the hour in at most so many columns. It is empty without values or room.

    `most`: the value of a full column; None stands for the highest value."""
    if columns < _LEAST_COLUMNS or last(values) is None:
        return ""
    highest = over_columns(values, columns)
    most = most or max(_LEAST_PEAK, *(value for value in highest if value is not None))
    scaled = [None if value is None else value / most for value in highest]
    return terminal.chart(scaled, 1, ability)[0]


_SHOWN: Final[Sequence[tuple[str, str, Callable[[float], str]]]] = (
    ("CPUs used", "cpus", _cpus),
    ("memory", "memory_bytes", lambda amount: size(round(amount))),
    ("waits for CPU", "cpu_pressure", _part),
    ("waits for memory", "memory_pressure", _part),
    ("waits for io", "io_pressure", _part),
    ("quota took CPUs", "throttled_cpus", _cpus),
)
_NAME_COLUMNS: Final = max(len(name) for name, _, _ in _SHOWN)
_NUMBERS_COLUMNS: Final = len("999 MiB, most 999 MiB")


def rows(load: PastLoad, columns: int, ability: Ability) -> Iterator[tuple[str, str, str]]:
    """Of each quantity that is known: its name, its newest and its highest value, and its chart.
    Names and numbers have a fixed width.

    `columns`: the width of the whole row."""
    for name, quantity, written in _SHOWN:
        values: Values = getattr(load, quantity)
        newest = last(values)
        if newest is not None:
            highest = max(value for value in values if value is not None)
            numbers = f"{written(newest)}, most {written(highest)}".ljust(_NUMBERS_COLUMNS)
            room = columns - _NAME_COLUMNS - _NUMBERS_COLUMNS - 2
            yield name.ljust(_NAME_COLUMNS), numbers, line_chart(values, room, ability)


def beside(
    history: PodHistory,
    changes: Collection[str],
    hour: PastHour,
    columns: int,
    ability: Ability,
    timezone: datetime.tzinfo | None = None,
) -> HourOfPod | None:
    """The last hour of a pod beside its history; None if it is not known.

    `changes`: the times at which its CPUs changed.
    `columns`: the width of a line.
    `timezone`: None for the local one."""
    load = of_pod(hour, history.uid)
    shown = list(rows(load, columns - _INDENT, ability))
    if not shown:
        return None
    # Of the changes of one minute, the last one has the note.
    by_minute = {
        minute: stamp
        for stamp, _ in history.sentences
        if stamp in changes and 0 <= (minute := _minute(hour, stamp)) < MINUTES
    }
    begin = datetime.datetime.fromtimestamp(hour.begin, datetime.UTC).astimezone(timezone)
    lines = [f"Load and pressure since {begin:%H:%M%z}"]
    lines += [f"  {name} {numbers} {chart}".rstrip() for name, numbers, chart in shown]
    width = len(shown[0][2])
    if by_minute and width:
        places = {((minute + 1) * width - 1) // MINUTES for minute in by_minute}
        marks = "".join("^" if place in places else " " for place in range(max(places) + 1))
        lines.append(f"  {'CPUs changed':{_NAME_COLUMNS + _NUMBERS_COLUMNS + 2}}{marks}")
    notes = {stamp: _around(load, minute) for minute, stamp in by_minute.items()}
    return HourOfPod(tuple(lines), notes)


def _minute(hour: PastHour, stamp: str) -> int:
    return int((local(stamp).timestamp() - hour.begin) // MINUTE_SECONDS)


_AROUND_MINUTES: Final = 5
_INDENT: Final = 4


def _around(load: PastLoad, minute: int) -> str:
    """What the pod used and waited for in the minutes before and after this one."""
    texts = []
    for name, quantity, written in _SHOWN:
        values: Values = getattr(load, quantity)
        before = _mean(values[max(minute - _AROUND_MINUTES, 0) : minute])
        after = _mean(values[minute + 1 : minute + 1 + _AROUND_MINUTES])
        if quantity != "memory_bytes" and (before is not None or after is not None):
            parts = ("-" if value is None else written(value) for value in (before, after))
            texts.append(f"{name} {' -> '.join(parts)}")
    return f"{_AROUND_MINUTES} minutes before -> after: {', '.join(texts)}" if texts else ""


def _mean(values: Values) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
