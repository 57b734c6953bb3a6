"""The scheduler's extender: the time of its verbs, compared with the HTTP exchange of the same
bytes without a decision, and the number of pods a second.

The server runs as in production, in its own process, and watches the API server of a simulated
cluster in a second process; this process calls it over open connections. Every call is for another
pod. A pod is bound between any two calls, so that some nodes changed since the last call for a
equivalence class. As from kube-scheduler, prioritize gets the nodes that filter returned.
`CASE_cold`: the first call of each class, compared with the warm ones. The steps of a case are the
times to decode, decide and encode, and the rest for HTTP. `passed_through`: the time of a verb for
a pod without requirements for Topolet, in addition to the bare exchange.
`pods_per_second_cpu`: the CPU time of the server for each of these pods. `rss_start_mb`: its memory
when it is ready; `rss_mb`: at the end.
`explaining_500`: 500 candidates while an explanation for another client is in progress, compared
with 500 candidates while none is, in turns. `explanation`: the time of one about all nodes;
`explanation_no_room`: the same for a pod for which no node has room. `growth_N`: all nodes of
clusters of other sizes. nodefilter.py and zonefilter.py have the cases of single nodes.
"""

from __future__ import annotations

import functools
import json
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from agent.scheduler.extender import extender
from benchmarks import nodefilter, stubapi, zonefilter
from benchmarks.common import Row, arguments, percentile, ratio_row, report, value_row
from tests.fixtures import fleet

ROOT: Final = Path(__file__).resolve().parents[1]
BARE: Final = "bare HTTP exchange"
VERBS: Final = ("filter", "prioritize")
START_SECONDS: Final = 240.0


class Extent(msgspec.Struct, frozen=True):
    """The extent of the measurement. `cluster_sizes`: further clusters, with requests about all
    nodes."""

    nodes: int = 5000
    pods: int = 100_000
    kinds: int = 60
    rounds: int = 240
    burst: int = 1000
    explanations: int = 10
    cluster_sizes: tuple[int, ...] = (500, 15_000)


QUICK: Final = Extent(pods=5000, kinds=5, rounds=24, burst=80, explanations=2, cluster_sizes=())


