"""The actions of the tour and its screen. Pods of each class are created and deleted, the agent is
killed, and another program changes a cpuset. Each action has a key; without keys, the actions run
one after the other."""

from __future__ import annotations

import abc
import errno
import math
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from agent.cli.screen import Screen, TerminalGoneError
from agent.model import audit
from agent.model.audit import AuditEvent, Record
from agent.model.cpu.topology import Topology
from agent.model.snapshot import Snapshot
from agent.view import format, history
from agent.view import machine as node

KEYS: Final = {
    "1": "LSE",
    "2": "LSR",
    "3": "LS",
    "4": "BE",
    "k": "kill -9",
    "d": "drift",
}
"""The action of each key: creates or deletes the pod of this class, or causes the fault."""
ACTIONS: Final = ((2.0, "1"), (3.0, "d"), (3.0, "k"), (4.0, "1"), (3.0, "2"), (4.0, "2"))
"""The actions of a tour without keys, as seconds before the action, and its key; repeated."""
_SHOWN: Final = frozenset(
    {
        AuditEvent.CPUS_ASSIGNED,
        AuditEvent.CPUS_CHANGED,
        AuditEvent.CPUS_RELEASED,
        AuditEvent.CLAIM_NOT_HONORED,
        AuditEvent.CONTAINER_REFUSED,
    }
)
_VIEW: Final = "t"
_FRAME_SECONDS: Final = 0.2
_STANDARD_INPUT: Final = 0
_ERASE: Final = "\x1b[K"
"""Before each row: it may be as long as the terminal is wide."""
_EVENT_LINES: Final = 8
_SMALL_LINES: Final = 30
"""A terminal with fewer lines shows only the machine, the pods and the events."""


