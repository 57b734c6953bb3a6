"""The CRI proxy beside the direct call, socat (two socket hops, nothing else) and a grpcio proxy.

The backend is a trivial grpcio server; the client speaks raw HTTP/2. A call is its p50 in
microseconds, `cpu_us` our process's CPU time a call. The paths take turns in batches, in another
order every time; a ratio is the median of the turns' ratios, so that what slows the machine for a
while slows both of its sides. `added_vs_grpcio` compares what each proxy adds to the small call;
`accept_seconds` is exec to the first accepted connection.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, alone, arguments, compared, percentile, report, skipped
from peers.h2client import Client

# grpcio and mypy bring typing_extensions, which nothing that `topolet` depends on does; where it
# is found msgspec takes it, and with it a megabyte that an installation has not.
START = (
    "import sys; sys.modules['typing_extensions'] = None; "
    "from agent.cli.main import main; sys.exit(main())"
)
OURS = [
    *(sys.executable, "-c", START),
    *("proxy", "--listen", "{listen}", "--runtime-endpoint", "{upstream}"),
    *("--state-dir", "{listen}.state"),
]
PEER = str(Path(__file__).resolve().parent / "peers" / "grpc_peer.py")
SERVICE = "/runtime.v1.RuntimeService/"
CREATES = 1_000
STARTED_WITHIN_SECONDS = 20.0

# case: method, calls in a batch, batches, calls in flight
CASES = {
    "small_call": ("Version", 15, 100, 1),
    "list_500k": ("ListContainers", 7, 45, 1),
    "stream_1000": ("GetContainerEvents", 1, 40, 1),
    "callers_10": ("Version", 60, 25, 10),
}


def grpcio_environment() -> dict[str, str] | str:
    """What the grpcio processes need in their environment, or why they can't be had."""
    if importlib.util.find_spec("grpc"):
        return dict(os.environ)
    home = os.environ.get("TOPOLET_CACHE") or Path.home() / ".cache" / "topolet"
    target = Path(home) / f"grpcio-{sys.version_info.major}.{sys.version_info.minor}"
    if not (target / "grpc").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "grpcio"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"grpcio can't be installed: {done.stderr.strip()[-200:]}"
    return {**os.environ, "PYTHONPATH": str(target)}


@contextmanager
def running(command: list[str], path: Path, environment: dict[str, str]) -> Iterator[Process]:
    """A process and how long it took from exec to accepting a connection."""
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
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1_000


def accepting_after(path: Path, process: subprocess.Popen[bytes]) -> float:
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                pass
            else:
                return time.monotonic()
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        time.sleep(0.001)


class Measured:
    """`turns`: microseconds by path, the median of every batch; `ours`: of all our calls."""

    def __init__(self, case: str, clients: dict[str, Client], ours: Process, part: float) -> None:
        name, batch, batches, together = CASES[case]
        method = SERVICE + name
        batches = max(3, int(batches * part))
        self.turns: dict[str, list[float]] = {path: [] for path in clients}
        self.ours: list[float] = []
        spent = 0.0
        order = list(clients)
        for turn in range(batches + 1):
            random.shuffle(order)
            for path in order:
                clients[path].prepare(method, batch)
                before = ours.cpu_seconds()
                took = [each * 1e6 for each in clients[path].calls(method, b"", batch, together)]
                if turn:
                    self.turns[path].append(statistics.median(took))
                    if path == "ours":
                        self.ours += took
                        spent += ours.cpu_seconds() - before
        self.cpu_us = spent * 1e6 / (batches * batch)

    def beside(self, row: str, base: str, **more: float) -> Row:
        """Our p50 and that of `base`."""
        pairs = list(zip(self.turns["ours"], self.turns[base], strict=True))
        p50 = [statistics.median(side) for side in zip(*pairs, strict=True)]
        ratio = statistics.median(ours / other for ours, other in pairs)
        return compared(row, *p50, base, "us", ratio=ratio, **more)

    def added(self, path: str) -> float:
        """What `path` adds to the direct call."""
        pairs = zip(self.turns[path], self.turns["direct"], strict=True)
        return statistics.median(each - direct for each, direct in pairs)


def create_request() -> bytes:
    """A CreateContainer request of 4 KB, by hand: this program knows no protobuf."""

    def field(number: int, content: bytes) -> bytes:
        size, length = len(content), bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        length.append(size)
        return bytes((number << 3 | 2,)) + bytes(length) + content

    env = b"".join(field(6, field(1, b"NAME_%d" % n) + field(2, bytes(80))) for n in range(36))
    config = field(1, field(1, b"main")) + field(2, field(1, b"image")) + env
    pod = field(1, field(1, b"pod") + field(2, b"some-uid") + field(3, b"default"))
    return field(1, b"sandbox") + field(2, config) + field(3, pod)


def rows(part: float) -> list[Row]:
    environment = grpcio_environment()
    if isinstance(environment, str):
        raise SystemExit(f"no backend: {environment}")
    socat = shutil.which("socat")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, command: list[str]) -> Process:
            words = {"listen": str(folder / name), "upstream": str(folder / "direct")}
            filled = [word.format(**words) for word in command]
            return stack.enter_context(running(filled, folder / name, environment))

        start("direct", [sys.executable, PEER, "backend", "{listen}"])
        ours = start("ours", OURS)
        start("grpcio", [sys.executable, PEER, "proxy", "{listen}", "{upstream}"])
        paths = ["direct", "ours", "grpcio"]
        if socat:
            ends = ["UNIX-LISTEN:{listen},fork", "UNIX-CONNECT:{upstream}"]
            start("socat", [socat, "-b262144", "-lf/dev/null", *ends])
            paths.append("socat")
        clients = {path: Client(str(folder / path)) for path in paths}
        for client in clients.values():
            stack.callback(client.close)
        table: list[Row] = []
        for case in CASES:
            run = Measured(case, clients, ours, part)
            p99 = percentile(run.ours, 99)
            direct = run.beside(case, "direct", p99=p99, cpu_us=run.cpu_us)
            table.append(direct)
            for base in ("socat", "grpcio"):
                row = f"{case}_{base}"
                if base in clients:
                    table.append(run.beside(row, base))
                else:
                    table.append(skipped(row, direct["ours"], "us", f"{base} is not installed"))
            if case == "small_call":
                added = run.added("ours"), run.added("grpcio")
                table.append(compared("added_vs_grpcio", *added, "grpcio", "us"))
        creates(clients["ours"])
        table.append(alone("rss_mb", ours.rss_mb(), "MB"))
        table.append(alone("accept_seconds", ours.accept_seconds, "s"))
    return table


def creates(client: Client) -> None:
    method, request = SERVICE + "CreateContainer", create_request()
    client.prepare(method, CREATES)
    client.calls(method, request, CREATES, 1)


def main() -> None:
    options = arguments(__doc__)
    report(rows(0.4 if options.quick else 1.0), options.output)


if __name__ == "__main__":
    main()
