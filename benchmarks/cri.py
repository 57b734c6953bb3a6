"""The CRI proxy compared with the direct call, socat (two socket hops), a grpcio proxy, and further
proxies in front of `--backend`, which `--proxy` names. Start such a proxy after the backend has
started to listen; the benchmark waits for it.

The backend is a trivial grpcio server; for `create_container`, `run_pod_sandbox` and the rows that
end in `_containerd` it is a private containerd. `run_pod_sandbox` has an agent and an owner on the
node, so that the proxy waits for the agent; `unheld` is the proxy without an agent. The client uses
raw HTTP/2. The time of a call is the p50 in microseconds, `cpu_us` is the CPU time of topolet's
proxy for each call. The paths take turns in batches, in another order every time; a ratio is the
median of the turns' ratios, so that other load affects both sides. `added_vs_grpcio` compares the
time that each proxy adds to the small call; `rss_mb` is measured after 1,000 hooked creations;
`accept_seconds` is the time from exec to the first accepted connection.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, percentile, ratio_row, report, skipped_row, value_row
from peers import agent as agents
from peers.h2client import Client
from peers.processes import OURS, Process, Stage, grpcio_environment, wait_for_external
from peers.runtime import NoRuntimeError, Runtime

SERVICE = "/runtime.v1.RuntimeService/"
CREATES = 1_000
CREATE = SERVICE + "CreateContainer"
RUN = SERVICE + "RunPodSandbox"

# case: method, calls in a batch, batches, calls in flight
CASES = {
    "small_call": ("Version", 15, 100, 1),
    "list_500k": ("ListContainers", 7, 45, 1),
    "stream_1000": ("GetContainerEvents", 1, 40, 1),
    "callers_10": ("Version", 60, 25, 10),
}

CONTAINERD_CASES = {
    "version": ("Version", 10, 40),
    "list_containers": ("ListContainers", 3, 40),
}

Calls = Callable[[Client], list[float]]
"""Makes one batch of calls; returns the seconds of each."""


class Measurement:
    """`turns`: by path, the median microseconds of each batch. `ours`: the microseconds of each
    call through topolet's proxy.

    A path whose replies differ from the direct ones is not measured; `different` names it.
    """

    def __init__(
        self, clients: dict[str, Client], ours: Process, batches: int, make: Calls
    ) -> None:
        reply_bytes = {path: _reply_bytes(client, make) for path, client in clients.items()}
        self.different = [path for path in clients if reply_bytes[path] != reply_bytes["direct"]]
        if "ours" in self.different:
            raise SystemExit(f"topolet's proxy changes replies: bytes by path: {reply_bytes}")
        self.turns: dict[str, list[float]] = {
            path: [] for path in clients if path not in self.different
        }
        self.ours: list[float] = []
        spent = 0.0
        order = list(self.turns)
        for _ in range(batches):
            random.shuffle(order)
            for path in order:
                before = ours.cpu_seconds()
                took = [each * 1e6 for each in make(clients[path])]
                self.turns[path].append(statistics.median(took))
                if path == "ours":
                    self.ours += took
                    spent += ours.cpu_seconds() - before
        self.cpu_us = spent * 1e6 / len(self.ours)

    def rows(self, case: str, suffix: str = "") -> list[Row]:
        """Compared with the direct call, and with every other path."""
        p99 = percentile(self.ours, 99)
        table = [self._compared(case + suffix, "direct", p99=p99, cpu_us=self.cpu_us)]
        table += [
            self._compared(f"{case}_{path}{suffix}", path)
            for path in sorted(self.turns)
            if path not in ("direct", "ours")
        ]
        absent = dict.fromkeys(self.different, "its replies differ")
        if "socat" not in {*self.turns, *absent}:
            absent["socat"] = "socat is not installed"
        for path, reason in absent.items():
            table.append(skipped_row(f"{case}_{path}{suffix}", table[0]["ours"], "us", reason))
        return table

    def added(self, path: str) -> float:
        """The time that `path` adds to the direct call."""
        pairs = zip(self.turns[path], self.turns["direct"], strict=True)
        return statistics.median(each - direct for each, direct in pairs)

    def _compared(self, row: str, base: str, **more: float) -> Row:
        pairs = list(zip(self.turns["ours"], self.turns[base], strict=True))
        p50 = [statistics.median(side) for side in zip(*pairs, strict=True)]
        ratio = statistics.median(ours / other for ours, other in pairs)
        return ratio_row(row, *p50, base, "us", ratio=ratio, **more)


def _reply_bytes(client: Client, make: Calls) -> int:
    """The bytes of the messages in the replies to one batch, which warms the path up."""
    before = client.received_bytes
    make(client)
    return client.received_bytes - before


def create_request() -> bytes:
    """A CreateContainer request of 4 KB, encoded by hand: this program does not use protobuf."""

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


def unhooked_calls(method: str, batch: int, in_flight: int) -> Calls:
    """Empty calls of a method without a hook."""

    def make(client: Client) -> list[float]:
        client.prepare(SERVICE + method, batch)
        return client.calls(SERVICE + method, b"", batch, in_flight)

    return make


def trivial_rows(stage: Stage, scale: float, backend: str, external: dict[str, str]) -> list[Row]:
    """Rows with a trivial backend. `external`: sockets of further proxies in front of it."""
    backend = backend or str(stage.folder / "direct")
    stage.backend(backend)
    ours, clients = stage.proxies(backend)
    for name, path in external.items():
        wait_for_external(name, path)
        clients[name] = stage.client(path)
    table: list[Row] = []
    for case, (method, batch, batches, in_flight) in CASES.items():
        run = Measurement(
            clients, ours, max(3, int(batches * scale)), unhooked_calls(method, batch, in_flight)
        )
        table += run.rows(case)
        if case == "small_call":
            added = run.added("ours"), run.added("grpcio")
            table.append(ratio_row("added_vs_grpcio", *added, "grpcio", "us"))
    table.append(value_row("rss_mb", rss_after_creations(clients["ours"], ours), "MB"))
    table.append(value_row("accept_seconds", ours.accept_seconds, "s"))
    return table


def containerd_rows(stage: Stage, scale: float) -> list[Row]:
    """Rows with a real containerd, if it can run."""
    try:
        runtime = Runtime()
    except NoRuntimeError as error:
        return [{"case": "create_container", "unit": "us", "skipped": str(error)}]
    with runtime:
        ours, clients = stage.proxies(runtime.socket, "-containerd")
        created = 0

        def create(client: Client) -> list[float]:
            nonlocal created
            created += 1
            client.prepare(CREATE, 1)
            return client.calls(CREATE, runtime.create_request(), 1, 1)

        run = Measurement(clients, ours, max(8, int(40 * scale)), create)
        if (existing := runtime.containers()) != created:
            raise SystemExit(f"{existing} of {created} containers were created")
        table = run.rows("create_container")
        for case, (method, batch, batches) in CONTAINERD_CASES.items():
            run = Measurement(
                clients, ours, max(3, int(batches * scale)), unhooked_calls(method, batch, 1)
            )
            table += run.rows(case, "_containerd")
        return table + sandbox_rows(stage, runtime, scale)


def sandbox_rows(stage: Stage, runtime: Runtime, scale: float) -> list[Row]:
    """RunPodSandbox on a node where another pod owns CPUs. The proxy holds the call until the agent
    has answered; a proxy without an agent (`unheld`) does not hold it."""
    runtime.clear()
    proxy = stage.start("held", OURS, runtime.socket)
    stage.start("unheld", OURS, runtime.socket)
    clients = {
        "direct": stage.client(runtime.socket),
        "ours": stage.client(str(stage.folder / "held")),
        "unheld": stage.client(str(stage.folder / "unheld")),
    }

    def run_sandbox(client: Client) -> list[float]:
        client.prepare(RUN, 1)
        took = client.calls(RUN, runtime.sandbox_request(), 1, 1)
        runtime.remove_sandboxes()
        return took

    state = f"--state-dir={stage.folder / 'held.state'}"
    with agents.running(stage.folder / "agent", None, runtime.socket, state) as agent:
        runtime.run_owner()
        owned = 'topolet_exclusive_cpus{namespace="default",pod="owner",qos_class="LSE"}'
        agent.wait_for("giving the owner its CPU", lambda: agent.metric(owned))
        table = Measurement(clients, proxy, max(6, int(40 * scale)), run_sandbox).rows(
            "run_pod_sandbox"
        )
    return [row for row in table if row["case"] != "run_pod_sandbox_socat"]


def rows(scale: float, backend: str, external: dict[str, str]) -> list[Row]:
    environment = grpcio_environment()
    if isinstance(environment, str):
        raise SystemExit(f"no backend: {environment}")
    with ExitStack() as stack:
        table = trivial_rows(Stage(stack, environment), scale, backend, external)
    with ExitStack() as stack:
        return table + containerd_rows(Stage(stack, environment), scale)


def rss_after_creations(client: Client, proxy: Process) -> float:
    """The proxy's megabytes after 1,000 creations."""
    client.prepare(CREATE, CREATES)
    client.calls(CREATE, create_request(), CREATES, 1)
    return proxy.rss_mb()


def named_socket(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not (name.isidentifier() and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SOCKET")
    return name, path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", default="", metavar="SOCKET", help="socket on which the backend listens"
    )
    parser.add_argument(
        "--proxy",
        action="append",
        default=[],
        type=named_socket,
        metavar="NAME=SOCKET",
        help="also measure this proxy in front of --backend",
    )


def main() -> None:
    options = arguments(__doc__, add_arguments)
    scale = 0.4 if options.quick else 1.0
    report(rows(scale, options.backend, dict(options.proxy)), options.output)


if __name__ == "__main__":
    main()
