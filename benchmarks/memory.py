"""Resident memory of the agent on a node of 100 pods, of the proxy after 1,000 creations, and of
the NRI plugin's guard after 1,000 on such a node.

The agent: 100 real pods of one container each in a private containerd 2, the same pods in a real
API server and in the answers of a PodResources API. The runtime's event stream, both watches and
PodResources are open. `--quick` starts one pod, which the agent sees as 100 pods. The base is a
bare interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, report, value_row
from cri import rss_after_creations
from peers import agent as agents
from peers import cluster as clusters
from peers import manypods, podresources
from peers.agent import Agent
from peers.cluster import NODE, Cluster, NoClusterError
from peers.manypods import ManyPods
from peers.packages import NoPackageError
from peers.processes import OURS, Stage, bare_rss_mb, grpcio_environment
from peers.runtime import NoRuntimeError, Runtime, with_events

from agent.host.files import boot_id
from agent.host.loop import Loop
from agent.kubelet.podresources import socket_path
from agent.model import snapshot
from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.proto import nri_pb2 as nri
from tests.nri.fake import FakeRuntime

PODS = 100
AGENT = "agent_100_pods_mb"
PROXY = "proxy_mb"
GUARD = "guard_mb"


def agent_row(quick: bool) -> Row:
    try:
        found = agent_mb(quick)
    except (NoClusterError, NoRuntimeError, NoPackageError) as error:
        return {"case": AGENT, "unit": "MB", "skipped": str(error)}
    return {**value_row(AGENT, found, "MB"), "base": bare_rss_mb(), "base_name": "bare interpreter"}


def agent_mb(quick: bool) -> float:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        runtime = stack.enter_context(Runtime(with_events()))
        cluster = stack.enter_context(clusters.running(folder))
        uids = {}
        for name in (f"pod-{number:03}" for number in range(PODS)):
            pod = cluster.api.pod("default", name, NODE, labels={QOS_LABEL: "LS"})
            uids[name] = pod["metadata"]["uid"]
        kubelet = Path(socket_path(str(folder / "kubelet")))
        kubelet.parent.mkdir(parents=True)
        request_count = stack.enter_context(podresources.serving(kubelet, list(uids)))
        flags = [f"--kubelet-dir={folder / 'kubelet'}"]
        if quick:
            socket = stack.enter_context(many_pods_socket(folder, runtime, uids))
            agent = stack.enter_context(
                agents.running(folder / "agent", cluster, socket, *flags, recheck_seconds=1)
            )
        else:
            last, *others = uids.items()
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda pod: runtime.run(*pod), others))
            agent = stack.enter_context(
                agents.running(folder / "agent", cluster, runtime.socket, *flags, recheck_seconds=1)
            )
            runtime.run(*last)
        return settled_mb(agent, cluster, request_count)


@contextmanager
def many_pods_socket(folder: Path, runtime: Runtime, uids: dict[str, str]) -> Iterator[str]:
    """The socket of a runtime that lists all these pods."""
    runtime.clear()
    first = min(uids)
    runtime.run(first, uids[first])
    socket = folder / "many.sock"
    with manypods.serving(socket, ManyPods(runtime.socket, first, uids)):
        yield str(socket)


def settled_mb(agent: Agent, cluster: Cluster, request_count: Callable[[], int]) -> float:
    """The agent's memory after it has read and reported everything and made some passes."""
    agent.wait_for("reporting", cluster.reported)
    agent.wait_for("reading PodResources", lambda: request_count() >= 3)
    agent.wait_for(
        "comparing", lambda: agent.metric('topolet_reports_total{result="unchanged"}') >= 5
    )
    agent.wait_for(
        "receiving events",
        lambda: agent.metric('topolet_reconciliation_triggers_total{trigger="runtime"}') > 0,
    )
    if agent.has_mapped("grpc"):
        raise SystemExit("the agent has loaded grpcio")
    return agent.rss_mb()


def proxy_row() -> Row:
    environment = grpcio_environment()
    if isinstance(environment, str):
        return {"case": PROXY, "unit": "MB", "skipped": f"no backend: {environment}"}
    with ExitStack() as stack:
        stage = Stage(stack, environment)
        backend = str(stage.folder / "direct")
        stage.backend(backend)
        ours = stage.start("ours", OURS, backend)
        client = stage.client(str(stage.folder / "ours"))
        return value_row(PROXY, rss_after_creations(client, ours), "MB")


def guard_mb() -> float:
    """The guard's largest memory while a runtime asks it about 1,000 containers of 100 pods. The
    agent publishes its decisions anew between two of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        loop = Loop()
        stack.callback(loop.close)
        runtime = FakeRuntime(folder, loop)
        stack.callback(runtime.close)
        shared = PodWanted("default/pod", QoS.LS, Wanted(LinuxResources("0-3")))
        owners = tuple(Owner(f"o{n}", f"default/o{n}", QoS.LSE, f"{n + 4}") for n in range(20))
        pods = {f"u{number}": shared for number in range(PODS)}
        decided = snapshot.encode(Snapshot(1, 1, boot_id(), False, {}, owners, pods, {}))
        flags = [f"--state-dir={folder}", f"--nri-socket={runtime.path}"]
        command = [sys.executable, "-m", "agent", "nri-guard", *flags]
        guard = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(guard.kill)
        containers = [
            nri.Container(id=f"c{number}", env=[b"A=" + b"x" * 4_000]) for number in range(PODS)
        ]
        runtime.set_up(*containers)
        request = nri.ValidateContainerAdjustmentRequest(
            pod=nri.PodSandbox(uid="u7", name="pod", namespace="default"),
            container=nri.Container(name="main", env=[b"A=" + b"x" * 4_000]),
        )
        request.adjust.linux.resources.cpu.cpus = "0-3"
        for number in range(1_000):
            (folder / snapshot.FILE).write_bytes(decided + b" " * (number % 7))
            answer = runtime.call(
                "ValidateContainerAdjustment", request, nri.ValidateContainerAdjustmentResponse
            )
            if answer.reject:
                raise SystemExit(f"the guard refuses: {answer.reason}")
        status = Path(f"/proc/{guard.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    options = arguments(__doc__)
    guard = value_row(GUARD, guard_mb(), "MB")
    report([agent_row(options.quick), proxy_row(), guard], options.output)


if __name__ == "__main__":
    main()
