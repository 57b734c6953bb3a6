"""Resident memory of the agent on a node of 100 pods, and of the proxy.

The agent: 100 real pods of one container each in a private containerd 2, the same pods in a real
API server and in the answers of a PodResources API; the runtime's event stream, both watches and
PodResources are open. Its base is a bare interpreter. The proxy: `rss_mb` of benchmarks/cri.py.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, alone, arguments, report
from peers import agent as agents
from peers import cluster as clusters
from peers import podresources
from peers.agent import Agent
from peers.cluster import NODE, Cluster, NoClusterError
from peers.packages import NoPackageError
from peers.processes import bare_rss_mb
from peers.runtime import NoRuntimeError, Runtime, with_events

from agent.model.qos import QOS_LABEL

PODS = 100
AGENT = "agent_100_pods_mb"
PROXY = "proxy_mb"


def measured(agent: Agent, cluster: Cluster, asked: Callable[[], int]) -> float:
    """When all is known, reported, and was compared a few times."""
    agent.until("reporting", cluster.reported)
    agent.until("asking the kubelet", lambda: asked() >= 3)
    agent.until(
        "comparing", lambda: agent.metric('topolet_reports_total{result="unchanged"}') >= 5
    )
    agent.until(
        "told by the runtime", lambda: agent.metric('topolet_wakes_total{source="runtime"}') > 0
    )
    if agent.has_mapped("grpc"):
        raise SystemExit("the agent has loaded grpcio")
    return agent.rss_mb()


def agent_row() -> Row:
    try:
        return alone(AGENT, agent_mb(), "MB")
    except (NoClusterError, NoRuntimeError, NoPackageError) as error:
        return {"case": AGENT, "unit": "MB", "skipped": str(error)}


def agent_mb() -> float:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topolet-")))
        runtime = stack.enter_context(Runtime(with_events()))
        cluster = stack.enter_context(clusters.running(folder))
        uids = {}
        for name in (f"pod-{number}" for number in range(PODS)):
            pod = cluster.api.pod("default", name, NODE, labels={QOS_LABEL: "LS"})
            uids[name] = pod["metadata"]["uid"]
        last, *others = uids.items()
        with ThreadPoolExecutor(4) as together:
            list(together.map(lambda pod: runtime.run(*pod), others))
        socket = folder / "kubelet.sock"
        asked = stack.enter_context(podresources.serving(socket, list(uids)))
        flags = [f"--pod-resources-socket={socket}", "--recheck-seconds=1"]
        with agents.running(folder / "agent", cluster, runtime.socket, *flags) as agent:
            runtime.run(*last)
            return measured(agent, cluster, asked)


def main() -> None:
    options = arguments(__doc__)
    report([agent_row()], options.output)
    print(bare_rss_mb())


if __name__ == "__main__":
    main()
