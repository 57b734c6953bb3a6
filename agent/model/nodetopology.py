"""NodeResourceTopology as one value, and its form in both API versions (noderesourcetopology-api:
pkg/apis/topology/v1alpha1/types.go and pkg/apis/topology/v1alpha2/types.go).

v1alpha1 has no attributes at the top: the policy is one of `topologyPolicies`, the fingerprint an
annotation, and the other attributes cannot be expressed there."""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import msgspec

from agent.model.policies import reported_numa_policy
from agent.model.quantities import cpu

Object = dict[str, Any]

GROUP: Final = "topology.node.k8s.io"
KIND: Final = "NodeResourceTopology"
FINGERPRINT_ANNOTATION: Final = "topology.node.k8s.io/fingerprint"
FINGERPRINT: Final = "nodeTopologyPodsFingerprint"
FINGERPRINT_METHOD: Final = "nodeTopologyPodsFingerprintMethod"
POLICY: Final = "topologyManagerPolicy"
SCOPE: Final = "topologyManagerScope"
MAX_NUMA_NODES: Final = "topologyManagerMaxNUMANodes"
L3_CPUS: Final = "l3_cpus"
"""Of a zone: the CPUs of each L3 cache, separated by semicolons, where there are several."""


class Version(enum.StrEnum):
    """The versions of the API, as servers name them; the newer one is preferred."""

    V1ALPHA2 = "v1alpha2"
    V1ALPHA1 = "v1alpha1"


class Amounts(msgspec.Struct, frozen=True):
    """Of one resource on one NUMA node: capacity, allocatable and available. CPU in milli-CPU, the
    rest in units (bytes, devices)."""

    capacity: int
    allocatable: int
    available: int


class Zone(msgspec.Struct, frozen=True):
    """A NUMA node. `costs`: distances by NUMA node; `resources` by name."""

    node: int
    resources: dict[str, Amounts] = {}
    costs: dict[int, int] = {}
    attributes: dict[str, str] = {}


class OwnerReference(msgspec.Struct, frozen=True):
    """The Node that owns the object. It is not the controller, as an object may have only one, and
    does not block the deletion, which needs a further permission."""

    name: str
    uid: str


class NodeTopology(msgspec.Struct, frozen=True):
    """The report of a node. `policy` and `scope` in the kubelet's terms; `max_numa_nodes` None: the
    reader's default; `attributes`: all others, by name."""

    name: str
    zones: tuple[Zone, ...] = ()
    policy: str = "none"
    scope: str = "container"
    max_numa_nodes: int | None = None
    fingerprint: str | None = None
    attributes: dict[str, str] = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: OwnerReference | None = None


def encode(value: NodeTopology, version: Version) -> Object:
    """The object as that version of the API has it, in a stable order."""
    annotations, attributes = dict(value.annotations), {}
    if version is Version.V1ALPHA2:
        attributes = {**value.attributes, POLICY: value.policy, SCOPE: value.scope}
        if value.max_numa_nodes is not None:
            attributes[MAX_NUMA_NODES] = str(value.max_numa_nodes)
        if value.fingerprint is not None:
            attributes[FINGERPRINT] = value.fingerprint
    elif value.fingerprint is not None:
        annotations[FINGERPRINT_ANNOTATION] = value.fingerprint
    metadata: Object = {"name": value.name}
    if value.labels:
        metadata["labels"] = dict(sorted(value.labels.items()))
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    if value.owner is not None:
        metadata["ownerReferences"] = [_owner(value.owner)]
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": KIND,
        "metadata": metadata,
        "topologyPolicies": [reported_numa_policy(value.policy, value.scope)],
        **({"attributes": _named(attributes)} if attributes else {}),
        "zones": [_zone(each) for each in sorted(value.zones, key=lambda each: each.node)],
    }


def zone_name(node: int) -> str:
    """The only form of a name that a scheduler takes for a NUMA node."""
    return f"node-{node}"


def zone_node(name: str) -> int | None:
    """The NUMA node of a zone of that name, None for any other zone."""
    match = _NODE_ZONE.fullmatch(name)
    return int(match[1]) if match else None


def ours(path: tuple[str, ...], name: str) -> bool:
    """Whether Topolet writes that entry of a list, by the names of the lists that lead to it: such
    an entry is removed when it is not wanted any more. All others belong to other writers."""
    match path[-1]:
        case "zones":
            return zone_node(name) is not None
        case "costs":
            return True
        case "resources":
            return name in ("cpu", "memory") or name.startswith(("hugepages-", "koordinator.sh/"))
    return name in _OUR_ATTRIBUTES or name.startswith("cpu_")


_NODE_ZONE: Final = re.compile(r"node-(\d{1,4})", re.ASCII)
_OUR_ATTRIBUTES: Final = (
    POLICY,
    SCOPE,
    MAX_NUMA_NODES,
    FINGERPRINT,
    FINGERPRINT_METHOD,
    L3_CPUS,
)


def _zone(zone: Zone) -> Object:
    costs = [{"name": zone_name(node), "value": cost} for node, cost in sorted(zone.costs.items())]
    return {
        "name": zone_name(zone.node),
        "type": "Node",
        **({"costs": costs} if costs else {}),
        **({"attributes": _named(zone.attributes)} if zone.attributes else {}),
        "resources": [_resource(name, amounts) for name, amounts in sorted(zone.resources.items())],
    }


def _resource(name: str, amounts: Amounts) -> dict[str, str]:
    text = cpu if name == "cpu" else str
    return {
        "name": name,
        "capacity": text(amounts.capacity),
        "allocatable": text(amounts.allocatable),
        "available": text(amounts.available),
    }


def _named(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in sorted(values.items())]


def _owner(owner: OwnerReference) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": owner.name,
        "uid": owner.uid,
    }
