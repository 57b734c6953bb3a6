"""The scheduler's page for a synthetic cluster: nodes of all models, pods with shared and with
exclusive CPUs, unschedulable pods, and decisions."""

from __future__ import annotations

from typing import Final

from agent.http.page import page_routes
from agent.http.peers import NodeAddresses
from agent.http.server import HttpServer
from agent.scheduler import process
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
)
from agent.scheduler.extender.handlers import QueueingExtender
from agent.scheduler.page import ClusterPage
from agent.scheduler.unschedulable.queue import UnschedulableQueue
from tests.fixtures import fleet
from tests.fixtures.fleet import Kind
from tests.scheduler import clusters

HOLDER: Final = "topolet-scheduler-0_0f3a"
TOO_LARGE: Final = fleet.owner(400, 8)


class PageScene:
    """`names`: the nodes. `unavailable`: the reason why the process does not serve the page."""

    def __init__(self, nodes: int, *, holder: str = HOLDER) -> None:
        self.names = [f"node-{number:05d}" for number in range(nodes)]
        models = fleet.MODELS
        self.cluster = clusters.cluster(
            {name: models[number % len(models)] for number, name in enumerate(self.names)}
        )
        self.unavailable: str | None = None
        self.bindings = clusters.AcceptedBindings()
        self.queue = UnschedulableQueue()
        inner = clusters.Extender(self.cluster, self.bindings)
        self.extender = QueueingExtender(inner.handlers, inner.pod_infos, self.cluster, self.queue)
        self.page = ClusterPage(
            self.cluster,
            self.queue,
            inner.binder.decisions,
            Explainer(self.cluster, "topolet-scheduler"),
            lambda: self.unavailable,
            holder,
        )

    def place(self, kind: Kind, name: str) -> str:
        """Schedules a pod as kube-scheduler does. Returns the node, or "" if none is feasible."""
        pod = clusters.api_pod(kind.pod(name))
        nodes = self.extender.filter(ExtenderArgs(pod, self.names)).node_names
        if not nodes:
            return ""
        self.extender.bind(ExtenderBindingArgs(pod.name, pod.namespace, pod.uid, nodes[0]))
        return nodes[0]

    def server(self) -> HttpServer:
        """A server with only the page."""
        routes = page_routes("cluster", {}, {"state": self.page.state, "detail": self.page.detail})
        return HttpServer("127.0.0.1:0", routes, process.PAGE_LIMITS, NodeAddresses(frozenset()))
