"""What the guard says: lines of its log, records of the audit trail, and its status for the agent.

Their formats are those of `agent.telemetry.logs`, `agent.model.audit` and `agent.node.nri_guard`.
"""

from __future__ import annotations

import fcntl
import os
import time

from agent.guard import LOCK
from agent.guard.json import encoded, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from agent.guard.request import ValidatedContainer

PROCESS: Final = "nri-guard"
_AUDIT: Final = "audit"
_MOST_BYTES: Final = 1 << 20
"""An audit file has at most so many. The guard keeps two files."""
_LOCK_SECONDS: Final = 3.0
_MESSAGE_CHARACTERS: Final = 300
_UNQUOTED: Final = ("time", "level")


class GuardRunsError(RuntimeError):
    """Another guard runs; the text names the file."""


class Records:
    """The records of one guard. `json`: whether lines of the log are JSON, otherwise logfmt."""

    def __init__(self, state_dir: str, *, json: bool) -> None:
        """Waits some seconds for a guard that is ending. Raises GuardRunsError, OSError."""
        os.makedirs(state_dir, mode=0o755, exist_ok=True)
        self._json = json
        self._audit = os.path.join(state_dir, _AUDIT)
        self._path = os.path.join(state_dir, LOCK)
        self._status = _locked(self._path)
        self._unwritten = False
        self.ready = False
        self.too_old = False
        self.problem = ""
        self.validated = 0
        self.refused = 0
        self.sessions = 0
        self.publish()

    def publish(self) -> None:
        """Writes the status. Nothing else waits for it: an error is logged once."""
        status: dict[str, str | int] = {
            "ready": self.ready,
            "too_old": self.too_old,
            "problem": self.problem,
            "validated": self.validated,
            "refused": self.refused,
            "sessions": self.sessions,
        }
        content = encoded(status).encode() + b"\n"
        try:
            os.pwrite(self._status, content, 0)
            os.ftruncate(self._status, len(content))
        except OSError as error:
            if not self._unwritten:
                self.log("error", f"{self._path} can't be written: {error}")
            self._unwritten = True
        else:
            self._unwritten = False

    def close(self) -> None:
        """Removes the status: the guard ends as it should."""
        os.unlink(self._path)

    def log(self, level: str, text: str, container: ValidatedContainer | None = None) -> None:
        """One line on standard error."""
        line = {"time": _stamp(3), "level": level, "msg": text}
        if container is not None:
            line |= {"namespace": container.namespace, "pod": container.pod}
            line["container"] = container.name
        written = encoded(line) if self._json else _logfmt(line)
        _write(2, written.encode() + b"\n")

    def report_problem(self, text: str, *, too_old: bool = False) -> None:
        """Logs once why the guard has no session, and publishes the reason.

        `too_old`: the runtime asks no validators."""
        self.ready, self.too_old = False, too_old
        if text != self.problem:
            self.problem = text
            self.log("warning", f"no session with the runtime: {text}")
        self.publish()

    def record_refusal(self, container: ValidatedContainer | None, why: str) -> None:
        """Logs, counts and records a refused container; None if its request could not be read."""
        self.refused += 1
        self.log("warning", f"refused: {why}", container)
        record: dict[str, str | int] = {
            "version": 1,
            "time": _stamp(6),
            "process": PROCESS,
            "event": "ContainerRefused",
            "message": why[:_MESSAGE_CHARACTERS],
        }
        if container is not None:
            record |= {"namespace": container.namespace, "pod": container.pod}
            record |= {"uid": container.uid, "container": container.name}
        try:
            self._append(encoded(record).encode() + b"\n")
        except OSError as error:
            self.log("error", f"the audit trail can't be written: {error}")

    def _append(self, line: bytes) -> None:
        """Raises OSError."""
        os.makedirs(self._audit, mode=0o700, exist_ok=True)
        own = [each.split(".") for each in os.listdir(self._audit)]
        begins = sorted(int(each[1]) for each in own if each[0] == PROCESS and each[1].isdecimal())
        path = os.path.join(self._audit, f"{PROCESS}.%d.jsonl")
        if not begins or os.stat(path % begins[-1]).st_size > _MOST_BYTES:
            begins.append(max(int(time.time()), begins[-1] + 1 if begins else 0))
            for old in begins[:-2]:
                os.unlink(path % old)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path % begins[-1], flags, 0o600)
        try:
            _write(descriptor, line)
        finally:
            os.close(descriptor)


def _locked(path: str) -> int:
    end = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < end:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # its holder has not just removed it
                return descriptor
        except BlockingIOError:
            time.sleep(0.05)
        os.close(descriptor)
    raise GuardRunsError(f"{path} is held by another guard")


def _stamp(digits: int) -> str:
    now = time.time()
    fraction = f"{now % 1:.{digits + 3}f}"[2 : 2 + digits]
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{fraction}Z"


def _logfmt(line: dict[str, str]) -> str:
    """JSON's escapes are those of logfmt, and leave no character that a terminal would obey."""
    return " ".join(
        f"{name}={value if name in _UNQUOTED else quoted(value)}" for name, value in line.items()
    )


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
