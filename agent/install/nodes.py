"""The removal of Topolet from all nodes (`topolet uninstall-nodes`), by a pod on each node.

The DaemonSets of the agents are deleted first, so that no controller starts an agent again. Then
each node, some nodes at a time, gets a pod that runs `topolet uninstall-node`, as soon as its agent
has ended. Each node has a deadline, and so have all nodes together. Nodes on which something is
left are listed.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.kube import errors, wire
from agent.kube.errors import KubeError
from agent.kube.transport import Transport, segment
from agent.model.nrt.node_status import LABEL_PREFIX

COMPONENT: Final = "app.kubernetes.io/component"
AGENT: Final = "agent"
UNINSTALL: Final = "uninstall-node"
_NAME: Final = "app.kubernetes.io/name=topolet"
_POLL_SECONDS: Final = 1.0
_ENDED: Final = ("Succeeded", "Failed")


class ExcludedLabel(msgspec.Struct, frozen=True):
    """A label that the nodes of a pool must not have."""

    key: str
    value: str


class NodePool(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes of one DaemonSet of agents."""

    daemon_set: str
    node_selector: dict[str, str]
    excluded: tuple[ExcludedLabel, ...]
    pod: dict[str, Any]
    """The `metadata` and `spec` of the pod that removes Topolet from a node of the pool."""
    remark: str = ""
    """What a person has to do on each of the nodes."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in the pool."""
        return self.node_selector.items() <= labels.items() and not any(
            labels.get(each.key) == each.value for each in self.excluded
        )


class NodePools(msgspec.Struct, frozen=True):
    """The pools of the chart, as it writes them for the command."""

    namespace: str
    pools: tuple[NodePool, ...]


class ClusterNode(msgspec.Struct, frozen=True):
    """A Node, as far as the removal needs it."""

    name: str
    labels: dict[str, str]
    ready: bool

    @property
    def reported(self) -> bool:
        return any(key.startswith(LABEL_PREFIX) for key in self.labels)


class NodePod(msgspec.Struct, frozen=True):
    """A pod of Topolet on a node."""

    name: str
    node: str
    component: str
    phase: str
    message: str = ""
    """The last lines of a container that failed, or why a container waits."""


class RemovalLimits(msgspec.Struct, frozen=True):
    """How many nodes are cleaned, and how long it may take."""

    at_once: int
    """The number of nodes at the same time."""
    node_seconds: float
    """The longest time of each node."""
    whole_seconds: float
    """The longest time of all nodes."""


class NodeState(enum.Enum):
    WAITING = "waiting"
    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


class NodeProgress(msgspec.Struct):
    """The progress on one node."""

    node: str
    pool: NodePool | None
    """None if no pool selects the node."""
    state: NodeState = NodeState.WAITING
    begun_at: float = 0.0
    created: bool = False
    """This run has created the node's pod."""
    problem: str = ""
    """Why something is left on the node, "" otherwise."""


class PodChange(msgspec.Struct, frozen=True):
    """What is to be done for a node: create its pod from a pool, or delete a pod."""

    record: NodeProgress
    create: NodePool | None = None
    delete: NodePod | None = None


def nodes_to_clean(
    nodes: Sequence[ClusterNode], pools: Sequence[NodePool], pods: Iterable[NodePod]
) -> list[NodeProgress]:
    """The nodes on which Topolet runs or ran: they have an agent's pod, or labels that an agent
    wrote. Ready nodes come first, because each of the others may take its whole time."""
    occupied = {each.node for each in pods if each.node}
    reporting = [node for node in nodes if node.reported or node.name in occupied]
    reporting.sort(key=lambda node: (not node.ready, node.name))
    return [
        NodeProgress(node.name, next((pool for pool in pools if pool.selects(node.labels)), None))
        for node in reporting
    ]


