"""NodeResourceTopology as one value, and its form in both API versions (noderesourcetopology-api:
pkg/apis/topology/v1alpha1/types.go and pkg/apis/topology/v1alpha2/types.go).

v1alpha1 has no top-level attributes: the policy is an entry of `topologyPolicies`, the fingerprint
is an annotation, and other attributes can't be expressed. `decode` reads objects of any writer."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import xxhash

from agent.model import bounds
from agent.model.bounds import unknown_value
from agent.model.cpu.policies import (
    NumaPolicy,
    TopologyManagerScope,
    kubelet_numa_policy,
    reported_numa_policy,
    topology_manager_scope,
)
from agent.model.objects import ObjectError, ObjectMetadata, converted
from agent.model.quantities import QuantityError, cpu, milli, whole

_MARK: Final = "pfp0v001"


def fingerprint_of(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of pods, given as (namespace, name) in any order."""
    return combined(pod_hash(namespace, name) for namespace, name in pods)


def pod_hash(namespace: str, name: str) -> int:
    return xxhash.xxh64_intdigest(name, seed=xxhash.xxh64_intdigest(namespace))


def combined(hashes: Iterable[int]) -> str:
    """The fingerprint of the hashes of all pods, in any order."""
    joined = b"".join(each.to_bytes(8, "little") for each in sorted(hashes))
    return _MARK + xxhash.xxh64_hexdigest(joined)


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
"""Attribute of a zone with several L3 caches: the CPUs of each, separated by semicolons."""


class Version(enum.StrEnum):
    """The versions of the API; the newer one is preferred."""

    V1ALPHA2 = "v1alpha2"
    V1ALPHA1 = "v1alpha1"


class FingerprintMethod(enum.StrEnum):
    """The pods that the fingerprint counts: all started pods, or only those with exclusive
    resources."""

    ALL = "all"
    EXCLUSIVE = "with-exclusive-resources"


class Amounts(msgspec.Struct, frozen=True):
    """Capacity, allocatable and available amount of one resource on one NUMA node. CPU is in
    milli-CPU, other resources are in units (bytes, devices)."""

    capacity: int
    allocatable: int
    available: int


class Zone(msgspec.Struct, frozen=True):
    """A NUMA node."""

    node: int
    resources: dict[str, Amounts] = {}
    """By name."""
    costs: dict[int, int] = {}
    """Distances by NUMA node."""
    attributes: dict[str, str] = {}


class OwnerReference(msgspec.Struct, frozen=True):
    """The Node that owns the object. It is not the controller, because an object can have only one,
    and it does not block the deletion, which would need a further permission."""

    name: str
    uid: str


class NodeTopology(msgspec.Struct, frozen=True):
    """The report of a node, with the policy and scope of its kubelet."""

    name: str
    zones: tuple[Zone, ...] = ()
    policy: str = "none"
    scope: str = "container"
    max_numa_nodes: int | None = None
    """None for the reader's default."""
    fingerprint: str | None = None
    attributes: dict[str, str] = {}
    """All other attributes by name."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: OwnerReference | None = None
    faults: tuple[str, ...] = ()
    """One message for each value of a decoded object that is not known."""


def encode(value: NodeTopology, version: Version) -> Object:
    """The object in that version of the API, in a stable order."""
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
    """The name of a NUMA node's zone; schedulers accept no other form."""
    return f"node-{node}"


def zone_node(name: str) -> int | None:
    """The NUMA node of the zone with that name, None if it is not a NUMA node."""
    match = _NODE_ZONE.fullmatch(name)
    return int(match[1]) if match else None


def is_own_entry(path: tuple[str, ...], name: str) -> bool:
    """Whether Topolet owns the entry of this name. It removes its own entries when it no longer
    reports them, and keeps all others.

    `path`: the names of the lists that contain the entry."""
    match path[-1]:
        case "zones":
            return zone_node(name) is not None
        case "costs":
            return True
        case "resources":
            return name in ("cpu", "memory") or name.startswith(("hugepages-", "koordinator.sh/"))
    return name in _OWN_ATTRIBUTES or name.startswith("cpu_")


