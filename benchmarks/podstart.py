"""The start of a pod on a node with Topolet, compared with its start on a node without.

Two clusters run at the same time, each with a real etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, containerd and kubelet. One has all parts of Topolet, and its kubelet uses the
proxy; the other has none, and its kubelet uses containerd. The clusters start pods alternately, one
at a time. The time of a stage begins with the request that creates the pod; a ratio is the ratio of
the medians. `cpu_KIND_PROCESS`: the CPU time that a process uses for the start and end of a pod.
`cpu_at_rest_PROCESS`: the CPU seconds of a process in an hour while 30 pods run, with the number of
calls and passes in that time (`proxy_calls_at_rest`, `agent_passes_at_rest`). The base of
`cpu_at_rest_proxy` are relays in C and in Python that interpret nothing, in the proxy's place.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, ratio_row, report, skipped_row, value_row
from peers import podstarts

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cluster import host, pods
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.node import RUNTIME
from tests.fixtures import image

STAGES = ("created", "scheduled", "started", "running")
KINDS = {"ls": {"qos": "LS", "cpu": "100m"}, "lse": {"qos": "LSE", "cpu": 1}}
"""Arguments of `pods.manifest`."""
AT_REST = 30
SETTLE_SECONDS = 45.0
PROCESSES = {
    "agent": ("topolet", "agent"),
    "proxy": ("topolet", "proxy"),
    "scheduler": ("topolet", "scheduler"),
    "kubelet": ("kubelet",),
    "containerd": ("containerd",),
    "kube-apiserver": ("kube-apiserver",),
}
"""The first words of the command line of each process, by name."""
RELAYS = ("bare_relay", "bare_relay.py")
RELAY_SOCKET = "/run/topolet/relay.sock"

# Prints the CPU seconds, in steps of 10 ms, of the processes whose command lines start with the
# given words, by name, in JSON.
_TIMES = """import json, os, sys
processes = json.loads(sys.argv[1])
total = dict.fromkeys(processes, 0)
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read().decode().split(chr(0))
        words = [os.path.basename(each) for each in line[:4]]
        for name, wanted in processes.items():
            if any(words[i : i + len(wanted)] == wanted for i in range(3)):
                fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
                total[name] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        pass
