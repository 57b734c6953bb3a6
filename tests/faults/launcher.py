"""Starts and kills `topolet` commands that count their steps, without the cost of an import."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.cgroups import Cgroups, PlainCgroups
from tests.faults.steps import StepCounter

REPOSITORY = Path(__file__).parents[2]
END_SECONDS = 60.0


class Launcher:
    """Runs one command at a time, which counts its steps in `steps`."""

    def __init__(self, folder: Path) -> None:
        self.steps_path = folder / "steps"
        self.log_path = folder / "log"
        self.steps = StepCounter(self.steps_path)
        self._requests, child_socket = socket.socketpair()
        with child_socket:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.child", str(child_socket.fileno())],
                cwd=REPOSITORY,
                pass_fds=[child_socket.fileno()],
                start_new_session=True,  # a signal to the group of the tests does not reach it
            )
        self._replies = self._requests.makefile("rb")
        self._running = False

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._requests.close()
        self._server.wait()
        self.steps.close()

    def start(
        self,
        words: Sequence[str],
        cgroups: Cgroups,
        kill_at: int = 0,
        refused: Sequence[str] = (),
    ) -> None:
        """Starts `topolet WORDS` and returns at once. `refused`: kernel resources that fail
        (inotify, uevents)."""
        assert not self._running
        self.steps.clear(kill_at)
        plain: dict[str, Any] | None = None
        if isinstance(cgroups, PlainCgroups):
            plain = {"path": str(cgroups.path), "version": cgroups.version}
        request = {
            "words": list(words),
            "log": str(self.log_path),
            "steps": str(self.steps_path),
            "plain": plain,
            "refused": list(refused),
        }
        self._send(request)
        self._running = True

    @property
    def running(self) -> bool:
        """Whether the command runs."""
        if self._running and select.select([self._requests], [], [], 0)[0]:
            self.ended()
        return self._running

    def ended(self) -> int:
        """Waits for the end of the command. Returns the exit code; a signal is negative."""
        if self._running:
            if not select.select([self._requests], [], [], END_SECONDS)[0]:
                raise TimeoutError("the command does not end")
            line = self._replies.readline()
            if not line:
                raise EOFError("the process that starts commands has ended")
            self._running = False
            self.code = int(json.loads(line)["code"])
        return self.code

    def kill(self) -> None:
        """Sends SIGKILL unless the command has ended."""
        if self.running:
            self._send({})
            self.ended()

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def _send(self, request: dict[str, Any]) -> None:
        self._requests.sendall(json.dumps(request).encode() + b"\n")
