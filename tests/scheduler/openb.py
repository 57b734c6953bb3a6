"""The openb traces, and a small sample of them."""

from __future__ import annotations

from agent.model.pod_request import PodKind
from agent.scheduler.simulation import TraceNode, read_nodes, read_pods
from tests.conftest import DATA

OPENB = DATA / "openb"


def nodes() -> list[TraceNode]:
    with (OPENB / "openb_node_list_gpu_node.csv").open() as file:
        return read_nodes(file, "nodes")


def pods(trace: str = "default") -> list[PodKind]:
    with (OPENB / f"openb_pod_list_{trace}.csv").open() as file:
        return read_pods(file, "pods")


def sample() -> tuple[list[TraceNode], list[PodKind]]:
    return nodes()[::40], pods()[::40]
