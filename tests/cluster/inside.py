"""The machine's side of the harness: runs programs, and reads and records the kernel's files.

The harness starts it inside a world or a guest. It needs only the standard library. Requests and
answers are JSON objects, one a line; `tests.cluster.machine` is the other side.

usage: inside.py LOGS unix PATH | inside.py LOGS port NAME (of a virtio port)
"""

from __future__ import annotations

import glob
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

Answer = dict[str, Any]

_FOLLOW_SECONDS = 0.02


class Follower:
    """Records each text that the files contain, in order, from the start of the follower to its
    end, and the texts that all files contained at one time: two reads in a row found the same."""

    def __init__(self, patterns: list[str]) -> None:
        self._patterns = patterns
        self._seen: dict[str, list[str]] = {}
        self._moments: list[dict[str, str]] = []
        self._end = threading.Event()
        self._round()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> Answer:
        self._end.set()
        self._thread.join()
        return {"files": self._seen, "moments": self._moments}

    def _follow(self) -> None:
        while not self._end.wait(_FOLLOW_SECONDS):
            self._round()

    def _round(self) -> None:
        first, again = read(self._patterns), read(self._patterns)
        if first == again and self._moments[-1:] != [first]:
            self._moments.append(first)
        for found in (first, again):
            for path, text in found.items():
                texts = self._seen.setdefault(path, [])
                if texts[-1:] != [text]:
                    texts.append(text)


class Inside:
    """Answers requests. Each process has a name, and the log NAME.log below `logs`."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._followers: dict[str, Follower] = {}

    def answer(self, request: dict[str, Any]) -> Answer:
        verb = str(request.pop("verb"))
        try:
            found: Answer = getattr(self, f"do_{verb}")(**request)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            return {"error": f"{verb}: {type(error).__name__}: {error}"}
        return found

    def do_run(self, words: list[str], stdin: str, seconds: float, env: dict[str, str]) -> Answer:
        """Runs a program to its end."""
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            env={**os.environ, **env},
        )
        return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

    def do_start(self, name: str, words: list[str], env: dict[str, str]) -> Answer:
        with (self._logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **env},
            )
        return {"pid": self._processes[name].pid}

    def do_code(self, name: str) -> Answer:
        """Its exit code, null while it runs."""
        return {"code": self._processes[name].poll()}

    def do_end(self, name: str, number: int, seconds: float) -> Answer:
        """Sends the signal and waits; kills a process that does not end in time."""
        process = self._processes[name]
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return {"code": process.returncode}

    def do_read(self, patterns: list[str]) -> Answer:
        return {"files": read(patterns)}

    def do_write(self, path: str, text: str) -> Answer:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
        return {}

    def do_remove(self, path: str) -> Answer:
        Path(path).unlink(missing_ok=True)
        return {}

    def do_usage(self, pids: list[int]) -> Answer:
        """What each of these processes uses that exists, by its pid."""
        return {"usage": {pid: used for pid in pids if (used := usage(pid)) is not None}}

    def do_follow(self, name: str, patterns: list[str]) -> Answer:
        self._followers[name] = Follower(patterns)
        return {}

    def do_followed(self, name: str) -> Answer:
        return self._followers.pop(name).end()


def read(patterns: list[str]) -> dict[str, str]:
    """The texts of the matching files that can be read, by path."""
    found = {}
    for pattern in patterns:
        for path in glob.iglob(pattern, recursive=True):
            try:
                found[path] = Path(path).read_text(errors="replace")
            except OSError:
                continue
    return found


def usage(pid: int) -> dict[str, int] | None:
    """The memory in KB, threads and open files of a process; None if it has ended. Files of pods'
    cgroups are counted apart, since the agent keeps some of them open."""
    process = Path("/proc", str(pid))
    try:
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        shared = dict(
            line.split(":", 1) for line in (process / "smaps_rollup").read_text().splitlines()[1:]
        )
        targets = [_target(file) for file in (process / "fd").iterdir()]
        return {
            "rss_kb": int(status["VmRSS"].split()[0]),
            "pss_kb": int(shared["Pss"].split()[0]),
            "threads": int(status["Threads"]),
            "files": sum("/kubepods" not in target for target in targets if target),
            "group_files": sum("/kubepods" in target for target in targets),
        }
    except (OSError, KeyError):
        # One that has ended, and is not yet waited for, has no memory.
        return None


def _target(file: Path) -> str:
    """Empty for a file that is closed meanwhile."""
    try:
        return os.readlink(file)
    except OSError:
        return ""


def serve(inside: Inside, reading: Iterable[bytes], writing: BinaryIO | Port) -> None:
    """Answers until the other side closes."""
    for line in reading:
        writing.write(json.dumps(inside.answer(json.loads(line))).encode() + b"\n")
        writing.flush()


def serve_socket(inside: Inside, path: str) -> None:
    """Serves each connection on a thread of its own."""

    def one(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, connection.makefile("wb") as answers:
            serve(inside, lines, answers)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}.new")
        listening.listen()
        os.rename(f"{path}.new", path)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=one, args=(connection,), daemon=True).start()


def serve_port(inside: Inside, name: str) -> None:
    """Serves the emulator's port of that name."""
    while True:
        for file in Path("/sys/class/virtio-ports").glob("*/name"):
            if file.read_text().strip() == name:
                with Path("/dev", file.parent.name).open("r+b", buffering=0) as device:
                    port = Port(device)
                    serve(inside, port, port)
        time.sleep(0.1)


class Port:
    """Reads lines from a device and writes to it. Only one process may open the device, once. The
    device reads as ended while the other side is not connected."""

    def __init__(self, device: io.FileIO) -> None:
        self._device = device

    def __iter__(self) -> Port:
        return self

    def __next__(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = self._device.read(65536)
            if not part:
                time.sleep(0.1)
            line += part or b""
        return line

    def write(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest:
            rest = rest[self._device.write(rest) :]

    def flush(self) -> None:
        """It does not have a buffer."""


def reap_for(child: int) -> None:
    """Reaps orphans, as the first process of a pid namespace has to, until `child` ends."""
    while os.wait()[0] != child:
        pass


def main() -> None:
    logs, kind, where = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    logs.mkdir(parents=True, exist_ok=True)
    if os.getpid() == 1 and (child := os.fork()):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        reap_for(child)
        return
    inside = Inside(logs)
    if kind == "unix":
        serve_socket(inside, where)
    else:
        serve_port(inside, where)


if __name__ == "__main__":
    main()
