"""A service beside batch on one node: what the service loses, and what the batch gets.

The services are nginx, as Debian has it, under requests at a constant rate, each timed from when it
should have been sent; and a loop that waits 15 ms as for a GPU, works 1 ms, and begins again. Pods
of class BE that never sleep count their steps. All of them are containers of a private containerd,
in cgroups with the weights that a kubelet writes. An arm is a way to keep the batch from the
service:

- `alone`: the batch is stopped.
- `plain`: the weights alone.
- `requested`: the batch requests as much CPU as the service, so that it is not BestEffort.
- `static`: the CPUs of the service are its own, as by the kubelet's static policy.
- `priority`, `cpuset`, `quota`: one feature of the agent; the real one runs, with an API server.
- `ours`: all features of the agent.

The arms take turns, at 1, 2, and 4 pods of batch. A figure is the median of the turns. Batch is
what the pods did, in percent of what they could have done in the CPU time that the service and the
load generator left when they ran alone. `others` is the number of CPUs that everything else uses:
on a busy machine no figure means much, although other work gets little of the CPUs.

The load generator, `requests` of peers/load.c, has the first CPU at a real-time priority, to be in
time; the services run on the last CPU, the batch on all. (vegeta times a request from when
it was sent, and Go wakes for that up to a millisecond late: longer than what is measured.) A run
without --quick downloads nginx by apt-get into the cache, where it is not installed."""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from signal import SIGTERM, Signals, signal
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, ratio_row, report, value_row
from peers import agent as agents
from peers import cluster as clusters
from peers.agent import Agent
from peers.cluster import NODE, Cluster, NoClusterError
from peers.machine import CpuTimes, cpu_hierarchy, enter, weigh, within
from peers.runtime import NoRuntimeError, Program, Runtime, workloads

from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.node.contention import CgroupTasks
from tests import tools
from tests.fixtures.pods import PodSpec
from tests.fixtures.ports import free_port

RATE = 2_000
"""Requests a second."""
WAIT_US, WORK_US = 15_000, 1_000
PODS_OF_BATCH = (1, 2, 4)
SECONDS, QUICK_SECONDS = 5.0, 1.0
TURNS = 3
SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 20.0, 3.0
STEP_SECONDS = 2.5
USABLE_PERCENT = 95
"""Of the node, for suppression."""
REALTIME = 50
LEAST_SHARES, SERVICE_SHARES = 2, 1024
WEIGHT = 1 << 15
"""Of all pods together, and of the benchmark's own processes: that of 32 other processes."""
PLOT_COLUMNS = 50
PRIORITY, SUPPRESSION = "cpu-priority", "cpu-suppression"
LIBRARIES = ("/lib", "/lib64", "/usr", "/etc")
P99 = "server_p99_vs_alone"
GOALS = {
    P99: 1.2,
    "loop_rate_vs_alone": 0.85,
    "batch_of_idle_percent": 60.0,
    "utilization_percent": 85.0,
}
_PRIORITY = {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}
_COUNTS = struct.Struct("2q")
_NGINX = """daemon off; user root; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{ }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; location / {{ root {folder}/pages; }} }}
}}
"""


class MissingError(Exception):
    """The reason why a program can't be had."""


class Strategy(msgspec.Struct, frozen=True):
    """The strategies that the agent follows.

    `suppress`: the policy; None for no suppression."""

    priority: bool = False
    suppress: str | None = None

    def files(self) -> Mapping[str, Any]:
        """The configuration of strategies."""
        threshold = {
            "enable": self.suppress is not None,
            "cpuSuppressThresholdPercent": USABLE_PERCENT,
            "cpuSuppressPolicy": self.suppress or "cpuset",
        }
        return {
            "resource-qos-config": {"clusterStrategy": _PRIORITY if self.priority else {}},
            "resource-threshold-config": {"clusterStrategy": threshold},
        }


