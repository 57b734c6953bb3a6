"""The CPU time that agent and scheduler use at rest.

`agent_pass`: a pass on a node with 30 pods that finds nothing new; the base is a pass that finds a
new label on a pod. Runtime and cgroups are values and files. `agent_probe`: an answer to a probe;
the base is http.server. `scheduler_at_rest`: CPU seconds an hour of the leader, which is probed
every second and watches a simulated API server.
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from agent.http.peers import NodeAddresses
from agent.http.requests import Route, text_reply
from agent.http.server import HttpServer
from agent.node.daemon import HTTP_LIMITS
from benchmarks.common import Row, arguments, ratio_row, report, value_row
from benchmarks.scheduler import ROOT, free_port, start_process
from tests.node.world import World

PODS = 30
PROBE = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kube-probe/1.36\r\n\r\n"


def pass_row(folder: Path, rounds: int) -> Row:
    world = World(folder)
    for number in range(PODS):
        sandbox = world.sandbox(f"uid-{number}", "LS")
        world.group(f"kubepods/burstable/pod{sandbox.uid}/{sandbox.id}")
        world.container(sandbox)
    agent = world.agent()
    listed, labels = world.runtime.listed_sandboxes, itertools.count()

    def new_label() -> None:
        changed = {**listed[0].labels, "number": str(next(labels))}
        listed[0] = msgspec.structs.replace(listed[0], labels=changed)

    samples: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(-5, rounds):
        for new in samples:
            if new:
                new_label()
            began = time.thread_time()
            agent.reconcile()
            if turn >= 0:
                samples[new].append((time.thread_time() - began) * 1e3)
    ours, base = (statistics.median(samples[new]) for new in (False, True))
    return ratio_row("agent_pass", ours, base, "a pass with news", "ms")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def probe_row(probes: int, pause_seconds: float) -> Row:
    routes = {"/readyz": Route("GET", lambda _: text_reply(200, "ok"))}
    ours = HttpServer("127.0.0.1:0", routes, HTTP_LIMITS, NodeAddresses())
    ours.start()
    base = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=base.serve_forever, daemon=True).start()
    samples = [
        statistics.median(server_cpu_us(port, pause_seconds) for _ in range(probes))
        for port in (ours.port, base.server_port)
    ]
    ours.close()
    base.shutdown()
    base.server_close()
    return ratio_row("agent_probe", *samples, "http.server", "us")


def server_cpu_us(port: int, pause_seconds: float) -> float:
    """The CPU time of this process for one answer, without the client's."""
    time.sleep(pause_seconds)
    began, client_began = time.process_time(), time.thread_time()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(PROBE)
        while client.recv(4096):
            pass
    return (time.process_time() - began - time.thread_time() + client_began) * 1e6


def scheduler_row(folder: Path, seconds: float) -> Row:
    with ExitStack() as stack:
        server = start_process(stack, "benchmarks.stubapi", "2", str(PODS))
        assert server.stdout is not None
        port = int(server.stdout.readline())
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{port}")))
        http_port = free_port()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agent", "scheduler", f"--kubeconfig={kubeconfig}"),
                *("--tls-dir=", f"--https=127.0.0.1:{free_port()}"),
                *(f"--http=127.0.0.1:{http_port}", f"--state-dir={folder}"),
            ],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(stop_process, process)
        wait_until(lambda: b" 200 " in probe(http_port)[:15])
        before, began = cpu_seconds(process.pid), time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            time.sleep(1.0)
            probe(http_port)
        used = cpu_seconds(process.pid) - before
        return value_row("scheduler_at_rest", used / elapsed * 3600, "s/h")


def probe(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(PROBE)
            return client.recv(4096)
    except OSError:
        return b""


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the scheduler is not Ready after {seconds:g} s")
        time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9


def stop_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def main() -> None:
    given = arguments(__doc__)
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            pass_row(Path(folder), 30 if given.quick else 200),
            probe_row(10 if given.quick else 60, 0.1 if given.quick else 0.5),
            scheduler_row(Path(folder), 8.0 if given.quick else 60.0),
        ]
    report(rows, given.output)


if __name__ == "__main__":
    main()