def steps(
    progress: Sequence[NodeProgress], pods: Sequence[NodePod], limits: RemovalLimits, now: float
) -> Iterator[PodChange]:
    """Advances the state of each node in `progress`, and yields what is to be done.

    `pods`: the present pods of Topolet.
    `now`: the time of the same clock as `begun_at`."""
    agents = {pod.node for pod in pods if pod.component == AGENT}
    uninstall_pods = {pod.node: pod for pod in pods if pod.component == UNINSTALL}
    for node in progress:
        if node.state is NodeState.BEGUN:
            yield from _step(node, node.node in agents, uninstall_pods.get(node.node), limits, now)
    free = limits.at_once - sum(node.state is NodeState.BEGUN for node in progress)
    for node in progress:
        if node.state is not NodeState.WAITING or free <= 0:
            continue
        if node.pool is None:
            node.state, node.problem = NodeState.FAILED, "no pool of the release selects it"
            continue
        node.state, node.begun_at = NodeState.BEGUN, now
        free -= 1
        yield from _step(node, node.node in agents, uninstall_pods.get(node.node), limits, now)


def _step(
    record: NodeProgress, agent: bool, pod: NodePod | None, limits: RemovalLimits, now: float
) -> Iterator[PodChange]:
    if pod is not None and record.created and pod.phase in _ENDED:
        succeeded = pod.phase == "Succeeded"
        record.state = NodeState.DONE if succeeded else NodeState.FAILED
        record.problem = "" if succeeded else pod.message or "its pod failed"
        yield PodChange(record, delete=pod)
    elif now - record.begun_at >= limits.node_seconds:
        record.state, record.problem = NodeState.FAILED, _timeout_problem(agent, pod, limits)
        if pod is not None:
            yield PodChange(record, delete=pod)
    elif pod is not None and not record.created:
        # The pod of an earlier run: it may have failed at what this run has to try again.
        yield PodChange(record, delete=pod)
    elif not agent and not record.created:
        yield PodChange(record, create=record.pool)


def _timeout_problem(agent: bool, pod: NodePod | None, limits: RemovalLimits) -> str:
    after = f"after {limits.node_seconds:.0f} s"
    if agent:
        return f"its agent has not ended {after}"
    if pod is None:
        return f"it has no pod {after}"
    return f"its pod is {pod.phase} {after}" + (f": {pod.message}" if pod.message else "")


def _unfinished(found: Sequence[NodeProgress]) -> list[NodeProgress]:
    return [each for each in found if each.state in (NodeState.WAITING, NodeState.BEGUN)]


def node_pod(pool: NodePool, node: str) -> dict[str, Any]:
    """The pod for one node. It names the node, so that it also runs on a cordoned node."""
    pod = copy.deepcopy(pool.pod)
    pod["metadata"] = {**pod["metadata"], "generateName": f"topolet-{UNINSTALL}-"}
    pod["spec"]["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", **pod}