ALONE, PLAIN, REQUESTED, STATIC, OURS = "alone", "plain", "requested", "static", "ours"
STRATEGIES = {
    "priority": Strategy(priority=True),
    "cpuset": Strategy(suppress="cpuset"),
    "quota": Strategy(suppress="cfsQuota"),
    OURS: Strategy(priority=True, suppress="cfsQuota"),
}
ARMS = (ALONE, PLAIN, REQUESTED, STATIC, *STRATEGIES)
QUICK_ARMS = (ALONE, PLAIN, OURS)


class Load(msgspec.Struct, frozen=True):
    """What a service saw and the node did in one measurement.

    `late_ms`: of each request or step of the loop, sorted.
    `rate`: of these, a second.
    `steps`, `batch_cpu_us`: of the batch.
    `left_cpu_seconds`: of all CPUs, what neither our pods nor the load generator used.
    `others_cpus`: the CPUs that all but our pods and the load generator used."""

    late_ms: tuple[float, ...]
    rate: float
    steps: int
    batch_cpu_us: int
    left_cpu_seconds: float
    utilization_percent: float
    stolen_percent: float
    others_cpus: float

    def late(self, share: float) -> float:
        """The time that this share of them did not exceed, in ms."""
        return self.late_ms[min(len(self.late_ms) - 1, int(share * len(self.late_ms)))]


def cached(name: str, make: Callable[[Path], None], build: bool) -> Path:
    """A folder of the cache, which `make` fills. Raises MissingError."""
    folder = tools.cache() / name
    if folder.exists():
        return folder
    if not build:
        raise MissingError(f"{name} is not there yet: run once without --quick")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        made = Path(unfinished) / name
        made.mkdir()
        try:
            make(made)
        except (OSError, subprocess.CalledProcessError) as error:
            stderr = getattr(error, "stderr", None) or b""
            raise MissingError(f"{name}: {error} {stderr.decode()[-200:]}") from None
        made.rename(folder)
    return folder


def nginx(build: bool) -> Path:
    """That of this machine, or of its distribution. Raises MissingError."""
    if installed := shutil.which("nginx", path="/usr/sbin:/usr/bin"):
        return Path(installed)

    def make(folder: Path) -> None:
        words = ["apt-get", "download", "-o", "APT::Sandbox::User=root", "nginx"]
        subprocess.run(words, check=True, capture_output=True, cwd=folder)
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg", "-x", package, folder], check=True, capture_output=True)
        program = folder / "usr/sbin/nginx"
        subprocess.run([program, "-v"], check=True, capture_output=True)

    return cached("nginx-debian", make, build) / "usr/sbin/nginx"


