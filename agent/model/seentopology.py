"""NodeResourceTopologies of any writer, in either version."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from agent.model.nodetopology import (
    FINGERPRINT,
    FINGERPRINT_ANNOTATION,
    KIND,
    MAX_NUMA_NODES,
    POLICY,
    SCOPE,
    Amounts,
    NodeTopology,
    OwnerReference,
    Zone,
    zone_node,
)
from agent.model.objects import ObjectError, converted
from agent.model.quantities import QuantityError, milli, whole

MOST_NUMA_NODES: Final = 1024


def decode(body: object) -> NodeTopology:
    """Either version, of any writer. Omits zones that are not NUMA nodes, and costs towards them;
    an attribute with an invalid value leaves the default, as in a scheduler. Raises ObjectError."""
    raw = converted(body, KIND, _Raw)
    metadata = raw.metadata
    policy, scope = _from_word(raw.topology_policies[0] if raw.topology_policies else "")
    attributes = {each.name: each.value for each in raw.attributes or ()}
    given = attributes.pop(POLICY, None)
    policy = given if given in _POLICIES else policy
    given = attributes.pop(SCOPE, None)
    scope = given if given in _SCOPES else scope
    annotations = dict(metadata.annotations or {})
    legacy = annotations.pop(FINGERPRINT_ANNOTATION, None)
    owners = [each for each in metadata.owner_references or () if each.kind == "Node"]
    return NodeTopology(
        metadata.name,
        tuple(sorted(_zones(raw), key=lambda each: each.node)),
        policy,
        scope,
        _max_numa_nodes(attributes.pop(MAX_NUMA_NODES, "")),
        attributes.pop(FINGERPRINT, None) or legacy,
        attributes,
        dict(metadata.labels or {}),
        annotations,
        OwnerReference(owners[0].name, owners[0].uid) if owners else None,
    )


class _RawOwner(msgspec.Struct, frozen=True):
    name: str
    uid: str
    kind: str = ""


class _RawMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
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


_SCOPES: Final = ("container", "pod")
_WORDS: Final = {
    "None": "none",
    "BestEffort": "best-effort",
    "Restricted": "restricted",
    "SingleNUMANode": "single-numa-node",
}
_POLICIES: Final = tuple(_WORDS.values())
_BY_WORD: Final = {
    "Restricted": ("restricted", "container"),
    "BestEffort": ("best-effort", "container"),
    **{
        f"{word}{level}Level": (_WORDS[word], level.lower())
        for word in ("SingleNUMANode", "Restricted", "BestEffort")
        for level in ("Container", "Pod")
    },
}
"""All that `topologyPolicies` may hold but None."""


def _from_word(word: str) -> tuple[str, str]:
    return _BY_WORD.get(word, ("none", "container"))


def _max_numa_nodes(text: str) -> int | None:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) <= 1:
        return None
    return min(int(text), MOST_NUMA_NODES)


def _zones(raw: _Raw) -> list[Zone]:
    zones = []
    for place, zone in enumerate(raw.zones):
        node = zone_node(zone.name)
        if zone.type != "Node" or node is None:
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