class Connection:
    """One connection, at little cost for the caller. The first request opens it: the server soon
    closes one without a request."""

    def __init__(self, port: int) -> None:
        self._port = port

    @functools.cached_property
    def _socket(self) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self._port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def post(self, path: str, body: bytes) -> bytes:
        """Returns the body of the answer. Raises RuntimeError for another status than 200."""
        self._socket.sendall(
            b"POST /%s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), len(body))
            + body
        )
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._received()
        head = data[:end]
        if b" 200 " not in head[:15]:
            raise RuntimeError(f"{path}: {data[:300]!r}")
        low = head.lower()
        length = int(low[low.index(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
        parts = [data[end + 4 :]]
        missing = length - len(parts[0])
        while missing > 0:
            parts.append(self._received())
            missing -= len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data


class Extender:
    """A process that serves the verbs."""

    def __init__(self, stack: ExitStack, *arguments: str) -> None:
        self.port, self.pages = free_port(), free_port()
        if arguments:
            arguments = (*arguments, str(self.pages))
        self.process = start_process(stack, "benchmarks.extenders", str(self.port), *arguments)
        self._wait()
        self.connection = Connection(self.port)
        stack.callback(self.connection.close)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError("the extender ended")
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the extender does not listen")

    def page(self, path: str) -> str | None:
        """Returns None if the page is not served now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.page("/readyz") is None:
            if time.monotonic() > deadline:
                raise RuntimeError("the extender is not ready")
            time.sleep(0.1)

    def metric(self, name: str) -> float:
        for line in (self.page("/metrics") or "").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise RuntimeError(f"no metric {name}")

    def seconds(self, verb: str) -> float:
        """Returns the time that it has spent on all calls of the verb, from body to answer."""
        return self.metric(f'topolet_scheduler_request_duration_seconds_sum{{verb="{verb}"}}')

    def rss_mb(self) -> float:
        statm = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(statm[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def start_process(stack: ExitStack, module: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(stop, process)
    return process


def stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.terminate()
    process.stdin.close()
    process.stdout.close()
    process.wait()


class VerbTimes(msgspec.Struct, frozen=True):
    """The milliseconds of filter and prioritize of one pod: Topolet's, and those of bare exchanges
    of the same bytes. `read` and `written`: decoding of the filter's request and encoding of its
    answer."""

    ours: float
    base: float
    read: float
    written: float


class Caller:
    """Calls the extender like kube-scheduler, for pods of the first `kinds` equivalence classes in
    turn."""

    def __init__(self, ours: Extender, bare: Extender, nodes: int, kinds: int) -> None:
        self.ours = ours
        self._bare = bare
        self.nodes = nodes
        self._names = [stubapi.node_name(number) for number in range(nodes)]
        self._kinds = fleet.kinds()
        self._step = len(self._kinds) // kinds
        self._used_kinds = kinds
        self._random = random.Random(1)
        self._count = 0
        self.conflicts = 0

    def next(
        self, candidates: int, kind: int | None = None, names: Sequence[str] = ()
    ) -> tuple[str, bytes]:
        """Returns a new pod's name and the body of its requests, with these node `names` or random
        ones."""
        if kind is None:
            kind = self._count % self._used_kinds * self._step
        self._count += 1
        name = stubapi.pod_name(kind, self._count)
        pod = (fleet.NOTHING if kind == len(self._kinds) else self._kinds[kind]).pod(name)
        del pod["spec"]["nodeName"]
        names = names or self._random.sample(self._names, candidates)
        args = {"Pod": pod, "Nodes": None, "NodeNames": names}
        return name, json.dumps(args, separators=(",", ":")).encode()

    def bind(self, connection: Connection, name: str, node: str) -> None:
        args = {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": node}
        answer = json.loads(connection.post("bind", json.dumps(args).encode()))
        self.conflicts += bool(answer["Error"])

    def decide(self, connection: Connection, body: bytes) -> str | None:
        """Calls filter and prioritize; returns the node that kube-scheduler would choose."""
        filtered = connection.post("filter", body)
        answer = msgspec.json.decode(filtered, type=_Filtered)
        if len(answer.names) > 1:
            text = connection.post("prioritize", of_feasible(body, filtered))
            if priorities := msgspec.json.decode(text, type=list[_Priority]):
                return max(priorities, key=lambda each: each.score).host
        return answer.names[0] if answer.names else None

    def measured(self, candidates: int, kind: int | None = None) -> VerbTimes:
        """Calls both verbs for one pod, then binds it."""
        name, body = self.next(candidates, kind)
        ours: list[float] = []
        base: list[float] = []
        answers = []
        for verb in VERBS:
            verb_body = of_feasible(body, answers[0]) if answers else body
            took, answer = self._post(self.ours, verb, verb_body)
            bare = self._bare_exchange(verb, verb_body, answer)
            ours.append(took)
            base.append(bare)
            answers.append(answer)
        read, written = self._steps(body, answers)
        self._bind_first(name, answers[0])
        return VerbTimes(sum(ours), sum(base), read, written)

    def overhead(self, candidates: int, kind: int) -> tuple[float, float]:
        """Returns the milliseconds that each verb takes in addition to its bare exchange, for one
        pod of this class. The verbs are called for another pod of the class before, so that the
        watch has received the last bind."""
        _, body = self.next(candidates, kind)
        answers = [self._post(self.ours, verb, body)[1] for verb in VERBS]
        name, body = self.next(candidates, kind, json.loads(body)["NodeNames"])
        bare = [
            self._bare_exchange(verb, body, answer)
            for verb, answer in zip(VERBS, answers, strict=True)
        ]
        ours = [self._post(self.ours, verb, body)[0] for verb in VERBS]
        self._bind_first(name, answers[0])
        return ours[0] - bare[0], ours[1] - bare[1]

    @staticmethod
    def _post(server: Extender, verb: str, body: bytes) -> tuple[float, bytes]:
        took, answer = _timed(lambda: server.connection.post(verb, body))
        return took, answer

    def _bare_exchange(self, verb: str, body: bytes, answer: bytes) -> float:
        self._bare.connection.post("answer", answer)
        return self._post(self._bare, verb, body)[0]

    def _bind_first(self, name: str, filtered: bytes) -> None:
        nodes = json.loads(filtered)["NodeNames"]
        if nodes:
            self.bind(self.ours.connection, name, nodes[0])

    @staticmethod
    def _steps(body: bytes, answers: Sequence[bytes]) -> tuple[float, float]:
        result = msgspec.json.decode(answers[0], type=extender.ExtenderFilterResult)
        read, args = _timed(lambda: extender.extender_args(body))
        written, _ = _timed(lambda: extender.filter_answer(args, result))
        return read, written


def of_feasible(body: bytes, filtered: bytes) -> bytes:
    """The request for the nodes that the filter returned, as kube-scheduler sends it."""
    names = msgspec.json.decode(filtered, type=_Filtered).names
    return msgspec.json.encode({**msgspec.json.decode(body), "NodeNames": names})


class _Filtered(msgspec.Struct):
    names: list[str] = msgspec.field(name="NodeNames", default_factory=list)


class _Priority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = call()
    return (time.perf_counter() - start) * 1e3, answer


def verbs(
    case: str, caller: Caller, candidates: int, rounds: int, cold: Sequence[VerbTimes]
) -> list[Row]:
    """A row of warm calls, one of cold ones, and one for each step."""
    before = _server_ms(caller.ours)
    took = [caller.measured(candidates) for _ in range(rounds)]
    server_ms = (_server_ms(caller.ours) - before) / rounds
    ours, base = [each.ours for each in took], [each.base for each in took]
    read = statistics.mean(each.read for each in took)
    written = statistics.mean(each.written for each in took)
    steps = {
        "decode": read,
        "decide": server_ms - read - written,
        "encode": written,
        "http": statistics.mean(ours) - server_ms,
    }
    row = ratio_row(
        case,
        statistics.median(ours),
        statistics.median(base),
        BARE,
        "ms",
        p99=percentile(ours, 99),
    )
    first = [each.ours for each in cold]
    row_cold = ratio_row(
        f"{case}_cold",
        statistics.median(first),
        statistics.median(ours),
        "warm",
        "ms",
        p99=percentile(first, 99),
    )
    return [
        row,
        row_cold,
        *(value_row(f"{case}_{step}", value, "ms") for step, value in steps.items()),
    ]


def _server_ms(ours: Extender) -> float:
    return 1e3 * (ours.seconds("filter") + ours.seconds("prioritize"))


def passed_through(caller: Caller, candidates: int, rounds: int) -> Row:
    """The time of a verb in addition to the bare exchange, for a pod without requirements."""
    nothing = len(fleet.kinds())
    caller.measured(caller.nodes, nothing)
    took = [caller.overhead(candidates, nothing) for _ in range(rounds)]
    of_verbs = [statistics.median(each[verb] for each in took) for verb in range(len(VERBS))]
    row = value_row("passed_through", max(of_verbs), "ms")
    return row | dict(zip(VERBS, of_verbs, strict=True))


class ExplainClient:
    """A client in its own process, of one explanation at a time."""

    def __init__(self, stack: ExitStack, pages: int) -> None:
        self._process = start_process(stack, "benchmarks.explanations", str(pages))

    def request(self, pod: str) -> None:
        """`pod`: `room` or `none`, what the nodes have for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pod}\n")
        self._process.stdin.flush()

    def has_answer(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def milliseconds(self) -> float:
        """Waits for the answer; returns the time that it took."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())


def explaining(caller: Caller, candidates: int, explanations: int) -> list[Row]:
    """The times of explanations, and warm calls during an explanation compared with calls without
    one, in turns."""
    times: dict[str, list[float]] = {"room": [], "none": []}
    during: list[float] = []
    without: list[float] = []
    with ExitStack() as stack:
        client = ExplainClient(stack, caller.ours.pages)
        for _ in range(explanations):
            for name, took in times.items():
                client.request(name)
                took.append(client.milliseconds())
        for number in range(explanations):
            client.request("none" if number % 2 else "room")
            before = len(during)
            while not client.has_answer():
                during.append(caller.measured(candidates).ours)
            client.milliseconds()
            without += [caller.measured(candidates).ours for _ in range(len(during) - before)]
    row = ratio_row(
        f"explaining_{candidates}",
        statistics.median(during),
        statistics.median(without),
        "no explanation",
        "ms",
        p99=percentile(during, 99),
        base_p99=percentile(without, 99),
    )
    return [
        row,
        value_row("explanation", statistics.median(times["room"]), "ms"),
        value_row("explanation_no_room", statistics.median(times["none"]), "ms"),
    ]


def pods_per_second(
    stack: ExitStack, caller: Caller, candidates: int, pods: int, callers: int = 8
) -> float:
    """Like kube-scheduler: decides one pod after the other, and binds each on another thread."""
    connections = [Connection(caller.ours.port) for _ in range(callers)]
    for each in connections:
        stack.callback(each.close)
    prepared = [caller.next(candidates) for _ in range(pods)]
    free = list(connections)

    def bind(name: str, node: str) -> None:
        connection = free.pop()
        caller.bind(connection, name, node)
        free.append(connection)

    with ThreadPoolExecutor(callers) as pool:
        start = time.perf_counter()
        bound = []
        for name, body in prepared:
            node = caller.decide(caller.ours.connection, body)
            if node is not None:
                bound.append(pool.submit(bind, name, node))
        for each in bound:
            each.result()
        seconds = time.perf_counter() - start
    return len(bound) / seconds


def cluster(stack: ExitStack, nodes: int, pods: int) -> Extender:
    """Starts Topolet's extender with an API server of that size; returns when it is ready."""
    api = start_process(stack, "benchmarks.stubapi", str(nodes), str(pods))
    assert api.stdout is not None
    ours = Extender(stack, api.stdout.readline().strip())
    ours.ready()
    return ours


def growth(stack: ExitStack, bare: Extender, nodes: int, extent: Extent) -> list[Row]:
    """The rows of a cluster of another size, with requests about all of its nodes."""
    with ExitStack() as own:
        caller = Caller(cluster(own, nodes, 4 * nodes), bare, nodes, 10)
        cold = [caller.measured(nodes) for _ in range(10)]
        return verbs(f"growth_{nodes}", caller, nodes, extent.rounds // 3, cold)


def rows(extent: Extent) -> list[Row]:
    """All cases of the extender."""
    found: list[Row] = []
    with ExitStack() as stack:
        bare = Extender(stack)
        began = time.monotonic()
        ours = cluster(stack, extent.nodes, extent.pods)
        found.append(value_row("start", time.monotonic() - began, "s"))
        found.append(value_row("rss_start_mb", ours.rss_mb(), "MB"))
        caller = Caller(ours, bare, extent.nodes, extent.kinds)
        cold = [caller.measured(500) for _ in range(extent.kinds)]
        cold_all = [caller.measured(extent.nodes) for _ in range(extent.kinds)]
        found += verbs("filter_prioritize_500", caller, 500, extent.rounds, cold)
        found += verbs("filter_prioritize_5000", caller, extent.nodes, extent.rounds, cold_all)
        found.append(passed_through(caller, 500, extent.rounds))
        found += explaining(caller, 500, extent.explanations)
        for candidates in (100, 500):
            cpu_seconds = ours.metric("process_cpu_seconds_total")
            pods_a_second = pods_per_second(stack, caller, candidates, extent.burst)
            cpu_seconds = ours.metric("process_cpu_seconds_total") - cpu_seconds
            case = "pods_per_second" if candidates == 100 else f"pods_per_second_{candidates}"
            found.append(value_row(case, pods_a_second, "pods/s"))
            found.append(value_row(f"{case}_cpu", 1e3 * cpu_seconds / extent.burst, "ms"))
        found.append(
            value_row("lost_races", ours.metric("topolet_scheduler_bind_conflicts_total"), "binds")
        )
        found.append(value_row("rss_mb", ours.rss_mb(), "MB"))
    with ExitStack() as stack:
        bare = Extender(stack)
        for nodes in extent.cluster_sizes:
            found += growth(stack, bare, nodes, extent)
    return found


def main() -> None:
    chosen = arguments(__doc__)
    found = rows(QUICK if chosen.quick else Extent())
    with ExitStack() as stack:
        found += nodefilter.table(stack, quick=chosen.quick)
        found += zonefilter.table(stack, quick=chosen.quick)
    report(found, chosen.output)


if __name__ == "__main__":
    main()
