"""The processes of the CRI benchmark: the backend, Topolet's proxy, and the other proxies."""

from __future__ import annotations

import compileall
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from peers.h2client import Client
from peers.packages import NoPackageError, cached

from agent.model.settings.options import proxy_socket

ROOT = Path(__file__).resolve().parents[2]
# grpcio and mypy install typing_extensions, which no dependency of `topolet` does. If msgspec finds
# it, it imports it: a megabyte that an installation does not have.
_PREPARE = "import sys; sys.modules['typing_extensions'] = None; "
START = f"{_PREPARE}from agent.__main__ import main; sys.exit(main())"
START_WITH_CONSTANTS = f"{_PREPARE}from tests.fixtures.constants import run; sys.exit(run())"
OURS = [
    *(sys.executable, "-c", START),
    *("proxy", "--state-dir", "{listen}.state", "--runtime-endpoint", "{upstream}"),
]
EXTERNAL_SECONDS = 60
PEER = str(Path(__file__).resolve().parent / "grpc_peer.py")


def grpcio_environment() -> dict[str, str] | str:
    """The environment of the grpcio processes, or the reason why they can't run."""
    try:
        target = cached("grpcio", ("grpc",))
    except NoPackageError as error:
        return str(error)
    return {**os.environ, **({"PYTHONPATH": str(target)} if target else {})}


def compiled() -> None:
    """Compiles the sources, as an installation does: otherwise a process needs more memory."""
    compileall.compile_dir(str(ROOT / "agent"), quiet=2)


@contextmanager
def running(command: list[str], path: Path, environment: dict[str, str]) -> Iterator[Process]:
    """A process, and its seconds from exec to the first accepted connection."""
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield Process(process.pid, accepting_after(path, process) - began)
    finally:
        process.terminate()
        process.wait(10)


class Process:
    def __init__(self, pid: int, accept_seconds: float) -> None:
        self.pid = pid
        self.accept_seconds = accept_seconds

    def cpu_seconds(self) -> float:
        spent = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            spent += int((task / "schedstat").read_text().split()[0])
        return spent / 1e9

    def rss_mb(self) -> float:
        return rss_mb(self.pid)


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1_000


def bare_rss_mb() -> float:
    """The memory of an interpreter without imports."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        found = rss_mb(process.pid)
        process.stdin.write(b"\n")
        return found


def accepting_after(path: Path, process: subprocess.Popen[bytes]) -> float:
    while not accepts(path):
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        time.sleep(0.001)
    return time.monotonic()


def accepts(path: Path | str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def wait_for_external(name: str, path: str) -> None:
    """Returns when a proxy that the user starts accepts connections at `path`."""
    end = time.monotonic() + EXTERNAL_SECONDS
    while not accepts(path):
        if time.monotonic() > end:
            raise SystemExit(f"--proxy {name}: no listener at {path} after {EXTERNAL_SECONDS} s")
        time.sleep(0.05)


class Stage:
    """The processes and connections of one run; all end with `stack`."""

    def __init__(self, stack: ExitStack, environment: dict[str, str]) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack = stack
        self._environment = environment
        compiled()

    def backend(self, path: str) -> None:
        """Starts the trivial backend."""
        command = [sys.executable, PEER, "backend", "{listen}"]
        self._stack.enter_context(
            running([word.format(listen=path) for word in command], Path(path), self._environment)
        )

    def start(self, name: str, command: list[str], upstream: str = "") -> Process:
        """`name` is also the name of its socket."""
        listen = self.folder / name
        if command is OURS:
            listen.symlink_to(proxy_socket(f"{listen}.state"))
        words = {"listen": str(listen), "upstream": upstream}
        filled = [word.format(**words) for word in command]
        return self._stack.enter_context(running(filled, listen, self._environment))

    def proxies(self, upstream: str, mark: str = "") -> tuple[Process, dict[str, Client]]:
        """Starts Topolet's proxy, and returns it with a client for each path to `upstream`."""
        ours = self.start(f"ours{mark}", OURS, upstream)
        commands = {"grpcio": [sys.executable, PEER, "proxy", "{listen}", "{upstream}"]}
        if socat := shutil.which("socat"):
            ends = ["UNIX-LISTEN:{listen},fork", "UNIX-CONNECT:{upstream}"]
            commands["socat"] = [socat, "-b262144", "-lf/dev/null", *ends]
        for name, command in commands.items():
            self.start(name + mark, command, upstream)
        sockets = {name: str(self.folder / (name + mark)) for name in ("ours", *commands)}
        return ours, {
            name: self.client(path) for name, path in {"direct": upstream, **sockets}.items()
        }

    def client(self, path: str) -> Client:
        client = Client(path)
        self._stack.callback(client.close)
        return client