class Tour(abc.ABC):
    """The pods of a tour, and its events with their reasons. A thread creates and deletes pods, one
    after the other, so that the screen shows each step. `automatic`: the actions run without
    keys."""

    def __init__(self) -> None:
        self.began = audit.stamp(time.time())
        self.automatic = True
        self._existing: set[str] = set()
        self._events: list[tuple[str, str]] = []
        self._worker = ThreadPoolExecutor(1)
        self._action: Future[None] | None = None
        self._next_action = 0
        self._next_action_at = time.monotonic()

    @abc.abstractmethod
    def create_pod(self, qos: str) -> bool:
        """Creates the pod of this class. Returns whether it exists, even if it does not run."""

    @abc.abstractmethod
    def delete_pod(self, qos: str) -> None:
        """Deletes the pod of this class."""

    @abc.abstractmethod
    def kill_agent(self) -> None: ...

    @abc.abstractmethod
    def drift(self) -> None:
        """Writes wrong CPUs to the cpuset of a container that shares CPUs, as another program."""

    @abc.abstractmethod
    def records(self) -> Iterable[Record]:
        """The records of the audit trail since `began`, by time."""

    @abc.abstractmethod
    def decisions(self) -> Snapshot | None:
        """The last decisions of the agent, None if there are none."""

    @abc.abstractmethod
    def notes(self, *, small: bool) -> tuple[Sequence[str], Sequence[str]]:
        """Lines above and below the machine. `small`: the terminal has room for only one."""

    def top_command(self) -> Sequence[str]:
        """The command `topolet top` for this tour; empty for none."""
        return ()

    def restart_ended(self) -> Iterable[str]:
        """Restarts the processes that have ended, unless another component does. Returns a line for
        each."""
        return ()

    def close(self) -> None:
        """Waits until no pod is being created or deleted."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def begin(self) -> None:
        """Starts an LS and a BE pod."""
        for qos in ("LS", "BE"):
            self._create_or_delete(qos)
        self._next_action_at = time.monotonic() + ACTIONS[0][0]

    def press(self, key: str) -> None:
        """Begins the action of a key. The key `a` starts and stops the automatic actions."""
        if key == "a":
            self.automatic = not self.automatic
            self._next_action_at = time.monotonic()
        elif key == "k":
            self.kill_agent()
        elif key == "d":
            self.drift()
        elif key in KEYS and self._action and not self._action.done():
            self.add("the last pod is still being created or deleted")
        elif key in KEYS:
            self._action = self._worker.submit(self._create_or_delete, KEYS[key])

    def advance(self) -> None:
        """Restarts ended processes, and begins the next action when it is due."""
        for event in self.restart_ended():
            self.add(event)
        if self._action and self._action.done():
            self._action.result()
        if self.automatic and time.monotonic() >= self._next_action_at:
            self.press(ACTIONS[self._next_action][1])
            self._next_action = (self._next_action + 1) % len(ACTIONS)
            self._next_action_at = time.monotonic() + ACTIONS[self._next_action][0]

    def add(self, text: str) -> None:
        """Adds an event with the current time."""
        self._events.append((audit.stamp(time.time()), text))

    def event_lines(self) -> Iterator[str]:
        """Lines with the events and the audit records, by time."""
        lines = [(each.time, _sentence(each)) for each in self.records() if is_shown(each)]
        for stamp, text in sorted([*lines, *self._events], key=lambda each: each[0]):
            yield f"{history.local(stamp):%H:%M:%S}  {text}"

    def _create_or_delete(self, qos: str) -> None:
        if qos in self._existing:
            self._existing.discard(qos)
            self.delete_pod(qos)
        elif self.create_pod(qos):
            self._existing.add(qos)


def is_shown(record: Record) -> bool:
    if record.event == AuditEvent.CGROUP_WRITTEN:
        return record.field == "cpuset.cpus" and bool(record.container)
    return record.event in _SHOWN


def _sentence(record: Record) -> str:
    text = history.sentence(record)
    return f"{record.title}: {text[:1].lower()}{text[1:]}"


def render(tour: Tour, topology: Topology, width: int, height: int, *, colour: bool) -> str:
    """The whole screen as text, with the last events that fit."""
    above, below = (
        [line for each in texts for line in textwrap.wrap(each, width, break_on_hyphens=False)]
        for texts in tour.notes(small=height < _SMALL_LINES)
    )
    events = [
        line
        for each in tour.event_lines()
        for line in textwrap.wrap(each, width, subsequent_indent=" " * 10)
    ]
    body, snapshot = "", tour.decisions()
    if snapshot:
        room = height - len(above) - len(below) - min(len(events), _EVENT_LINES) - 5
        body = node.draw_node(topology, snapshot, width, colour=colour, height=room)
    upper = "\n".join([*above, "", body, *below, *([""] if below else [])])
    room = max(height - upper.count("\n") - 3, 1)
    keys = " · ".join(f"{key} {what}" for key, what in KEYS.items())
    view = f" · {_VIEW} top" if tour.top_command() else ""
    foot = f"{keys} · a {'stop' if tour.automatic else 'play'}{view} · q end"
    return "\n".join([upper, *events[-room:], foot[:width]]) + "\n"


def show(tour: Tour, topology: Topology, seconds: float | None) -> None:
    """Shows the tour until `seconds` have passed, Ctrl-C, or the key `q`. Raises OSError if the
    output can't be written, or is closed."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    try:
        tour.automatic = seconds is not None or not (sys.stdin.isatty() and sys.stdout.isatty())
        tour.begin()
        if sys.stdout.isatty():
            while _shown_until(tour, topology, end) == _VIEW:
                subprocess.run(tour.top_command(), check=False)
        else:
            _print_until(tour, topology, end)
    finally:
        tour.close()


def _shown_until(tour: Tour, topology: Topology, end: float) -> str:
    """Shows the tour until its end, or until `q` or the key of `topolet top`. Returns the key, ""
    at the end."""
    colour = not os.environ.get("NO_COLOR")
    try:
        with Screen(_STANDARD_INPUT, sys.stdout.fileno(), sys.stdout.encoding) as screen:
            while time.monotonic() < end and not screen.ended:
                tour.advance()
                columns, lines = screen.size
                text = render(tour, topology, columns, lines, colour=colour)
                rows = format.encodable(text).splitlines()[:lines]
                rows += [""] * (lines - len(rows))
                screen.show([f"{_ERASE}{row}" for row in rows])
                for key in screen.keys(_FRAME_SECONDS):
                    if key == "q" or (key == _VIEW and tour.top_command()):
                        return key
                    tour.press(key)
    except TerminalGoneError as error:
        raise BrokenPipeError(errno.EPIPE, str(error)) from None
    return ""


def _print_until(tour: Tour, topology: Topology, end: float) -> None:
    """Prints each picture that differs from the one before."""
    printed = ""
    while time.monotonic() < end:
        tour.advance()
        size = shutil.get_terminal_size((100, 50))
        text = render(tour, topology, size.columns, size.lines, colour=False)
        if text != printed:
            print(format.encodable(text), flush=True)
            printed = text
        time.sleep(_FRAME_SECONDS)
