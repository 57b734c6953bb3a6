"""`topolet uninstall-nodes`: takes back what Topolet changed on all nodes, by a pod on each.

The DaemonSets of the agents are deleted first, so that no controller starts an agent again. Then
each node gets a pod that runs `topolet uninstall-node`, some nodes at once, as soon as its agent
has ended. A node has a deadline of its own, and all have one together: what is left then is listed.
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


class Excluded(msgspec.Struct, frozen=True):
    """A label of a node that belongs to another pool."""

    key: str
    value: str


class NodePool(msgspec.Struct, frozen=True, rename="camel"):
    """One DaemonSet of agents, and the pod (`metadata`, `spec`) that takes a node of it back.
    `remark` is printed with its nodes: what a person has to do there."""

    daemon_set: str
    node_selector: dict[str, str]
    excluded: tuple[Excluded, ...]
    pod: dict[str, Any]
    remark: str = ""

    def has(self, labels: Mapping[str, str]) -> bool:
        return self.node_selector.items() <= labels.items() and not any(
            labels.get(each.key) == each.value for each in self.excluded
        )


class NodePools(msgspec.Struct, frozen=True):
    """The file that the chart writes."""

    namespace: str
    pools: tuple[NodePool, ...]


class ClusterNode(msgspec.Struct, frozen=True):
    """A Node; `reported`: it has labels of the agent."""

    name: str
    labels: dict[str, str]
    ready: bool

    @property
    def reported(self) -> bool:
        return any(key.startswith(LABEL_PREFIX) for key in self.labels)


class NodePod(msgspec.Struct, frozen=True):
    """A pod of Topolet on a node. `message`: the last lines of a container that failed, or why it
    waits."""

    name: str
    node: str
    component: str
    phase: str
    message: str = ""


class RemovalLimits(msgspec.Struct, frozen=True):
    """Nodes at once, the time of each, and the time of all."""

    at_once: int
    node_seconds: float
    whole_seconds: float


class NodeState(enum.Enum):
    WAITING = "waiting"
    BEGUN = "begun"
    DONE = "done"
    LEFT = "left"


_GOING: Final = (NodeState.WAITING, NodeState.BEGUN)


class NodeProgress(msgspec.Struct):
    """How far one node is. `problem` is empty unless something is left on it."""

    node: str
    pool: NodePool | None
    state: NodeState = NodeState.WAITING
    begun_at: float = 0.0
    created: bool = False
    problem: str = ""


class PodChange(msgspec.Struct, frozen=True):
    """The node's pod is created from the pool, or this one is deleted."""

    record: NodeProgress
    create: NodePool | None = None
    delete: NodePod | None = None


def records(
    nodes: Sequence[ClusterNode], pools: Sequence[NodePool], pods: Iterable[NodePod]
) -> list[NodeProgress]:
    """The nodes that Topolet was on: those with a pod of an agent or with labels of one. Ready
    nodes come first: the others may take their whole time."""
    occupied = {each.node for each in pods if each.node}
    ours = [each for each in nodes if each.reported or each.name in occupied]
    ours.sort(key=lambda each: (not each.ready, each.name))
    return [
        NodeProgress(each.name, next((pool for pool in pools if pool.has(each.labels)), None))
        for each in ours
    ]


def steps(
    found: Sequence[NodeProgress], pods: Sequence[NodePod], limits: RemovalLimits, now: float
) -> Iterator[PodChange]:
    """Moves each record on, and yields what is to be done for it."""
    agents = {each.node for each in pods if each.component == AGENT}
    ours = {each.node: each for each in pods if each.component == UNINSTALL}
    for each in found:
        if each.state is NodeState.BEGUN:
            yield from _step(each, each.node in agents, ours.get(each.node), limits, now)
    free = limits.at_once - sum(each.state is NodeState.BEGUN for each in found)
    for each in found:
        if each.state is not NodeState.WAITING or free <= 0:
            continue
        if each.pool is None:
            each.state, each.problem = NodeState.LEFT, "it belongs to no pool of the release"
            continue
        each.state, each.begun_at = NodeState.BEGUN, now
        free -= 1
        yield from _step(each, each.node in agents, ours.get(each.node), limits, now)


