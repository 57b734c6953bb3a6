"""Builds the state of the cluster from saved objects, and pods from the objects in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.objects import (
    DEVICE,
    NAMESPACE,
    NODE,
    POD,
    RESERVATION,
    TOPOLOGY,
    Change,
    ChangeKind,
    Object,
    ObjectKey,
)
from agent.model import objects
from agent.model.dra import resource_claim
from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.scheduler.preemption import disruption_budgets
from agent.scheduler.preemption.disruption_budgets import Budgets
from agent.scheduler.state import koordinator_reservations, records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pods_seen import PodsSeen, apply_placement, capacities
from agent.scheduler.state.records import AgentSelector

_WHAT_IF: Final = "what-if"


class SavedCluster:
    """The scheduler's state from the objects of a cluster at one time. `problems`: the objects that
    can't be read; they count as missing. `claims`: the ResourceClaims, which no scheduler reads.
    Kinds of which nobody reads anything are ignored."""

    def __init__(
        self, saved: Iterable[Object], agents: AgentSelector, rules: AllocatorRules
    ) -> None:
        self.cluster = SchedulerCache(agents=bool(agents.labels), rules=rules)
        self.budgets = Budgets()
        self.problems: list[str] = []
        by_kind: dict[str, list[Object]] = {}
        for each in saved:
            by_kind.setdefault(each["kind"], []).append(each)
        # Pods come in the order of their start, and before the reports that count them.
        pods = sorted(map(_with_uid, by_kind.get(POD.name, [])), key=_started_at)
        self.pods: dict[ObjectKey, Object] = {_key(each, "default"): each for each in pods}
        claims = by_kind.get(resource_claim.KIND, [])
        self.claims = {_key(each, "default"): each for each in claims}
        cluster, devices = self.cluster, by_kind.get(DEVICE.name, [])
        self._add(by_kind.get(NODE.name, []), records.node, cluster.nodes_changed)
        policy = rules.scoring.placement if rules.scoring is not None else None
        seen, read_pod = PodsSeen(), records.pods(agents, kinds=policy is not None)
        self._add(pods, read_pod, seen.pods_changed, cluster.pods_changed)
        reports = by_kind.get(TOPOLOGY.name, [])
        self._add(reports, records.topology, cluster.topologies_changed)
        self._add(devices, records.devices, cluster.devices_changed)
        self._add(
            by_kind.get(RESERVATION.name, []),
            koordinator_reservations.reservation,
            cluster.koordinator_reservations_changed,
        )
        namespaces = by_kind.get(NAMESPACE.name, [])
        self._add(namespaces, records.namespace, cluster.namespaces_changed)
        budgets = by_kind.get(disruption_budgets.KIND, [])
        self._add(budgets, disruption_budgets.read, self.budgets.changed)
        if policy is not None:
            apply_placement(seen, cluster, rules, policy, capacities(cluster))

    def _add(
        self,
        saved: Iterable[Object],
        read: Callable[[bytes], Any],
        *handlers: Callable[[list[Change[Any]]], None],
    ) -> None:
        """Decodes the objects by `read`, and reports each to the handlers as added."""
        for each in saved:
            try:
                value = read(documents.as_json(each))
            except ObjectError as error:
                self.problems.append(str(error))
                continue
            except DocumentError as error:
                self.problems.append(f"{each['kind']} {objects.title(each)}: {error}")
                continue
            if isinstance(value, records.Unreadable):
                self.problems.append(value.text)
            for handle in handlers:
                handle([Change(ChangeKind.ADDED, _key(each), value)])


def pod_object(found: Object, namespace: str, *, new: bool) -> Object:
    """The object of a pod, or of the pod that a workload would create. `new`: without what the
    scheduler and the kubelet wrote. Requests that are not set become the limits, as in the API
    server. Raises DocumentError for an object that is neither, or whose pod has no containers."""
    if found.get("kind") != POD.name:
        spec = _mapping(found.get("spec"))
        # A CronJob has the template of a Job, which has the template of a pod.
        spec = _mapping(_mapping(spec.get("jobTemplate")).get("spec")) or spec
        template = _mapping(spec.get("template"))
        if not isinstance(template.get("spec"), dict):
            title = f"{found.get('kind')} {objects.title(found)}"
            raise DocumentError(f"{title} is neither a pod nor a workload with a template of one")
        workload = _mapping(found.get("metadata"))
        metadata = {**_mapping(template.get("metadata")), "name": workload.get("name", "")}
        metadata["namespace"] = workload.get("namespace", namespace)
        found, new = {"kind": "Pod", "metadata": metadata, "spec": template.get("spec")}, True
    body = {**found, "metadata": {"namespace": namespace, **_mapping(found.get("metadata"))}}
    if new:
        body = _unscheduled(body)
    body["spec"] = _with_requests(_mapping(body.get("spec")))
    if not _listed(body["spec"].get("containers")):
        raise DocumentError(f"Pod {objects.title(body)}: spec.containers is missing or empty")
    return _with_uid(body)


def drained_pods(pods: Iterable[Object], node: str) -> Iterator[Object]:
    """The pods that a drain of the node evicts, those with the highest priority first: all except
    pods of DaemonSets, mirrors of static pods, and pods that ended."""
    found = [
        each
        for each in pods
        if _mapping(each.get("spec")).get("nodeName") == node and _is_evicted(each)
    ]
    found.sort(key=_priority, reverse=True)
    return iter(found)


def _priority(pod: Object) -> int:
    priority = _mapping(pod.get("spec")).get("priority")
    return priority if isinstance(priority, int) else 0


def _is_evicted(pod: Object) -> bool:
    metadata = _mapping(pod.get("metadata"))
    owners = metadata.get("ownerReferences")
    kinds_of_owners = [_mapping(each).get("kind") for each in _listed(owners)]
    return (
        apiobjects.CONFIG_MIRROR not in _mapping(metadata.get("annotations"))
        and "DaemonSet" not in kinds_of_owners
        and "Node" not in kinds_of_owners
        and _mapping(pod.get("status")).get("phase") not in ("Succeeded", "Failed")
    )


def _unscheduled(body: Object) -> Object:
    """The pod without uid, node, allocation and status."""
    metadata = {**body["metadata"]}
    metadata.pop("uid", None)
    written = (RESOURCE_STATUS, DEVICE_ALLOCATED)
    annotations = _mapping(metadata.get("annotations"))
    metadata["annotations"] = {key: annotations[key] for key in annotations if key not in written}
    spec = {key: each for key, each in _mapping(body.get("spec")).items() if key != "nodeName"}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


def _with_requests(spec: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(spec)
    for kind in ("containers", "initContainers"):
        if isinstance(containers := spec.get(kind), list):
            found[kind] = [_with_container_requests(_mapping(each)) for each in containers]
    return found


def _with_container_requests(container: Object) -> Object:
    resources = _mapping(container.get("resources"))
    requests = {**_mapping(resources.get("limits")), **_mapping(resources.get("requests"))}
    return {**container, "resources": {**resources, "requests": requests}}


def _with_uid(body: Object) -> Object:
    """Adds a uid to an object that was never created, and so has none."""
    metadata = _mapping(body.get("metadata"))
    if metadata.get("uid"):
        return body
    return {**body, "metadata": {**metadata, "uid": f"{_WHAT_IF} {objects.title(body)}"}}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(body: Object, namespace: str = "") -> ObjectKey:
    metadata = _mapping(body.get("metadata"))
    return ObjectKey(str(metadata.get("namespace", namespace)), str(metadata.get("name", "")))


def _started_at(body: Object) -> str:
    return str(_mapping(body.get("status")).get("startTime", ""))
