"""The agent's side of the child process with NVML: a session whose answers have deadlines, and a
thread that starts the child again when it ends, and keeps its reports."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.discover.gpumessages import BUFFER_BYTES, Answer, End, Event, Lines, Query, Result, line
from agent.model.devices.gpus import CHILD_ENDED, CLOSED, NO_ANSWER, NO_PROCESS, GpuEvent, GpuReport

_END_SECONDS: Final = 1.0


class SessionError(Exception):
    """The session has ended.

    `fault`: the reason, in the form of a Condition's."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


class GpuSession:
    """Starts the child. One thread uses and closes the session; the kernel ends the child with that
    thread. After a SessionError only `close` is allowed."""

    def __init__(self, driver_root: str = "", environment: Mapping[str, str] | None = None) -> None:
        words = [sys.executable, "-P", "-m", "agent.discover.gpuchild", driver_root]
        try:
            own_end, child_end = socket.socketpair()
            with child_end, contextlib.ExitStack() as undo:
                undo.enter_context(own_end)
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    words, stdin=child_end.fileno(), stdout=subprocess.DEVNULL, env=environment
                )
                undo.pop_all()
        except OSError as error:
            raise SessionError(NO_PROCESS, f"can't start {words[0]}: {error}") from None
        self._socket = own_end
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(own_end, select.POLLIN)
        self._lines = Lines()
        self._decoder = msgspec.json.Decoder(Answer)
        self._query_number = 0
        self.events: list[GpuEvent] = []
        """The events that were received and not removed yet."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def report(self, timeout_seconds: float) -> GpuReport:
        """Requests a report. Raises SessionError; its fault is `DriverHung` without an answer in
        time."""
        self._query_number += 1
        # If the child has ended, the read below finds the reason.
        with contextlib.suppress(OSError):
            self._socket.send(line(Query(self._query_number)))
        deadline = time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            for answer in self._answers(left):
                if isinstance(answer, Result) and answer.number == self._query_number:
                    return answer.report
        raise SessionError("DriverHung", f"NVML did not answer within {timeout_seconds:g} s")

    def read_messages(self) -> None:
        """Reads the received messages. Raises SessionError."""
        self._answers(0)

    def interrupt(self) -> None:
        """From another thread: kills the child, which ends a wait with SessionError."""
        self._process.kill()

    def close(self) -> bool:
        """Kills the child. Returns whether it has ended: one that hangs in a system call ends after
        that call."""
        self._socket.close()
        self._process.kill()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ended(self) -> bool:
        return self._process.poll() is not None

    def _answers(self, seconds: float) -> list[Answer]:
        """The messages received within the time. Events are added to `events`."""
        if not self._poll.poll(seconds * 1000):
            return []
        try:
            received = self._socket.recv(BUFFER_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            raise SessionError(CHILD_ENDED, "the process that calls NVML ended unexpectedly")
        try:
            answers: list[Answer] = [
                self._decoder.decode(line) for line in self._lines.feed(received)
            ]
        except ValueError as error:
            raise SessionError(CHILD_ENDED, f"invalid message of the child: {error}") from None
        for answer in answers:
            if isinstance(answer, Event):
                self.events.append(answer.event)
            elif isinstance(answer, End):
                raise SessionError(answer.fault, answer.message)
        return answers


class GpuTiming(msgspec.Struct, frozen=True):
    """How often the driver is asked, and how long it may take."""

    period_seconds: float = 10.0
    """From one report to the next."""
    least_seconds: float = 1.0
    """From one report to the next after an event."""
    answer_seconds: float = 30.0
    """The longest wait for an answer."""
    first_answer_seconds: float = 120.0
    """The limit for the first answer, before which the driver may have to wake every card."""
    retry_seconds: float = 1.0
    """The time until the child is started again, doubled each time up to `max_retry_seconds`."""
    max_retry_seconds: float = 300.0


TIMING: Final = GpuTiming()

_KEPT: Final = 4
"""The most entries that wait for `take`; later ones are merged into the last."""

_MAX_ENDS: Final = 3
"""After this many ends of a child without an answer, the driver's library counts as the cause. A
single end may have another cause, such as a lack of memory."""


class GpuNews(msgspec.Struct, frozen=True):
    """Events, and the report that followed them, None if there is none yet."""

    events: tuple[GpuEvent, ...]
    report: GpuReport | None


class GpuWatcher:
    """Runs the child on a thread of its own, and keeps its reports and events for `take`.

    `news`: called from that thread after each new entry; it must not block."""

    def __init__(
        self,
        news: Callable[[], None],
        driver_root: str = "",
        timing: GpuTiming = TIMING,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._news = news
        self._driver_root = driver_root
        self._timing = timing
        self._environment = environment
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._released = False
        self._session: GpuSession | None = None
        self._ends = 0
        self._stuck: GpuSession | None = None
        self._lock = threading.Lock()
        self._pending: list[GpuNews] = []
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and the child unless it hangs in a system call."""
        with self._lock:
            self._stopping = True
            if self._session is not None:
                self._session.interrupt()
        self.request_report()
        self._thread.join()
        os.close(self._wake)

    def release(self) -> None:
        """Ends the child, so that the driver can be unloaded and cards can be reset. A report with
        the fault `LetGo` confirms it. The next child starts after `resume`."""
        with self._lock:
            self._released = True
            if self._session is not None:
                self._session.interrupt()
        self.request_report()

    def resume(self) -> None:
        self._released = False
        self.request_report()

    def request_report(self) -> None:
        """Requests a report now, for example after a uevent. Also ends the pause before the child
        is started again."""
        os.eventfd_write(self._wake, 1)

    def take(self) -> tuple[GpuNews, ...]:
        """The entries since the last call, in the order of their arrival."""
        with self._lock:
            news, self._pending = tuple(self._pending), []
        return news

    def _run(self) -> None:
        pause, most, least = 0.0, self._timing.max_retry_seconds, self._timing.retry_seconds
        while not self._stopping:
            if self._stuck is not None and not self._stuck.ended():
                # No second child while one hangs in the kernel.
                self._sleep(pause)
            elif self._released:
                self._add(GpuReport(CLOSED, "the driver was released on request"))
                while self._released and not self._stopping:
                    self._sleep(None)
            else:
                reported = self._serve()
                pause = least if reported else min(max(2 * pause, least), most)
                # The wake-up by `stop` or `release` may have been read during the session.
                if not self._stopping and not self._released:
                    self._sleep(pause)

    def _serve(self) -> bool:
        """Runs one child from its start to its end. Returns whether it made a report."""
        session, reported = None, False
        try:
            session = self._started()
            self._add(session.report(self._timing.first_answer_seconds))
            reported = True
            self._ends = 0
            self._watch(session)
        except SessionError as error:
            if session is not None:
                self._add_events(session)
            if not self._stopping and not self._released:
                self._add(self._report_of(error))
        if session is not None:
            with self._lock:
                self._session = None
            self._stuck = None if session.close() else session
        return reported

    def _report_of(self, error: SessionError) -> GpuReport:
        self._ends = self._ends + 1 if error.fault == CHILD_ENDED else 0
        if self._ends < _MAX_ENDS:
            return GpuReport(error.fault, error.message)
        return GpuReport(NO_ANSWER, "the process that calls NVML ends repeatedly")

    def _started(self) -> GpuSession:
        session = GpuSession(self._driver_root, self._environment)
        with self._lock:
            self._session = session
            if self._stopping or self._released:
                session.interrupt()
        return session

    def _watch(self, session: GpuSession) -> None:
        """Adds the reports and events of a session until its end. Raises SessionError."""
        reported_at = time.monotonic()
        due = reported_at + self._timing.period_seconds
        poll = select.poll()
        poll.register(session, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stopping and not self._released:
            # Events received together with an answer are no longer in the socket.
            if not session.events:
                left = max(0.0, due - time.monotonic())
                ready = {fd for fd, _ in poll.poll(left * 1000)}
                if session.fileno() in ready:
                    session.read_messages()
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    due = reported_at
            if self._add_events(session):
                due = min(due, reported_at + self._timing.least_seconds)
            if time.monotonic() >= due:
                self._add(session.report(self._timing.answer_seconds))
                reported_at = time.monotonic()
                due = reported_at + self._timing.period_seconds

    def _add_events(self, session: GpuSession) -> bool:
        events, session.events = session.events, []
        if events:
            with self._lock:
                before = self._open().events
                # A failing card can repeat one event thousands of times.
                self._pending.append(GpuNews(tuple(dict.fromkeys([*before, *events])), None))
            self._news()
        return bool(events)

    def _add(self, report: GpuReport) -> None:
        with self._lock:
            self._pending.append(GpuNews(self._open().events, report))
        self._news()

    def _open(self) -> GpuNews:
        """The entry that a new one is merged with: removes and returns the last entry if it has no
        report yet, or if _KEPT entries wait; otherwise an empty one."""
        if self._pending and (self._pending[-1].report is None or len(self._pending) >= _KEPT):
            return self._pending.pop()
        return GpuNews((), None)

    def _sleep(self, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(None if seconds is None else seconds * 1000):
            os.eventfd_read(self._wake)
