"""The harness's side of a machine of the cluster: a world on this machine, or the guest."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import DEADLINE_SECONDS

TERMINATION_SECONDS = 10.0


class MachineError(RuntimeError):
    """The machine could not carry out a request; the text has the reason."""


class Machine:
    """A client of `inside.py` at the socket `path`. `logs`: the folder of the processes' logs."""

    def __init__(self, path: Path, logs: Path, env: Mapping[str, str] | None = None) -> None:
        self.logs = logs
        self._env = dict(env or {})
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        """Closes the connection; processes on the machine continue."""
        self._lines.close()
        self._socket.close()

    # programs
    def run(
        self,
        *words: str | Path,
        stdin: str = "",
        seconds: float = 4 * DEADLINE_SECONDS,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Runs a program and returns its standard output. Raises ProgramError."""
        answer = self._request(
            "run",
            wait_seconds=seconds,
            words=list(map(str, words)),
            stdin=stdin,
            seconds=seconds,
            env={**self._env, **(env or {})},
        )
        if answer["code"]:
            output = f"{answer['out'][-2000:]}{answer['err'][-4000:]}"
            raise ProgramError(answer["code"], list(map(str, words)), output)
        return str(answer["out"])

    def start(self, name: str, *words: str | Path, env: Mapping[str, str] | None = None) -> int:
        """Starts a process under that name and returns its pid."""
        everything = {**self._env, **(env or {})}
        return int(
            self._request("start", name=name, words=list(map(str, words)), env=everything)["pid"]
        )

    def ended(self, name: str) -> int | None:
        """Its exit code; None while it runs."""
        code: int | None = self._request("code", name=name)["code"]
        return code

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Ends a process and returns its exit code."""
        answer = self._request(
            "end",
            wait_seconds=TERMINATION_SECONDS,
            name=name,
            number=number,
            seconds=TERMINATION_SECONDS,
        )
        return int(answer["code"])

    def alive(self, name: str) -> bool:
        """True; fails with the end of the log if the process has ended."""
        code = self.ended(name)
        assert code is None, f"{name} ended with {code}:\n{self.log(name)[-3000:]}"
        return True

    def log(self, name: str) -> str:
        file = self.logs / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def usage(self, *pids: int) -> dict[int, dict[str, int]]:
        """What processes use (see `inside.usage`), without those that have ended."""
        answer = self._request("usage", pids=list(pids))["usage"]
        return {int(pid): used for pid, used in answer.items()}

    # files
    def read(self, *patterns: str) -> dict[str, str]:
        """The texts of the matching files, by path; `**` matches any number of folders."""
        files: dict[str, str] = self._request("read", patterns=list(patterns))["files"]
        return files

    def write(self, path: str, text: str) -> None:
        self._request("write", path=path, text=text)

    def remove(self, path: str) -> None:
        self._request("remove", path=path)

    @contextlib.contextmanager
    def following(self, patterns: Sequence[str]) -> Iterator[dict[str, list[str]]]:
        """Records each text that the files contain during the block, in order; filled at its
        end."""
        seen: dict[str, list[str]] = {}
        with self._recording(patterns) as recorded:
            yield seen
        seen |= recorded["files"]

    @contextlib.contextmanager
    def moments(self, patterns: Sequence[str]) -> Iterator[list[dict[str, str]]]:
        """Records the texts, by path, that all files contained at one time during the block, in
        order; filled at its end."""
        seen: list[dict[str, str]] = []
        with self._recording(patterns) as recorded:
            yield seen
        seen += recorded["moments"]

    @contextlib.contextmanager
    def _recording(self, patterns: Sequence[str]) -> Iterator[dict[str, Any]]:
        name = uuid.uuid4().hex
        recorded: dict[str, Any] = {}
        self._request("follow", name=name, patterns=list(patterns))
        try:
            yield recorded
        finally:
            recorded |= self._request("followed", name=name)

    def _request(self, verb: str, wait_seconds: float = 0.0, **words: Any) -> dict[str, Any]:
        line = json.dumps({"verb": verb, **words}).encode() + b"\n"
        with self._lock:
            self._socket.settimeout(wait_seconds + 2 * DEADLINE_SECONDS)
            try:
                self._socket.sendall(line)
                reply = self._lines.readline()
            except OSError as error:
                raise MachineError(f"{verb}: the machine does not answer: {error}") from None
        if not reply:
            raise MachineError(f"{verb}: the machine has closed the connection")
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise MachineError(str(answer["error"]))
        return answer


class ProgramError(subprocess.CalledProcessError):
    """A program failed; the text has its output."""

    def __str__(self) -> str:
        return f"{' '.join(self.cmd)}: exit code {self.returncode}: {self.output}"