class Node:
    """The pods, and one measurement after the other.

    `folder`: shared with the containers.
    `settle_seconds`: the most time until the agent has given batch what it may have."""

    def __init__(
        self, folder: Path, runtime: Runtime, cluster: Cluster, settle_seconds: float
    ) -> None:
        self._settle_seconds = settle_seconds
        self.folder, self._runtime, self._cluster = folder, runtime, cluster
        self.program = workloads(folder)
        self.cpus = sorted(os.sched_getaffinity(0))
        self.client_cpu, self.service_cpu = self.cpus[0], self.cpus[-1]
        self.controllers = Controllers()
        self._tasks = CgroupTasks(self.controllers, Hierarchy())
        self._batch: list[tuple[str, Program]] = []
        self.best_step_us = math.inf
        """The least CPU time of a step of the batch."""
        amounts = {"cpu": str(len(self.cpus)), "memory": "8Gi"}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        cluster.api.admin.merge(f"/api/v1/nodes/{NODE}/status", status)

    def start(self, name: str, qos: str, program: Path, *words: str) -> Program:
        """Starts a pod of the API."""
        be = qos == "BE"
        cpuset = json.dumps({"cpuset": str(self.service_cpu)})
        pod = self._cluster.api.pod(
            "default",
            name,
            NODE,
            labels={QOS_LABEL: qos},
            annotations={} if be else {RESOURCE_STATUS: cpuset},
        )
        spec = PodSpec(
            name,
            qos,
            "" if be else str(self.service_cpu),
            "besteffort" if be else "guaranteed",
            uid=pod["metadata"]["uid"],
        )
        started = self._runtime.run_program(
            spec,
            program,
            *words,
            cpus="" if be else str(self.service_cpu),
            folders=(*LIBRARIES, str(self.folder)),
        )
        shares = LEAST_SHARES if be else SERVICE_SHARES
        groups = [started.group, os.path.dirname(started.group)]
        if be:
            groups.append(os.path.dirname(groups[-1]))
        for group in groups:
            weigh(group, shares)
        weigh(spec.cgroup_root, WEIGHT)
        return started

    def add_batch(self, number: int) -> None:
        """Starts pods of batch, which are stopped, until there are so many."""
        while len(self._batch) < number:
            name = f"batch-{len(self._batch)}"
            words = "count", str(self.folder / name)
            (self.folder / name).write_bytes(bytes(_COUNTS.size))
            program = self.start(name, "BE", self.program, *words)
            self.send(Signals.SIGSTOP, program)
            self._batch.append((name, program))

    def send(self, number: Signals, *programs: Program) -> None:
        for program in programs:
            for thread in self._tasks.threads(program.group):
                os.kill(thread, number)

    def signal_batch(self, number: Signals) -> None:
        self.send(number, *(program for _, program in self._batch))

    def confine_batch(self, cpus: Sequence[int]) -> None:
        for _, program in self._batch:
            program.update(cpuset_cpus=",".join(map(str, cpus)))

    def weigh_batch(self, shares: int) -> None:
        """Gives each pod of batch this weight, and the group of all of them the sum."""
        for _, program in self._batch:
            pod = os.path.dirname(program.group)
            weigh(pod, shares)
            weigh(
                os.path.dirname(pod),
                shares if shares == LEAST_SHARES else shares * len(self._batch),
            )

    def batch_is_confined(self) -> bool:
        """Whether all pods of batch have fewer CPUs than the node."""
        texts = (
            self.controllers.read(program.group, "cpuset.cpus") or "" for _, program in self._batch
        )
        return all(CpuSet.parse(text.strip()) < CpuSet(self.cpus) for text in texts)

    def counted(self) -> tuple[int, int]:
        """The steps of the batch and their CPU time, in µs."""
        pairs = [
            _COUNTS.unpack((self.folder / name).read_bytes()[: _COUNTS.size])
            for name, _ in self._batch
        ]
        return sum(steps for steps, _ in pairs), sum(took for _, took in pairs)

    def batch_quota(self) -> str:
        """That of all pods of batch together."""
        group = os.path.dirname(os.path.dirname(self._batch[0][1].group))
        file = "cpu.max" if self.controllers.version("cpu") == 2 else "cpu.cfs_quota_us"
        return (self.controllers.read(group, file) or "").split()[0]

    def settle(self) -> None:
        """Waits while the quota of the batch grows, which it does in steps."""
        deadline = time.monotonic() + self._settle_seconds
        before, now = 0, int(self.batch_quota())
        while before < now and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS)
            before, now = now, int(self.batch_quota())

    def agent(self, folder: Path, *flags: str) -> AbstractContextManager[Agent]:
        return agents.running(folder, self._cluster, self._runtime.socket, *flags)

    def measure(self, service: Service) -> Load:
        root = service.program.spec.cgroup_root
        times, counted = CpuTimes.now(), self.counted()
        ours, client = self.controllers.cpu_seconds(root) or 0.0, client_seconds()
        began = time.monotonic()
        service.observe()
        seconds = time.monotonic() - began
        after, steps = CpuTimes.now(), self.counted()
        busy = (self.controllers.cpu_seconds(root) or 0.0) - ours + client_seconds() - client
        late_ms = sorted(service.late_ms())
        of_all = after.all - times.all
        idle, stolen = after.idle - times.idle, after.stolen - times.stolen
        load = Load(
            tuple(late_ms),
            len(late_ms) / seconds,
            steps[0] - counted[0],
            steps[1] - counted[1],
            of_all - busy,
            100 * (1 - idle / of_all),
            100 * stolen / of_all,
            max(0.0, (of_all - idle - stolen - busy) / seconds),
        )
        if load.steps:
            self.best_step_us = min(self.best_step_us, load.batch_cpu_us / load.steps)
        return load


