"""Objects of a small cluster as the API server sends them, and as events for a SchedulerCache."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.cpu.cpuset import EMPTY
from agent.model.cpu.topology import Topology
from agent.model.devices import device_object
from agent.model.devices.device_object import Device, DeviceObject, DeviceTopology
from agent.model.nrt import resource_topology
from agent.model.nrt import resource_topology as fingerprint
from agent.model.nrt.node_annotations import NodeConfiguration, koordinator_annotations
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import from_object
from agent.model.pod_request import PodRequest, request_of
from agent.scheduler.state import records
from agent.scheduler.state.records import (
    AGENT_LABELS,
    AgentSelector,
    NodeRecord,
    PodRecord,
    Unreadable,
)
from conformance import machines

Object = dict[str, Any]

read_pod = records.pods(AgentSelector())


def pod(
    name: str,
    node: str = "",
    *,
    uid: str = "",
    cpus: str = "",
    requests: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Pending",
    ready: bool | None = None,
    kube_class: str = "Burstable",
    started: str = "2026-01-01T00:00:00Z",
    namespace: str = "ns",
) -> Object:
    """`cpus`: the exclusive CPUs in its annotation. The CPU limit of an LSE or LSR pod equals its
    request."""
    all_annotations = dict(annotations or {})
    if cpus:
        all_annotations[RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
    conditions = [] if ready is None else [{"type": "Ready", "status": str(ready)}]
    requests = requests or {}
    exclusive = (labels or {}).get("koordinator.sh/qosClass") in ("LSE", "LSR")
    limits = {"cpu": requests["cpu"]} if exclusive and "cpu" in requests else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "labels": labels or {},
            "annotations": all_annotations,
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}],
        },
        "status": {
            "phase": phase,
            "conditions": conditions,
            "qosClass": kube_class,
            "startTime": started,
        },
    }


def agent(node: str, ready: bool = True, **more: Any) -> Object:
    """The agent's pod on that node."""
    phase = more.pop("phase", "Running")
    return pod(f"agent-{node}", node, labels=AGENT_LABELS, phase=phase, ready=ready, **more)


def node(name: str, **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}},
    }


def topology(
    name: str,
    zones: int = 2,
    available_milli: int = 4000,
    policy: str = "none",
    pods: Iterable[tuple[str, str]] | None = None,
) -> Object:
    """A NodeResourceTopology of `zones` NUMA nodes with two cores of two threads each; all CPUs are
    allocatable. `pods`: namespaces and names of the pods that the report counts."""
    machine = Topology(machines.cpus((zones, 1, 2, 2), "adjacent"), (), EMPTY, EMPTY, smt=True)
    amounts = resource_topology.Amounts(4000, 4000, available_milli)
    return resource_topology.encode(
        NodeTopology(
            name,
            tuple(resource_topology.Zone(each, {"cpu": amounts}) for each in range(zones)),
            policy,
            fingerprint=None if pods is None else fingerprint.fingerprint_of(pods),
            annotations=koordinator_annotations(machine, {}, (), NodeConfiguration()),
        ),
        resource_topology.Version.V1ALPHA2,
    )


def devices(name: str, gpus: int = 2) -> Object:
    """A Device object with this number of GPUs."""
    amounts = {
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": 1 << 30,
        "koordinator.sh/gpu-memory-ratio": 100,
    }
    return device_object.encode(
        name,
        [
            Device("gpu", f"GPU-{minor}", minor, amounts, True, None, DeviceTopology(0, 0, "0"))
            for minor in range(gpus)
        ],
    )


def pod_request(
    requests: dict[str, str], qos: str = "", name: str = "new", kube_class: str = "Burstable"
) -> PodRequest:
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    body = pod(name, requests=requests, labels=labels, kube_class=kube_class)
    return request_of(from_object(body))


def pod_change(body: Object, kind: ChangeKind = ChangeKind.MODIFIED) -> Change[PodRecord]:
    return Change(kind, _key(body), read_pod(json.dumps(body).encode()))


def node_change(body: Object, kind: ChangeKind = ChangeKind.MODIFIED) -> Change[NodeRecord]:
    return Change(kind, _key(body), records.node(json.dumps(body).encode()))


def topology_change(
    body: Object, kind: ChangeKind = ChangeKind.MODIFIED
) -> Change[NodeTopology | Unreadable]:
    return Change(kind, _key(body), records.topology(json.dumps(body).encode()))


def devices_change(
    body: Object, kind: ChangeKind = ChangeKind.MODIFIED
) -> Change[DeviceObject | Unreadable]:
    return Change(kind, _key(body), records.devices(json.dumps(body).encode()))


def _key(body: Object) -> ObjectKey:
    return ObjectKey(body["metadata"].get("namespace", ""), body["metadata"]["name"])