_NODE_ZONE: Final = re.compile(r"node-(\d{1,4})", re.ASCII)
_OWN_ATTRIBUTES: Final = (
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


MAX_NUMA_NODES_LIMIT: Final = 1024
"""The limit for the kubelet's topology manager; a larger number counts as this one."""


def decode(body: object) -> NodeTopology:
    """Decodes either version, of any writer. Omits zones that are not NUMA nodes, and costs to
    them. The first of `topologyPolicies` counts; known attributes override it (scheduler-plugins:
    pkg/noderesourcetopology/nodeconfig/topologymanager.go). A policy may have any spelling
    (`kubelet_numa_policy`). An unknown value has no effect and is a fault. Raises ObjectError, also
    for more NUMA nodes, or more resources of one, than a machine has: a reader compares sets of
    them."""
    raw = converted(body, KIND, _Raw)
    metadata = raw.metadata
    attributes = {each.name: each.value for each in raw.attributes or ()}
    named = (
        ("topologyPolicies[0]", raw.topology_policies[0] if raw.topology_policies else ""),
        (f"attribute {POLICY}", attributes.pop(POLICY, "")),
    )
    policy, scope = NumaPolicy.NONE, TopologyManagerScope.CONTAINER
    faults = []
    for field, value in named:
        if (known := kubelet_numa_policy(value)) is not None:
            policy, scope = known, topology_manager_scope(value) or scope
        elif value:
            faults.append(unknown_value(field, value, _POLICY_NAMES.values()))
    if (value := attributes.pop(SCOPE, "")) in _SCOPES:
        scope = TopologyManagerScope(value)
    elif value:
        faults.append(unknown_value(f"attribute {SCOPE}", value, _SCOPES))
    max_numa_nodes = _max_numa_nodes(value := attributes.pop(MAX_NUMA_NODES, ""))
    if value and max_numa_nodes is None:
        faults.append(f"attribute {MAX_NUMA_NODES}: {value[:60]!r} is not a number above 1")
    if (value := attributes.get(FINGERPRINT_METHOD, "")) not in ("", *FingerprintMethod):
        faults.append(unknown_value(f"attribute {FINGERPRINT_METHOD}", value, FingerprintMethod))
    annotations = dict(metadata.annotations or {})
    legacy = annotations.pop(FINGERPRINT_ANNOTATION, None)
    owners = [each for each in metadata.owner_references or () if each.kind == "Node"]
    return NodeTopology(
        metadata.name,
        tuple(sorted(_zones(raw), key=lambda each: each.node)),
        _POLICY_NAMES[policy],
        scope.value,
        max_numa_nodes,
        attributes.pop(FINGERPRINT, None) or legacy,
        attributes,
        dict(metadata.labels or {}),
        annotations,
        OwnerReference(owners[0].name, owners[0].uid) if owners else None,
        tuple(faults),
    )


class _RawOwner(msgspec.Struct, frozen=True):
    name: str
    uid: str
    kind: str = ""


class _RawMetadata(ObjectMetadata, frozen=True, rename="camel"):
    owner_references: tuple[_RawOwner, ...] | None = None


class _RawAttribute(msgspec.Struct, frozen=True):
    name: str
    value: str


class _RawCost(msgspec.Struct, frozen=True):
    name: str
    value: int


class _RawResource(msgspec.Struct, frozen=True):
    name: str
    capacity: str | int
    allocatable: str | int
    available: str | int


class _RawZone(msgspec.Struct, frozen=True):
    name: str
    type: str
    costs: tuple[_RawCost, ...] | None = None
    attributes: tuple[_RawAttribute, ...] | None = None
    resources: tuple[_RawResource, ...] | None = None


class _Raw(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _RawMetadata
    zones: tuple[_RawZone, ...]
    topology_policies: tuple[str, ...] | None = None
    attributes: tuple[_RawAttribute, ...] | None = None


_SCOPES: Final = tuple(TopologyManagerScope)
_POLICY_NAMES: Final = {
    NumaPolicy.NONE: "none",
    NumaPolicy.BEST_EFFORT: "best-effort",
    NumaPolicy.RESTRICTED: "restricted",
    NumaPolicy.SINGLE_NUMA_NODE: "single-numa-node",
}
"""The kubelet's names."""


def _max_numa_nodes(text: str) -> int | None:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) <= 1:
        return None
    return min(int(text), MAX_NUMA_NODES_LIMIT)


def _zones(raw: _Raw) -> list[Zone]:
    zones = []
    for place, zone in enumerate(raw.zones):
        node = zone_node(zone.name)
        if zone.type != "Node" or node is None or node > bounds.MAX_NODE_ID:
            continue
        costs = {zone_node(each.name): each.value for each in zone.costs or ()}
        zones.append(
            Zone(
                node,
                {
                    each.name: _amounts(raw.metadata.name, place, each)
                    for each in zone.resources or ()
                },
                {to: cost for to, cost in costs.items() if to is not None},
                {each.name: each.value for each in zone.attributes or ()},
            )
        )
    with_cpus = sum(1 for each in zones if "cpu" in each.resources)
    for found, most, what in (
        (len(zones), bounds.MAX_NODES, "NUMA nodes"),
        (with_cpus, bounds.MAX_CPU_NODES, "NUMA nodes with CPUs"),
        (
            len({name for each in zones for name in each.resources}),
            bounds.MAX_RESOURCES,
            "resources",
        ),
    ):
        if found > most:
            reason = f"zones: {found} {what} are more than {most}"
            raise ObjectError(KIND, raw.metadata.name, reason)
    return zones


def _amounts(name: str, zone: int, resource: _RawResource) -> Amounts:
    scaled = milli if resource.name == "cpu" else whole
    found = []
    for field in ("capacity", "allocatable", "available"):
        try:
            found.append(scaled(getattr(resource, field)))
        except QuantityError as error:
            where = f"zones[{zone}].resources[{resource.name!r}].{field}"
            raise ObjectError(KIND, name, f"{where}: {error}") from None
    return Amounts(*found)
