"""A SchedulerCache with a few nodes, and pods that request their resources."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.allocate.node_allocator.answer import NodeOffer
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import PodRequest, request_of
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
    ExtenderPreemptionResult,
)
from agent.scheduler.extender.handlers import ExtenderHandlers
from agent.scheduler.state import records
from agent.scheduler.state.binder import Binder
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache, PodName
from agent.scheduler.state.pods_api import BindingApi, BindOutcome
from agent.scheduler.state.records import AgentSelector, PodRecord
from tests.fixtures import fleet
from tests.fixtures.fleet import Kind, Model

Object = dict[str, Any]


def ineligibility(cluster: SchedulerCache, node: str, pod_request: PodRequest) -> str:
    """Why the node can't take such a pod even when it is empty; "" if it can."""
    refusal = cluster.ineligibility(node, pod_request)
    return refusal.text if refusal is not None else ""


_read_pod = records.pods(AgentSelector())


def cluster(
    nodes: Mapping[str, Model], clock: Callable[[], float] = time.monotonic
) -> SchedulerCache:
    """A cache with these nodes, each with its agent."""
    cache = SchedulerCache(clock=clock)
    for name, model in nodes.items():
        add_node(cache, name, model)
    return cache


def add_node(cache: SchedulerCache, name: str, model: Model, *, agent: bool = True) -> None:
    """Adds a node of that model."""
    node, topology, devices = _changes(name, model)
    cache.nodes_changed([node])
    cache.topologies_changed([topology])
    if model.gpus:
        cache.devices_changed([devices])
    if agent:
        report_pod(cache, fleet.agent(name))


@functools.cache
def _changes(name: str, model: Model) -> tuple[Change[Any], Change[Any], Change[Any]]:
    machine, key, added = fleet.Machine(model), ObjectKey("", name), ChangeKind.ADDED
    node = records.node(json.dumps(machine.node(name)).encode())
    topology = records.topology(json.dumps(machine.topology(name)).encode())
    devices = records.devices(json.dumps(machine.devices(name)).encode())
    return Change(added, key, node), Change(added, key, topology), Change(added, key, devices)


def remove_node(cache: SchedulerCache, name: str) -> None:
    """Deletes a Node object; the pods of the node stay."""
    key = ObjectKey("", name)
    record = records.node(json.dumps({"metadata": {"name": name}}).encode())
    cache.nodes_changed([Change(ChangeKind.DELETED, key, record)])


def report_pod(cache: SchedulerCache, pod: Object, kind: ChangeKind = ChangeKind.MODIFIED) -> None:
    """Passes the pod to the cache as a watch event."""
    metadata = pod["metadata"]
    value: PodRecord = _read_pod(json.dumps(pod).encode())
    cache.pods_changed([Change(kind, ObjectKey(metadata["namespace"], metadata["name"]), value)])


def api_pod(body: Object) -> ApiPod:
    """A pod as kube-scheduler sends it."""
    return apiobjects.from_object(body)


def pod(kind: Kind, name: str) -> ApiPod:
    return api_pod(kind.pod(name))


def pod_request(kind: Kind, name: str = "p") -> PodRequest:
    return request_of(pod(kind, name))


class AcceptedBindings(BindingApi):
    """An API server that accepts every Binding, or rejects every one with `error`."""

    def __init__(self) -> None:
        self.error = ""

    def bind(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> BindOutcome:
        return BindOutcome(not self.error, self.error)

    def pod(self, pod: PodName) -> ApiPod | None:
        return None


class Extender:
    """The parts of an extender without preemption, and kube-scheduler's calls. `bindings`: the API
    server. `clock`: the time of the groups' reservations."""

    def __init__(
        self,
        cluster: SchedulerCache,
        bindings: BindingApi,
        *,
        pod_infos: PodInfoCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        best_only: bool = True,
        placing: bool = False,
    ) -> None:
        self.cluster = cluster
        self.groups = GroupReservations(cluster, clock=clock)
        self.pod_infos = pod_infos or PodInfoCache(defaults=lambda: cluster.pod_defaults)
        self.binder = Binder(cluster, self.groups, bindings, self.pod_infos)
        self.handlers = ExtenderHandlers(
            cluster,
            self.groups,
            self.binder.bind,
            self.pod_infos,
            EquivalenceCache(cluster),
            lambda args: ExtenderPreemptionResult(args.victims),
            best_only=best_only,
            placing=placing,
        )

    def filter(self, pod: ApiPod, nodes: Sequence[str]) -> ExtenderFilterResult:
        return self.handlers.filter(ExtenderArgs(pod, nodes))

    def fits(self, pod: ApiPod, nodes: Sequence[str]) -> list[str]:
        """The names of the feasible nodes."""
        return list(self.filter(pod, nodes).node_names)

    def scores(self, pod: ApiPod, nodes: Sequence[str]) -> dict[str, int]:
        entries = json.loads(bytes(self.handlers.prioritize(ExtenderArgs(pod, nodes))))
        return {each["Host"]: each["Score"] for each in entries}

    def bind(self, pod: ApiPod, node: str) -> str:
        """Returns the error, "" if the pod is bound."""
        args = ExtenderBindingArgs(pod.name, pod.namespace, pod.uid, node)
        return self.handlers.bind(args).error


def reserve(cache: SchedulerCache, kind: Kind, node: str, name: str = "p") -> bool:
    """Reserves the offer of the node for the pod with this name and the uid `uid-NAME`. Returns
    whether the node has room."""
    info = cache.node(node)
    assert info is not None
    node_offer = info.allocator.offer(pod_request(kind, name))
    if isinstance(node_offer, NodeOffer):
        cache.reserve(node, node_offer)
    return isinstance(node_offer, NodeOffer)


def allocated_pods(cluster: SchedulerCache, name: str = "n1") -> set[str]:
    """The names of the pods with an allocation on the node, without its agent."""
    state = cluster.node(name)
    assert state is not None
    names = {each.title.removeprefix("ns/") for each in state.allocator.assigned_pods.values()}
    return {each for each in names if not each.startswith("agent-")}
