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

from tests.faults.board import Board
from tests.faults.cgroups import Cgroups, PlainCgroups

REPOSITORY = Path(__file__).parents[2]
END_SECONDS = 60.0


class Launcher:
    """One command at a time; it counts on `board`."""

    def __init__(self, folder: Path) -> None:
        self.board_path = folder / "board"
        self.log_path = folder / "log"
        self.board = Board(self.board_path)
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.child", str(theirs.fileno())],
                cwd=REPOSITORY,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a group signal leaves it time for its command
            )
        self._answers = self._orders.makefile("rb")
        self._running = False

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._orders.close()
        self._server.wait()
        self.board.close()

    def start(
        self,
        words: Sequence[str],
        cgroups: Cgroups,
        dies_at: int = 0,
        refused: Sequence[str] = (),
    ) -> None:
        """`topolet WORDS`; returns at once. `refused`: kernel resources that it does not get
        (inotify, uevents)."""
        assert not self._running
        self.board.clear(dies_at)
        plain: dict[str, Any] | None = None
        if isinstance(cgroups, PlainCgroups):
            plain = {"path": str(cgroups.path), "version": cgroups.version}
        order = {
            "words": list(words),
            "log": str(self.log_path),
            "board": str(self.board_path),
            "plain": plain,
            "refused": list(refused),
        }
        self._send(order)
        self._running = True

    @property
    def running(self) -> bool:
        """False once it has ended, by itself or by a kill."""
        if self._running and select.select([self._orders], [], [], 0)[0]:
            self.ended()
        return self._running

    def ended(self) -> int:
        """Waits for the end: the exit code, or less than 0 for a signal."""
        if self._running:
            if not select.select([self._orders], [], [], END_SECONDS)[0]:
                raise TimeoutError("the command does not end")
            line = self._answers.readline()
            if not line:
                raise EOFError("the process that starts commands is gone")
            self._running = False
            self.code = int(json.loads(line)["code"])
        return self.code

    def kill(self) -> None:
        """SIGKILL, unless it has ended already."""
        if self.running:
            self._send({})
            self.ended()

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def _send(self, order: dict[str, Any]) -> None:
        self._orders.sendall(json.dumps(order).encode() + b"\n")
