"""Builders of API pods, of node properties and of offers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import msgspec

from agent.allocate.devices.inventory import inventory
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.policies_in_force import NodePolicies
from agent.allocate.refusal import Refusal
from agent.model.cpu.policies import NumaPolicy
from agent.model.devices.device_object import Device
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import request_of
from tests.allocate.nodes import node_options

QOS = "koordinator.sh/qosClass"
SPEC = "scheduling.koordinator.sh/resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def pod(
    uid: str = "a",
    requests: Mapping[str, Any] | None = None,
    qos: str | None = None,
    notes: Mapping[str, object] | None = None,
    limits: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> ApiPod:
    """One container; `notes`: annotations, as strings or as values to encode as JSON. Without
    `limits` an LSE or LSR pod is limited to the CPU that it requests."""
    if limits is None and qos in ("LSE", "LSR") and "cpu" in (requests or {}):
        limits = {"cpu": (requests or {})["cpu"]}
    texts = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in (notes or {}).items()
    }
    resources = {"requests": dict(requests or {}), "limits": dict(limits or {})}
    return apiobjects.from_object(
        {
            "metadata": {
                "uid": uid,
                "name": uid,
                "namespace": "ns",
                "labels": {**({QOS: qos} if qos else {}), **(labels or {})},
                "annotations": texts,
            },
            "spec": {"containers": [{"name": "c", "resources": resources}], **spec},
        }
    )


def annotated(before: ApiPod, more: Mapping[str, str]) -> ApiPod:
    """The same pod after it is bound with these annotations."""
    return msgspec.structs.replace(before, annotations={**before.annotations, **more})


def make_properties(
    shape: tuple[int, int, int, int] = (2, 1, 4, 2),
    policy: NumaPolicy | None = None,
    devices: Iterable[Device] | None = None,
    **more: Any,
) -> NodeProperties:
    """A node with its own NUMA policy (its label) and these devices; None: no Device object.
    `more`: further properties of the node or of its CPUs."""
    of_node = {name: more.pop(name) for name in NodeProperties.__struct_fields__ if name in more}
    cpus = node_options(shape, **{"policies": NodePolicies(numa_label=policy), **more})
    properties = NodeProperties("n", cpus, None if devices is None else inventory(devices))
    return msgspec.structs.replace(properties, **of_node)


def offered(allocator: NodeAllocator, api_pod: ApiPod, listed: Container[str] = ()) -> NodeOffer:
    """`listed`: the resources that Device objects of the cluster list."""
    answer = allocator.offer(request_of(api_pod, listed))
    assert isinstance(answer, NodeOffer), answer.text
    return answer


def refusal(allocator: NodeAllocator, api_pod: ApiPod, listed: Container[str] = ()) -> Refusal:
    answer = allocator.offer(request_of(api_pod, listed))
    assert isinstance(answer, Refusal)
    return answer


def bind(allocator: NodeAllocator, api_pod: ApiPod, listed: Container[str] = ()) -> ApiPod:
    """The pod as it is in the API server after the commit."""
    offer = offered(allocator, api_pod, listed)
    allocator.commit(offer)
    return annotated(api_pod, offer.annotations())


def minors(offer: NodeOffer, kind: str = "gpu") -> list[int]:
    assert offer.device_allocation is not None
    return [each.minor for each in offer.device_allocation.devices[kind]]
