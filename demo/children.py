"""The processes of a demo, each with a pid file, by which the next demo ends those that a killed
demo left running."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time


class Child:
    """A process with its log file and its pid file."""

    def __init__(self, name: str, command: list[str], folder: pathlib.Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._pid_file = folder / f"{name}.pid"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process, with a new log."""
        self.end_leftover()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )
        pid = self._process.pid
        self._pid_file.write_text(json.dumps([pid, started_at(pid)]))

    def exit_status(self) -> str:
        """The signal or exit code of the ended process, "" while it runs."""
        code = self._process.poll() if self._process else None
        if code is None:
            return ""
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """Sends SIGKILL to a running process."""
        if self._process:
            self._process.kill()

    def stop(self, deadline_seconds: float = 10.0) -> None:
        """Ends the process by SIGTERM, and after the deadline by SIGKILL."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    def end_leftover(self) -> None:
        """Kills the process of this name that an earlier demo left running."""
        try:
            pid, start = json.loads(self._pid_file.read_text())
        except (OSError, ValueError):
            return
        if start and started_at(pid) == start:
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while started_at(pid) == start and time.monotonic() < deadline:
                time.sleep(0.01)
        self._pid_file.unlink(missing_ok=True)

    def tail(self, lines: int = 5) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def topolet(*words: str) -> list[str]:
    """The command line of `topolet WORDS` with this interpreter."""
    return [sys.executable, "-m", "agent", *words]


def started_at(pid: int) -> str:
    """The start time of the process, in the kernel's ticks; "" if it has ended or is a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
