"""A synthetic cluster, and explanations of the scheduling of its pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.devices.holding import GPU_CHECKPOINTS
from agent.model.explanation import Cause, Explanation
from agent.model.pod.apiobjects import from_object
from agent.scheduler.explain.explainer import Explainer, by_title, unnamed
from agent.scheduler.preemption.disruption_budgets import Budget, Budgets
from agent.scheduler.state import records
from agent.scheduler.state.cluster import SchedulerCache
from agent.view import explanation as view
from tests.fixtures import fleet
from tests.fixtures.fleet import Kind, Model
from tests.scheduler import clusters

Object = dict[str, Any]
SCHEDULER = "topolet"


class Scene:
    """Nodes by name, with their agents, and pods on them."""

    def __init__(self, **models: Model) -> None:
        self.cluster: SchedulerCache = clusters.cluster(models)
        self.budgets = Budgets()
        self.objects = {name: fleet.Machine(model) for name, model in models.items()}

    def relabel(self, name: str, labels: dict[str, str], annotations: dict[str, str]) -> None:
        """Adds labels and annotations to a Node."""
        body = self.objects[name].node(name)
        body["metadata"]["labels"] |= labels
        body["metadata"]["annotations"] = annotations
        self.node(body)

    def node(self, body: Object) -> None:
        record = records.node(json.dumps(body).encode())
        self.cluster.nodes_changed([_change(body, record)])

    def annotate_topology(self, name: str, annotations: dict[str, object]) -> None:
        """Adds annotations to the NodeResourceTopology of a node, their values as JSON."""
        body = self.objects[name].topology(name)
        of_report = body["metadata"].setdefault("annotations", {})
        of_report |= {key: json.dumps(value) for key, value in annotations.items()}
        self.topology(body)

    def plug_gpus(self, name: str, *uids: str) -> None:
        """A device plugin of the node has allocated a GPU to each of these pods."""
        body = self.objects[name].devices(name)
        allocation = {"containerName": "c", "resourceName": "nvidia.com/gpu"}
        allocations = [
            {**allocation, "podUID": uid, "deviceIDs": [f"{name}-GPU-{minor}"]}
            for minor, uid in enumerate(uids)
        ]
        body["metadata"]["annotations"] = {GPU_CHECKPOINTS: json.dumps(allocations)}
        self.devices(body)

    def topology(self, body: Object) -> None:
        record = records.topology(json.dumps(body).encode())
        self.cluster.topologies_changed([_change(body, record)])

    def devices(self, body: Object) -> None:
        record = records.devices(json.dumps(body).encode())
        self.cluster.devices_changed([_change(body, record)])

    def run(
        self, kind: Kind, name: str, node: str, cpus: str = "", uid: str = "", **annotations: str
    ) -> None:
        """Adds a pod that is bound to the node, with these exclusive CPUs."""
        body = kind.pod(name, uid=uid, node=node, cpus=cpus)
        body["metadata"]["annotations"] |= annotations
        self.report_pod(body)

    def report_pod(self, body: Object) -> None:
        """Passes the pod to the cache as a watch event."""
        clusters.report_pod(self.cluster, body)

    def cpus(self, name: str, numa_node: int, count: int) -> str:
        """The first CPUs of a NUMA node of the node."""
        cpus = [cpu for cpu, node in self.cluster.numa_nodes(name).items() if node == numa_node]
        return ",".join(map(str, sorted(cpus)[:count]))

    def add_budget(self, namespace: str, name: str, budget: Budget) -> None:
        self.budgets.changed([Change(ChangeKind.ADDED, ObjectKey(namespace, name), budget)])

    def explain(
        self, *bodies: Object, drained: Sequence[str] = (), names: bool = True
    ) -> tuple[Explanation, ...]:
        explainer = Explainer(self.cluster, SCHEDULER, budgets=self.budgets)
        name = by_title if names else unnamed
        return explainer.explain_all(map(from_object, bodies), drained, name=name)

    def explain_pod(self, body: Object) -> Explanation:
        return self.explain(body)[0]

    def explanation_text(self, body: Object) -> str:
        """The explanation for an operator, as text on one line."""
        return " ".join(view.draw(self.explain_pod(body)).split())


def _change(body: Object, value: Any) -> Change[Any]:
    return Change(ChangeKind.MODIFIED, ObjectKey("", body["metadata"]["name"]), value)


def causes(explanation: Explanation, node: str = "a") -> dict[str, Cause]:
    """The causes of one node, by code."""
    verdict = next(each for each in explanation.nodes if each.node == node)
    return {each.code: each for each in verdict.causes}
