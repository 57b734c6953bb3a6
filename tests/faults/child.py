"""A process that has imported all modules and forks a `topolet` command on request.

`python -m tests.faults.child DESCRIPTOR`: a stream socket of JSON lines, a request, then a reply.
The command is the real one. Before each system call that changes something it counts a step in a
StepCounter, and SIGKILL ends it at the step `kill_at`. With plain files as cgroups (`plain`), a
write replaces the whole value, and v2 has a `cpuset.cpus.effective`, as in the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.__main__ import main as topolet
from agent.cgroup.hierarchy import CPUS
from agent.cli import processes as _processes  # noqa: F401 - imported once, here
from agent.cli import restore as _restore  # noqa: F401
from agent.host.kernel_events import Inotify, Uevents
from agent.node import daemon as _daemon  # noqa: F401
from tests.faults.cgroups import effective, padded
from tests.faults.steps import StepCounter

_CHANGING_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_BY_PATH = ("rename", "replace", "unlink", "mkdir", "rmdir", "chmod")
_BY_DESCRIPTOR = ("write", "pwrite", "fsync", "fchmod", "ftruncate")
_EFFECTIVE = f"{CPUS}.effective"
_READABLE = select.POLLIN | select.POLLHUP


def serve(requests: socket.socket) -> None:
    """Serves until the other end closes; then the command is killed too."""
    gc.freeze()
    lines = requests.makefile("rb", buffering=0)  # poll is reliable only without a buffer
    while line := lines.readline():
        request = json.loads(line)
        if not request:  # a kill of a process that has already ended
            continue
        child = os.fork()
        if child == 0:
            _run_command(request, requests)
        handle = os.pidfd_open(child)
        poll = select.poll()
        poll.register(requests, _READABLE)
        poll.register(handle, _READABLE)
        while not any(ready == handle for ready, _ in poll.poll()):
            # While a command runs, the only request is to kill it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            if not lines.readline():
                os.waitpid(child, 0)
                return
        os.close(handle)
        _, status = os.waitpid(child, 0)
        requests.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _run_command(request: dict[str, Any], requests: socket.socket) -> None:
    requests.close()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 70
    try:
        plain = request["plain"]
        if plain:
            _emulate_kernel(Path(plain["path"]), plain["version"])
        _refuse(request["refused"])
        _count_steps(StepCounter(Path(request["steps"])))
        code = topolet(request["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _refuse(kinds: list[str]) -> None:
    """Makes the kernel resources of these kinds fail with EMFILE."""

    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for kind in kinds:
        resource = {"inotify": Inotify, "uevents": Uevents}[kind]
        setattr(resource, "__init__", refused)  # noqa: B010 - mypy takes no assignment here


def _count_steps(steps: StepCounter) -> None:
    kill, me = os.kill, os.getpid()

    def step(what: str, name: str) -> None:
        steps.count += 1
        if steps.count == steps.kill_at:
            steps.killed_before = f"{what} {_kind(name)}"
            kill(me, signal.SIGKILL)

    def by_path(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *more: Any, **named: Any) -> Any:
            step(name, os.fspath(path))
            return real(path, *more, **named)

        return call

    def by_descriptor(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *more: Any) -> Any:
            step(name, os.readlink(f"/proc/self/fd/{descriptor}"))
            return real(descriptor, *more)

        return call

    for name in _BY_PATH:
        setattr(os, name, by_path(name, getattr(os, name)))
    for name in _BY_DESCRIPTOR:
        setattr(os, name, by_descriptor(name, getattr(os, name)))
    real_open = os.open

    def open_(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & _CHANGING_FLAGS:
            step("open", os.fspath(path))
        return real_open(path, flags, *more, **named)

    os.open = open_


def _kind(path: str) -> str:
    """The name of a file that is equal in every run; a temporary file has its final name."""
    if path.endswith((".yaml", ".yaml.tmp")):
        return "object"
    name = os.path.basename(path).strip("'")
    if name.startswith(".") and name.endswith(".tmp"):
        return f"{name[1:-4]} (new)"
    return name


def _emulate_kernel(path: Path, version: int) -> None:
    real_open, real_write = os.open, os.write

    def open_(file: Any, flags: int, *more: Any, **named: Any) -> int:
        folder, name = os.path.split(os.fspath(file))
        if name == CPUS:
            flags &= ~os.O_TRUNC
        elif name == _EFFECTIVE:
            if version == 1:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
            group = "/" + os.path.relpath(folder, path).removeprefix(".")
            text = f"{effective(path, version, group)}\n".encode()
            descriptor = os.memfd_create(_EFFECTIVE)
            real_write(descriptor, text)
            return descriptor
        return real_open(file, flags, *more, **named)

    def write(descriptor: int, data: bytes) -> int:
        if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")) == CPUS:
            data = padded(data)
        return real_write(descriptor, data)

    os.open = open_
    os.write = write


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