class ClusterRemoval:
    """Removes Topolet from all nodes.

    `report`: called with a line for what was done.
    `clock`, `pause`: `time.monotonic` and `time.sleep`, or their stand-ins."""

    def __init__(
        self,
        transport: Transport,
        pools: NodePools,
        limits: RemovalLimits,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.left: list[NodeProgress] = []
        """The nodes on which something is left."""
        self._transport = transport
        self._pools = pools
        self._limits = limits
        self._report = report
        self._clock = clock
        self._pause = pause
        self._core = f"/api/v1/namespaces/{segment(pools.namespace)}/pods"

    def run(self) -> bool:
        """Removes Topolet from all nodes. Returns whether nothing is left on any. Raises KubeError
        for a request that fails before the first node is begun."""
        end = self._clock() + self._limits.whole_seconds
        found = nodes_to_clean(self._nodes(), self._pools.pools, self._pods())
        self._report(f"Topolet runs, or ran, on {len(found)} of the nodes")
        for pool in self._pools.pools:
            self._delete_daemon_set(pool.daemon_set)
        ended: set[str] = set()
        while (going := _unfinished(found)) and self._clock() < end:
            try:
                self._pass(found)
            except KubeError as error:
                self._report(f"will be tried again: {error}")
            for each in found:
                if each.state is NodeState.DONE and each.node not in ended:
                    ended.add(each.node)
                    self._report_done(each)
            self._pause(_POLL_SECONDS)
        if going:
            self._stop(going)
        self.left = [each for each in found if each.state is not NodeState.DONE]
        return not self.left

    def _pass(self, found: Sequence[NodeProgress]) -> None:
        for change in steps(found, self._pods(), self._limits, self._clock()):
            if change.delete is not None:
                self._delete_pod(change.delete)
            if change.create is not None:
                self._create_pod(change.record, change.create)

    def _create_pod(self, record: NodeProgress, pool: NodePool) -> None:
        try:
            self._transport.create(self._core, node_pod(pool, record.node))
        except (errors.ForbiddenError, errors.RejectedError) as error:
            record.state, record.problem = NodeState.FAILED, str(error)
        else:
            record.created = True

    def _report_done(self, record: NodeProgress) -> None:
        remark = f", but {record.pool.remark}" if record.pool and record.pool.remark else ""
        self._report(f"node {record.node}: nothing of Topolet is left{remark}")

    def _stop(self, going: Sequence[NodeProgress]) -> None:
        for each in going:
            what = "begin" if each.state is NodeState.WAITING else "end"
            each.problem = (
                f"it did not {what} in the {self._limits.whole_seconds:.0f} s of all nodes"
            )
        try:
            for pod in self._pods():
                if pod.component == UNINSTALL:
                    self._delete_pod(pod)
        except KubeError as error:
            self._report(f"pods of `topolet uninstall-node` may be left: {error}")

    def _nodes(self) -> list[ClusterNode]:
        return wire.listed("/api/v1/nodes", {}, self._transport.get, _node).found

    def _pods(self) -> list[NodePod]:
        query = {"labelSelector": f"{_NAME},{COMPONENT} in ({AGENT},{UNINSTALL})"}
        return wire.listed(self._core, query, self._transport.get, _pod).found

    def _delete_pod(self, pod: NodePod) -> None:
        """Deletes a pod. A running one gets its grace period, in which it undoes a step that is
        half done; any other is deleted at once, without waiting for its kubelet."""
        query = {} if pod.phase == "Running" else {"gracePeriodSeconds": 0}
        with contextlib.suppress(errors.NotFoundError):
            self._transport.request("DELETE", f"{self._core}/{segment(pod.name)}", query)

    def _delete_daemon_set(self, name: str) -> None:
        namespace = segment(self._pools.namespace)
        path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{segment(name)}"
        with contextlib.suppress(errors.NotFoundError):
            self._transport.request("DELETE", path, {"propagationPolicy": "Background"})


def _node(raw: msgspec.Raw) -> ClusterNode:
    found = msgspec.json.decode(raw)
    conditions = (found.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    metadata = found["metadata"]
    return ClusterNode(metadata["name"], metadata.get("labels") or {}, ready)


def _pod(raw: msgspec.Raw) -> NodePod:
    found = msgspec.json.decode(raw)
    metadata, status = found["metadata"], found.get("status") or {}
    return NodePod(
        metadata["name"],
        (found.get("spec") or {}).get("nodeName") or "",
        (metadata.get("labels") or {}).get(COMPONENT, ""),
        status.get("phase") or "Pending",
        _message(status),
    )


def _message(status: Mapping[str, Any]) -> str:
    for each in status.get("containerStatuses") or ():
        state = each.get("state") or {}
        detail = state.get("terminated") or state.get("waiting") or {}
        if text := detail.get("message") or detail.get("reason"):
            return str(text).strip()
    return str(status.get("message") or status.get("reason") or "")