print(json.dumps(total))
"""

# Prints the number of calls that the proxy has relayed.
_CALLS = """import urllib.request
page = urllib.request.urlopen("http://127.0.0.1:9327/metrics", timeout=5).read().decode()
name = "topolet_proxy_call_duration_seconds_count"
counts = [line for line in page.splitlines() if line.startswith(name)]
print(sum(float(line.rpartition(" ")[2]) for line in counts))
"""


def with_topolet(stack: ExitStack) -> Cluster:
    cluster = stack.enter_context(host.running())
    cluster.install()
    return cluster


def without(stack: ExitStack) -> Cluster:
    cluster = stack.enter_context(host.running())
    cluster.nodes[HOST].restart_kubelet(containerRuntimeEndpoint=RUNTIME)
    cluster.wait_node_ready(HOST)
    return cluster


def start(cluster: Cluster, name: str, **words: Any) -> dict[str, float]:
    """The milliseconds until each stage."""
    command = [image.BUSYBOX, "sh", "-c", f"echo started; {pods.SLEEP}"]
    pod = pods.manifest(name, container={"command": command}, **words)
    text = cluster.control.world.run(
        *(sys.executable, podstarts.__file__, cluster.control.config("admin")),
        stdin=json.dumps([pod]),
    )
    (found,) = json.loads(text)
    return {stage: float(found[stage]) for stage in STAGES}


def start_rows(ours: Cluster, base: Cluster, turns: int) -> list[Row]:
    found: dict[str, tuple[list[dict[str, float]], list[dict[str, float]]]] = {
        kind: ([], []) for kind in KINDS
    }
    for turn in range(turns + 1):
        for kind, words in KINDS.items():
            plain = {**words, "scheduler": "", "guaranteed": kind == "lse"}
            one = measured(ours, f"{kind}-{turn}", **words)
            other = measured(base, f"{kind}-{turn}", **plain)
            if turn:
                found[kind][0].append(one)
                found[kind][1].append(other)
    rows = []
    for kind, (topolet_samples, base_samples) in found.items():
        for name in (*STAGES, *PROCESSES):
            case, average = f"cpu_{kind}_{name}", statistics.mean
            if name in STAGES:
                case, average = f"{kind}_{name}", statistics.median
            value, base = (
                average([each[name] for each in some]) for some in (topolet_samples, base_samples)
            )
            known = ratio_row(case, value, base, "without Topolet", "ms") if base else None
            rows.append(known or value_row(case, value, "ms"))
    return rows


def measured(cluster: Cluster, name: str, **words: Any) -> dict[str, float]:
    """The milliseconds until each stage, and the milliseconds of CPU time of each process."""
    before = cpu_seconds(cluster)
    stages = start(cluster, name, **words)
    after = cpu_seconds(cluster)
    return stages | {process: (after[process] - before[process]) * 1e3 for process in PROCESSES}


def cpu_seconds(cluster: Cluster) -> dict[str, float]:
    machine = cluster.nodes[HOST].machine
    processes = PROCESSES | {name: (name,) for name in RELAYS}
    text = machine.run(sys.executable, "-c", _TIMES, json.dumps(processes))
    seconds: dict[str, float] = json.loads(text)
    return seconds


def work_done(cluster: Cluster) -> dict[str, float]:
    """The calls that the proxy has relayed and the passes of the agent, since their starts."""
    calls = cluster.nodes[HOST].machine.run(sys.executable, "-c", _CALLS)
    return {
        "proxy_calls_at_rest": float(calls),
        "agent_passes_at_rest": cluster.agent_metric(HOST, "topolet_reconciliations_total"),
    }


def rest_rows(cluster: Cluster, seconds: float) -> list[Row]:
    names = [f"rest-{number}" for number in range(AT_REST)]
    cluster.create(*(pods.manifest(name, qos="LS", cpu="10m") for name in names))
    cluster.wait_running(*names)
    time.sleep(SETTLE_SECONDS)
    done_before = work_done(cluster)
    used, passed = used_at_rest(cluster, seconds)
    done = work_done(cluster)
    rows = [
        value_row(name, (done[name] - done_before[name]) / passed * 3600, "/h") for name in done
    ]
    rows += [value_row(f"cpu_at_rest_{name}", used[name], "s/h") for name in PROCESSES]
    with tempfile.TemporaryDirectory() as folder:
        for relay, words in relays(Path(folder)).items():
            base = used_behind(cluster, relay, words, seconds)
            case, unit = f"cpu_at_rest_proxy_{relay}", "s/h"
            if base:
                rows.append(ratio_row(case, used["proxy"], base, relay, unit))
            else:
                reason = f"{relay} used less CPU time than the kernel counts: measure longer"
                rows.append(skipped_row(case, used["proxy"], unit, reason))
    return rows


def used_at_rest(cluster: Cluster, seconds: float) -> tuple[dict[str, float], float]:
    """The CPU seconds an hour of each process, and the seconds that the measurement took."""
    before, began = cpu_seconds(cluster), time.monotonic()
    time.sleep(seconds)
    after, passed = cpu_seconds(cluster), time.monotonic() - began
    return {name: (after[name] - before[name]) / passed * 3600 for name in after}, passed


def relays(folder: Path) -> dict[str, tuple[str | Path, ...]]:
    """The command of each relay that interprets nothing; that in C if it can be compiled."""
    source = Path(podstarts.__file__).with_name("bare_relay.c")
    commands: dict[str, tuple[str | Path, ...]] = {}
    if shutil.which("gcc"):
        subprocess.run(["gcc", "-O2", "-o", folder / "bare_relay", source], check=True)
        commands["bare_relay"] = (folder / "bare_relay",)
    commands["bare_relay.py"] = (sys.executable, source.with_suffix(".py"))
    return commands


def used_behind(
    cluster: Cluster, relay: str, command: tuple[str | Path, ...], seconds: float
) -> float:
    """The CPU seconds an hour of a relay that the kubelet uses instead of the proxy."""
    node = cluster.nodes[HOST]
    node.machine.start(relay, *command, RELAY_SOCKET, RUNTIME.removeprefix("unix://"))
    node.restart_kubelet(containerRuntimeEndpoint=f"unix://{RELAY_SOCKET}")
    cluster.wait_node_ready(HOST)
    time.sleep(SETTLE_SECONDS)
    used, _ = used_at_rest(cluster, seconds)
    node.restart_kubelet(containerRuntimeEndpoint=None)
    node.machine.end(relay)
    node.machine.remove(RELAY_SOCKET)
    return used[relay]


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--turns", type=int, default=12)
        parser.add_argument("--rest-seconds", type=float, default=300.0)

    given = arguments(__doc__, more)
    turns, seconds = (2, 10.0) if given.quick else (given.turns, given.rest_seconds)
    try:
        with ExitStack() as stack:
            ours = with_topolet(stack)
            rows = []
            if turns:
                with ExitStack() as second:
                    rows += start_rows(ours, without(second), turns)
            if seconds:
                rows += rest_rows(ours, seconds)
    except pytest.skip.Exception as reason:
        sys.exit(f"no cluster can start here: {reason}")
    report(rows, given.output)


if __name__ == "__main__":
    main()
