"""The agent's end of one child that has NVML in it; every answer has a deadline."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.discover.gpumessages import BUFFER_BYTES, Answer, GpuSeen, Lines, Look, Over, Told, line
from agent.model.gpus import CHILD_ENDED, NO_PROCESS, GpuEvent, GpuSight

_END_SECONDS: Final = 1.0


class SessionError(Exception):
    """The session is over; `fault` as a Condition's reason."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


class GpuSession:
    """Starts the child. One thread uses and closes it; the child ends with that thread. `events`:
    those that came in between. After a SessionError only `close` is allowed."""

    def __init__(self, driver_root: str = "", environment: Mapping[str, str] | None = None) -> None:
        words = [sys.executable, "-P", "-m", "agent.discover.gpuchild", driver_root]
        try:
            ours, theirs = socket.socketpair()
            with theirs, contextlib.ExitStack() as undo:
                undo.enter_context(ours)
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment
                )
                undo.pop_all()
        except OSError as error:
            raise SessionError(NO_PROCESS, f"can't start {words[0]}: {error}") from None
        self._socket = ours
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._lines = Lines()
        self._decoder = msgspec.json.Decoder(Answer)
        self._asked = 0
        self.events: list[GpuEvent] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def look(self, seconds: float) -> GpuSight:
        """Requests a report. Raises SessionError, `DriverHung` without an answer in time."""
        self._asked += 1
        # Of one that went, reading tells why it did.
        with contextlib.suppress(OSError):
            self._socket.send(line(Look(self._asked)))
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for answer in self._answers(left):
                if isinstance(answer, GpuSeen) and answer.number == self._asked:
                    return answer.sight
        raise SessionError("DriverHung", f"NVML gave no answer within {seconds:g} s")

    def listen(self) -> None:
        """Takes in what has come. Raises SessionError."""
        self._answers(0)

    def interrupt(self) -> None:
        """From another thread: what waits for an answer gets a SessionError."""
        self._process.kill()

    def close(self) -> bool:
        """Whether the child ended; one that hangs in the kernel does so when that lets it go."""
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
        """The answers within the time; events go to `events`."""
        if not self._poll.poll(seconds * 1000):
            return []
        try:
            received = self._socket.recv(BUFFER_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            raise SessionError(CHILD_ENDED, "the process that asks NVML ended unexpectedly")
        try:
            answers: list[Answer] = [
                self._decoder.decode(each) for each in self._lines.feed(received)
            ]
        except ValueError as error:
            raise SessionError(CHILD_ENDED, f"no message from the child: {error}") from None
        for answer in answers:
            if isinstance(answer, Told):
                self.events.append(answer.event)
            elif isinstance(answer, Over):
                raise SessionError(answer.fault, answer.message)
        return answers