def _step(
    record: NodeProgress, agent: bool, pod: NodePod | None, limits: RemovalLimits, now: float
) -> Iterator[PodChange]:
    if pod is not None and record.created and pod.phase in _ENDED:
        succeeded = pod.phase == "Succeeded"
        record.state = NodeState.DONE if succeeded else NodeState.LEFT
        record.problem = "" if succeeded else pod.message or "its pod failed"
        yield PodChange(record, delete=pod)
    elif now - record.begun_at >= limits.node_seconds:
        record.state, record.problem = NodeState.LEFT, _unanswered(agent, pod, limits)
        if pod is not None:
            yield PodChange(record, delete=pod)
    elif pod is not None and not record.created:
        # An earlier run's: it may have ended with what this run is to try again.
        yield PodChange(record, delete=pod)
    elif not agent and not record.created:
        yield PodChange(record, create=record.pool)


def _unanswered(agent: bool, pod: NodePod | None, limits: RemovalLimits) -> str:
    after = f"after {limits.node_seconds:.0f} s"
    if agent:
        return f"its agent has not ended {after}"
    if pod is None:
        return f"it has no pod {after}"
    return f"its pod is {pod.phase} {after}" + (f": {pod.message}" if pod.message else "")


def node_pod(pool: NodePool, node: str) -> dict[str, Any]:
    """The pod of one node. It names its node, so that it also runs on one that is cordoned."""
    pod = copy.deepcopy(pool.pod)
    pod["metadata"] = {**pod["metadata"], "generateName": f"topolet-{UNINSTALL}-"}
    pod["spec"]["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", **pod}


class ClusterRemoval:
    """`say` reports what was done; `left` has a record of each node on which something is left.
    `clock` and `pause` are those of `time`."""

    def __init__(
        self,
        transport: Transport,
        pools: NodePools,
        limits: RemovalLimits,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.left: list[NodeProgress] = []
        self._transport = transport
        self._pools = pools
        self._limits = limits
        self._say = say
        self._clock = clock
        self._pause = pause
        self._core = f"/api/v1/namespaces/{segment(pools.namespace)}/pods"

    def run(self) -> bool:
        """Whether nothing is left on any node. Raises KubeError for a request before the first node
        is begun."""
        end = self._clock() + self._limits.whole_seconds
        found = records(self._nodes(), self._pools.pools, self._pods())
        self._say(f"{len(found)} nodes have something of Topolet")
        for pool in self._pools.pools:
            self._delete_daemon_set(pool.daemon_set)
        ended: set[str] = set()
        while (going := [each for each in found if each.state in _GOING]) and self._clock() < end:
            try:
                self._pass(found)
            except KubeError as error:
                self._say(f"this is tried again: {error}")
            for each in found:
                if each.state is NodeState.DONE and each.node not in ended:
                    ended.add(each.node)
                    self._say_done(each)
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
            record.state, record.problem = NodeState.LEFT, str(error)
        else:
            record.created = True

    def _say_done(self, record: NodeProgress) -> None:
        remark = f", but {record.pool.remark}" if record.pool and record.pool.remark else ""
        self._say(f"node {record.node}: nothing of Topolet is left{remark}")

    def _stop(self, going: Sequence[NodeProgress]) -> None:
        for each in going:
            word = "begun" if each.state is NodeState.WAITING else "ended"
            each.problem = f"not {word} in the {self._limits.whole_seconds:.0f} s of all nodes"
        try:
            for pod in self._pods():
                if pod.component == UNINSTALL:
                    self._delete_pod(pod)
        except KubeError as error:
            self._say(f"pods of nodes that have not ended may be left: {error}")

    def _nodes(self) -> list[ClusterNode]:
        return wire.listed("/api/v1/nodes", {}, self._transport.get, _node).found

    def _pods(self) -> list[NodePod]:
        query = {"labelSelector": f"{_NAME},{COMPONENT} in ({AGENT},{UNINSTALL})"}
        return wire.listed(self._core, query, self._transport.get, _pod).found

    def _delete_pod(self, pod: NodePod) -> None:
        """One that runs ends by itself, and takes back a step that is half done. Nobody waits for
        the kubelet of another."""
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
