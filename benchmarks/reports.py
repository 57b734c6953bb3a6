"""The agent's writes to the API server, counted by the server's audit log.

Idle: a node with a few real pods and a PodResources API that answers, on which only the kubelet's
heartbeats change. The agent compares its report with the stored objects twice a second (on a node
every 300 s). Burst: 100 pods are created at once, and half of them own CPUs; writes are counted
until the report is correct and was compared once more, `burst_100_pods_events` are those of Events.
Both use one real etcd and kube-apiserver.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.kubelet.podresources import socket_path
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from benchmarks.common import Row, arguments, report, value_row
from benchmarks.peers import agent as agents
from benchmarks.peers import cluster as clusters
from benchmarks.peers import podresources
from benchmarks.peers.agent import Agent
from benchmarks.peers.cluster import NODE, Cluster, NoClusterError
from benchmarks.peers.runtime import NoRuntimeError, Runtime
from tests.fixtures import trees

IDLE = "idle_writes_per_hour"
BURST, EVENTS = "burst_100_pods_writes", "burst_100_pods_events"
RECHECK_SECONDS = 0.5
REAL_PODS = 3
PODS = 100
CPUS = CpuSet(range(64))
POOLS = "node.koordinator.sh/cpu-shared-pools"


def wait_for_comparisons(agent: Agent, times: int) -> None:
    """Waits until the agent has compared its report with the server's this number of times, and
    found no difference."""
    series = 'topolet_reports_total{result="unchanged"}'
    before = agent.metric(series)
    agent.wait_for("comparing", lambda: agent.metric(series) >= before + times)


def idle(folder: Path, cluster: Cluster, runtime: Runtime, seconds: float) -> Row:
    names = [f"idle-{number}" for number in range(REAL_PODS)]
    for name in names:
        pod = cluster.api.pod("default", name, NODE, labels={QOS_LABEL: "LS"})
        runtime.run(name, pod["metadata"]["uid"])
    kubelet = folder.with_name("kubelet")
    socket = Path(socket_path(str(kubelet)))
    socket.parent.mkdir(parents=True)
    with (
        podresources.serving(socket, names),
        agents.running(
            folder,
            cluster,
            runtime.socket,
            f"--kubelet-dir={kubelet}",
            recheck_seconds=RECHECK_SECONDS,
        ) as agent,
    ):
        agent.wait_for("reporting", cluster.reported)
        wait_for_comparisons(agent, 2)
        before, began = len(cluster.writes()), time.monotonic()
        if not before:
            raise SystemExit("the server did not count the first report")
        while (elapsed := time.monotonic() - began) < seconds:
            cluster.heartbeat()
            wait_for_comparisons(agent, 1)
        writes = len(cluster.writes()) - before
    return value_row(IDLE, writes * 3600 / elapsed, "writes/h")


def burst(folder: Path, cluster: Cluster, runtime: Runtime) -> list[Row]:
    runtime.clear()  # The agent below has a machine with other CPUs than this one.
    root = trees.write(str(folder / "machine"), trees.machine(2, 1, 1, 16, 2))
    (Path(root) / "proc").mkdir(exist_ok=True)
    with agents.running(
        folder / "agent",
        cluster,
        runtime.socket,
        f"--root={root}",
        recheck_seconds=RECHECK_SECONDS,
    ) as agent:
        agent.wait_for("reporting", lambda: shared(cluster) == CPUS)
        wait_for_comparisons(agent, 1)
        before = len(cluster.writes())
        owned = CpuSet()
        for number in range(PODS):
            metadata: dict[str, dict[str, str]] = {"labels": {QOS_LABEL: "LS"}}
            if number % 2:
                own = CpuSet([number])
                owned |= own
                metadata = {
                    "labels": {QOS_LABEL: "LSR"},
                    "annotations": {RESOURCE_STATUS: json.dumps({"cpuset": str(own)})},
                }
            cluster.api.pod("default", f"burst-{number}", NODE, **metadata)
        agent.wait_for("reporting the new pools", lambda: shared(cluster) == CPUS - owned)
        wait_for_comparisons(agent, 1)
        writes = cluster.writes()[before:]
        events = sum(write.endswith("/events") for write in writes)
        return [value_row(BURST, len(writes), "writes"), value_row(EVENTS, events, "writes")]


def shared(cluster: Cluster) -> CpuSet:
    """The CPUs of the reported shared pools."""
    notes = (cluster.reported() or {}).get("metadata", {}).get("annotations", {})
    return union(CpuSet.parse(each["cpuset"]) for each in json.loads(notes.get(POOLS, "[]")))


def rows(seconds: float) -> list[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        try:
            cluster = stack.enter_context(clusters.running(folder))
            runtime = stack.enter_context(Runtime())
        except (NoClusterError, NoRuntimeError) as error:
            return [
                {"case": case, "unit": unit, "skipped": str(error)}
                for case, unit in ((IDLE, "writes/h"), (BURST, "writes"), (EVENTS, "writes"))
            ]
        (folder / "burst").mkdir()
        return [
            idle(folder / "idle", cluster, runtime, seconds),
            *burst(folder / "burst", cluster, runtime),
        ]


def main() -> None:
    options = arguments(__doc__)
    report(rows(4.0 if options.quick else 60.0), options.output)


if __name__ == "__main__":
    main()
