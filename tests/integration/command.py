"""A subcommand as a process that logs when it listens."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.fixtures.constants import module
from tests.waiting import DEADLINE_SECONDS, eventually


class Command:
    """The log has the lines of all runs."""

    def __init__(self, name: str, log: Path, listens: str) -> None:
        """`listens`: the text of the log line by which the process reports that it listens."""
        self._name = name
        self._log = log
        self._listens = listens
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *flags: str, constants: dict[str, float] | None = None) -> None:
        """Starts the process with other values of `constants`; returns when it listens."""
        before = self.log().count(self._listens)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *module(constants or {}), self._name, *flags],
                stdout=log,
                stderr=log,
            )
        eventually(
            f"topolet {self._name} listens",
            lambda: self.alive() and self.log().count(self._listens) > before,
        )

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(DEADLINE_SECONDS)
        self._process = None
        return code

    @property
    def running(self) -> bool:
        return self._process is not None

    def alive(self) -> bool:
        """True; fails if the process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return True

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