class Service(msgspec.Struct, frozen=True):
    """A service that runs.

    `observe`: lasts as long as a measurement.
    `late_ms`: returns the lateness of each request or step in it."""

    program: Program
    observe: Callable[[], None]
    late_ms: Callable[[], list[float]]


@contextmanager
def apart() -> Iterator[None]:
    """The processes of the benchmark have a group of their own, as the machine's services beside
    the kubelet's: otherwise batch, whose weight is that of all pods, would starve them."""
    group = f"/topolet-colocation-{os.getpid()}"
    with within(group):
        weigh(group, WEIGHT)
        yield


def client_seconds() -> float:
    """The CPU time of the processes that have ended, among them the load generator."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def server(node: Node, program: Path, seconds: float) -> Service:
    port = free_port()
    folder = node.folder / "nginx"
    (folder / "pages").mkdir(parents=True)
    (folder / "pages/index.html").write_bytes(os.urandom(512).hex().encode())
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port))
    words = "-p", str(folder), "-c", str(folder / "nginx.conf")
    pod = node.start("server", "LSR", program, *words)
    url = f"http://127.0.0.1:{port}/"
    deadline = time.monotonic() + 10
    while True:
        try:
            urllib.request.urlopen(url, timeout=1).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise MissingError(f"nginx does not answer: {error}") from None
            time.sleep(0.05)

    def in_time() -> None:
        enter(cpu_hierarchy(), "/")  # only threads of the first group may have a real-time priority
        os.sched_setaffinity(0, {node.client_cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME))

    late: list[float] = []

    def observe() -> None:
        words = "requests", str(port), str(RATE), str(round(RATE * seconds))
        done = subprocess.run(
            [node.program, *words], check=True, capture_output=True, preexec_fn=in_time
        )
        late[:] = (int(line) / 1000 for line in done.stdout.split())

    return Service(pod, observe, lambda: late)


def loop(node: Node, seconds: float) -> Service:
    steps = node.folder / "steps"
    pod = node.start("loop", "LSR", node.program, "engine", str(steps), str(WAIT_US), str(WORK_US))
    node.send(Signals.SIGSTOP, pod)

    records = struct.Struct("q")

    def observe() -> None:
        steps.write_bytes(b"")
        node.send(Signals.SIGCONT, pod)
        time.sleep(seconds)
        node.send(Signals.SIGSTOP, pod)

    def late() -> list[float]:
        """Without the first step, which began before it was stopped."""
        return [late / 1000 for (late,) in records.iter_unpack(steps.read_bytes()[records.size :])]

    return Service(pod, observe, late)


@contextmanager
def arm(node: Node, name: str) -> Iterator[None]:
    """The node as this arm has it."""
    if name == ALONE:
        yield
        return
    node.signal_batch(Signals.SIGCONT)
    try:
        if name == STATIC:
            node.confine_batch([cpu for cpu in node.cpus if cpu != node.service_cpu])
            yield
            node.confine_batch(node.cpus)
        elif name == REQUESTED:
            node.weigh_batch(SERVICE_SHARES)
            yield
            node.weigh_batch(LEAST_SHARES)
        elif name in STRATEGIES:
            with acting(node, STRATEGIES[name]):
                yield
        else:
            yield
    finally:
        node.signal_batch(Signals.SIGSTOP)


@contextmanager
def acting(node: Node, strategy: Strategy) -> Iterator[None]:
    """An agent acts on the pods; afterwards they have again what they had."""
    with tempfile.TemporaryDirectory(prefix="topolet-") as name:
        folder = Path(name)
        config = folder / "slo-config"
        config.mkdir()
        for key, content in strategy.files().items():
            (config / key).write_text(json.dumps(content))
        flags = ["--usage", "--node-slo=follow", "--colocation=act", f"--slo-config={config}"]
        flags.append("--be-on-owned=never")
        with node.agent(folder / "agent", *flags) as agent:
            wait_until_acting(agent, node, strategy)
            yield
        restored = ["restore", f"--state-dir={folder / 'agent' / 'state'}"]
        words = [sys.executable, "-m", "agent", *restored]
        subprocess.run(words, check=True, capture_output=True)


def wait_until_acting(agent: Agent, node: Node, strategy: Strategy) -> None:
    def files(feature: str) -> float:
        return agent.metric(f'topolet_colocation_files{{feature="{feature}"}}')

    if strategy.priority:
        agent.wait_for("making batch idle", lambda: files(PRIORITY))
    if strategy.suppress == "cfsQuota":
        agent.wait_for("giving batch a quota", lambda: files(SUPPRESSION))
        node.settle()
    if strategy.suppress == "cpuset":
        agent.wait_for("confining batch", node.batch_is_confined)


Loads = dict[tuple[str, int, str], list[Load]]
"""By service, number of pods of batch, and arm: those of the turns."""


def measured(
    node: Node, services: Mapping[str, Service], ladder: Sequence[int], turns: int, arms: list[str]
) -> Loads:
    loads: Loads = {}
    for number in ladder:
        node.add_batch(number)
        for _ in range(turns):
            for name in arms:
                with arm(node, name):
                    for service, running in services.items():
                        load = node.measure(running)
                        loads.setdefault((service, number, name), []).append(load)
    return loads


def median(loads: Sequence[Load], figure: Callable[[Load], float]) -> float:
    return statistics.median(map(figure, loads))


def batch_percent(loads: Sequence[Load], alone: Sequence[Load], step_us: float) -> float:
    """The work of the batch, of what fits into the time that was left without it."""
    left = median(alone, lambda load: load.left_cpu_seconds)
    return 100 * median(loads, lambda load: load.steps * step_us / 1e6) / left


def rows(loads: Loads, step_us: float) -> list[Row]:
    """`step_us`: the CPU time that a step of the batch needs."""
    table: list[Row] = []
    for (service, number, name), of_turns in sorted(loads.items(), key=lambda load: load[0][0]):
        alone = loads[service, number, ALONE]
        table.append(
            {
                "case": f"{service}_{name}_{number}",
                "value": median(of_turns, lambda load: load.late(0.5)),
                "unit": "ms",
                "p99": median(of_turns, lambda load: load.late(0.99)),
                "p999": median(of_turns, lambda load: load.late(0.999)),
                "rate": median(of_turns, lambda load: load.rate),
                "batch_of_idle_percent": batch_percent(of_turns, alone, step_us),
                "utilization_percent": median(of_turns, lambda load: load.utilization_percent),
                "stolen_percent": median(of_turns, lambda load: load.stolen_percent),
                "others": median(of_turns, lambda load: load.others_cpus),
            }
        )
    return table


def summary(table: Sequence[Row]) -> list[Row]:
    """The figures of the goal, at the most batch, and those of the other arms."""
    most = max(int(row["case"].rpartition("_")[2]) for row in table)
    by_case = {row["case"]: row for row in table}
    figures: list[Row] = []
    for name in ARMS[1:]:
        server, engine = (by_case.get(f"{each}_{name}_{most}") for each in ("server", "loop"))
        if server is None or engine is None:
            continue
        suffix = "" if name == OURS else f"_{name}"
        alone, loop_alone = (by_case[f"{each}_{ALONE}_{most}"] for each in ("server", "loop"))
        figures += [
            ratio_row(f"server_p99_vs_alone{suffix}", server["p99"], alone["p99"], ALONE, "ms"),
            ratio_row(
                f"loop_rate_vs_alone{suffix}", engine["rate"], loop_alone["rate"], ALONE, "/s"
            ),
            value_row(f"batch_of_idle_percent{suffix}", server["batch_of_idle_percent"], "%"),
            value_row(f"utilization_percent{suffix}", server["utilization_percent"], "%"),
        ]
    return figures


def verdicts(figures: Sequence[Row]) -> Iterator[str]:
    """One line for each goal."""
    by_case = {row["case"]: row for row in figures}
    for case, goal in GOALS.items():
        row = by_case[case]
        value: float = row["ratio"] if "ratio" in row else row["value"]
        bound = "at most" if case == P99 else "at least"
        reached = value <= goal if case == P99 else value >= goal
        verdict = "" if reached else "NOT "
        yield f"{case}: {value:.3g}, {verdict}{bound} {goal:g}"


def listed(table: Sequence[Row]) -> Iterator[str]:
    """The table, and after it the plot of p99."""
    yield (
        f"{'':22}{'p50 ms':>8}{'p99':>8}{'p99.9':>8}{'rate/s':>8}"
        f"{'batch %':>9}{'used %':>8}{'stolen %':>10}{'others':>8}"
    )
    for row in table:
        yield (
            f"{row['case']:22}{row['value']:8.2f}{row['p99']:8.2f}{row['p999']:8.2f}"
            f"{row['rate']:8.0f}{row['batch_of_idle_percent']:9.0f}"
            f"{row['utilization_percent']:8.0f}{row['stolen_percent']:10.1f}{row['others']:8.2f}"
        )


def plotted(table: Sequence[Row]) -> Iterator[str]:
    """The p99 of all rows, on a scale of powers."""
    values = [row["p99"] for row in table if row["p99"] > 0]
    if not values:
        return
    low, high = math.log(min(values)), math.log(max(values))
    yield f"p99 in ms, from {min(values):.2g} to {max(values):.2g}, each column the same factor"
    for row in table:
        at = (math.log(row["p99"]) - low) / (high - low or 1.0) if row["p99"] > 0 else 0.0
        yield f"{row['case']:22}|{'#' * round(1 + at * PLOT_COLUMNS)} {row['p99']:.2f}"


def unusable() -> str | None:
    """The reason why nothing can be measured here, or None."""
    if len(os.sched_getaffinity(0)) < 2:
        return "the service needs a CPU that the load generator does not use"
    return None


def run(options: argparse.Namespace) -> list[Row]:
    """Raises MissingError, NoClusterError, NoRuntimeError."""
    if reason := unusable():
        raise MissingError(reason)
    program = nginx(not options.quick)
    seconds = QUICK_SECONDS if options.quick else options.seconds
    arms = list(options.arm or (QUICK_ARMS if options.quick else ARMS))
    if ALONE not in arms:
        arms.insert(0, ALONE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        shared = folder / "shared"
        shared.mkdir()
        stack.enter_context(apart())
        cluster = stack.enter_context(clusters.running(folder))
        runtime = stack.enter_context(Runtime())
        settle_seconds = QUICK_SETTLE_SECONDS if options.quick else SETTLE_SECONDS
        node = Node(shared, runtime, cluster, settle_seconds)
        services = {"server": server(node, program, seconds), "loop": loop(node, seconds)}
        ladder = PODS_OF_BATCH[-1:] if options.quick else PODS_OF_BATCH
        turns = 1 if options.quick else options.turns
        return rows(measured(node, services, ladder, turns, arms), node.best_step_us)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arm", action="append", choices=ARMS, help="only this arm, and alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a measurement")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each arm")


KOORDLET = {
    "case": "server_p99_vs_alone_koordlet",
    "unit": "ms",
    "skipped": "koordlet is compiled with libpfm, and reads the pods of a node from a kubelet",
}


def main() -> None:
    options = arguments(__doc__, add_arguments)
    # Batch never sleeps: a run that is ended from outside ends its pods too.
    signal(SIGTERM, lambda *_: sys.exit(1))
    try:
        table = run(options)
    except (MissingError, NoClusterError, NoRuntimeError) as error:
        units = dict(zip(GOALS, ("ms", "/s", "%", "%"), strict=True))
        report(
            [{"case": case, "unit": unit, "skipped": str(error)} for case, unit in units.items()],
            options.output,
        )
        return
    figures = [*summary(table), KOORDLET]
    if options.output == "json":
        report([*figures, *table], options.output)
        return
    for line in (*listed(table), "", *plotted(table), ""):
        print(line)
    report(figures, options.output)
    if any(row["case"] == P99 for row in figures):
        print("\n".join(verdicts(figures)))


if __name__ == "__main__":
    main()
