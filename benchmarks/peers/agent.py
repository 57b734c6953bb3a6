"""Topolet's agent as a process of a benchmark."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from peers.cluster import Cluster
from peers.processes import START, START_WITH_CONSTANTS, compiled, rss_mb

from tests.fixtures import constants
from tests.fixtures.ports import free_port

DEADLINE_SECONDS = 60.0
RECHECKS = ("agent.node.cluster_view.RECHECK_SECONDS", "agent.node.daemon.RECHECK_SECONDS")
"""How often an agent compares its report with the stored objects."""


class Agent:
    """`log` has its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], http: str, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._http = http
        self._log = log

    def rss_mb(self) -> float:
        return rss_mb(self.pid)

    def has_mapped(self, part: str) -> bool:
        """Whether a mapped file (a library) has this text in its path."""
        return part in Path(f"/proc/{self.pid}/maps").read_text()

    def metric(self, series: str) -> float:
        """The value of one series with its labels; 0 while it does not exist."""
        for line in self._get("/metrics").splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return 0.0

    def ready(self) -> bool:
        return bool(self._get("/readyz"))

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        """Waits for the condition; ends the benchmark after DEADLINE_SECONDS."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text()[-2000:]
                raise SystemExit(f"the agent: not {what} in {DEADLINE_SECONDS:g} s\n{tail}")
            time.sleep(0.05)

    def _get(self, page: str) -> str:
        """Returns "" if the agent does not answer with 200."""
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{self._http}{page}", timeout=5) as reply,
        ):
            return str(reply.read().decode())
        return ""


@contextmanager
def running(
    folder: Path,
    cluster: Cluster | None,
    runtime_socket: str,
    *flags: str,
    recheck_seconds: float | None = None,
) -> Iterator[Agent]:
    """A ready agent, with its files in `folder`; without a cluster it is alone on its node.
    `recheck_seconds`: how often it compares its report with the stored objects."""
    start = [START]
    if recheck_seconds is not None:
        start = [START_WITH_CONSTANTS, *constants.words(dict.fromkeys(RECHECKS, recheck_seconds))]
    compiled()
    folder.mkdir()
    log = folder / "agent.log"
    http = f"127.0.0.1:{free_port()}"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", *start, "agent"),
                f"--state-dir={folder / 'state'}",
                f"--runtime-endpoint=unix://{runtime_socket}",
                f"--http={http}",
                f"--kubelet-dir={folder / 'kubelet'}",
                *(cluster.flags if cluster else ["--standalone"]),
                *flags,
            ],
            env=cluster.environment if cluster else None,
            stdout=stream,
            stderr=stream,
        )
    try:
        agent = Agent(process, http, log)
        agent.wait_for("ready", agent.ready)
        yield agent
    finally:
        process.terminate()
        process.wait(10)
