"""Other processes that change what the agent has set in cgroups: single changes happen, for example
when a runtime restarts; REPEATED changes of one file within the time that is looked at mean that
another program decides the same values."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from agent.model.audit import Record
from agent.telemetry.metrics import AgentMetrics, ForeignChange

LASTING_SECONDS: Final = 60.0
REPEATED: Final = 3
_MOST: Final = 1024
_KINDS: Final = {"cpuset.cpus": ForeignChange.CPUS, "cpuset.mems": ForeignChange.MEMORY_NODES}


class OtherWriters:
    """Counts the changes by other processes, and knows those of the last LASTING_SECONDS."""

    def __init__(self, metrics: AgentMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._changes: deque[tuple[float, Record]] = deque(maxlen=_MOST)

    def changed(self, record: Record) -> None:
        """Counts the change that the agent's write in `record` undid."""
        self._metrics.foreign_changes(_KINDS.get(record.field, ForeignChange.LIMIT))
        self._changes.append((self._clock(), record))

    def lasting(self) -> tuple[str, ...]:
        """The files that are changed again and again, as sentences without numbers."""
        since = self._clock() - LASTING_SECONDS
        while self._changes and self._changes[0][0] < since:
            self._changes.popleft()
        return tuple(
            f"another process keeps changing {file}"
            for file in repeated(record for _, record in self._changes)
        )


def repeated(changes: Iterable[Record]) -> dict[str, int]:
    """The files with REPEATED changes, with pod and container, and the number of changes of each,
    sorted."""
    numbers = Counter(_file(each) for each in changes)
    return {file: number for file, number in sorted(numbers.items()) if number >= REPEATED}


def _file(record: Record) -> str:
    owner = " ".join(filter(None, (record.title, record.container))) or record.group
    return f"{record.field} of {owner}"
