"""Why each node has room for a pod or none, as data: what the scheduler answers, and what
`topolet explain` shows as words or as JSON.

The JSON has the names of these fields in camel case. `schemaVersion` increases when a field changes
its meaning or goes; new fields and codes may appear within one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

SCHEMA_VERSION: Final = 1

NameOf = Callable[[str, str], str]
"""The name of another pod or a budget for the reader, by its uid and title; "" if the reader gets
none."""


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    """Fields in camel case."""


class ObjectField(_Value, frozen=True):
    """A field of an object that somebody can change."""

    kind: str
    """The kind of Kubernetes; a KubeletConfiguration has the name of its node."""
    name: str
    """NAMESPACE/NAME for namespaced kinds."""
    field: str


class Cause(_Value, frozen=True):
    """One reason. Amounts are in the resource's unit (`cpu` in milli-CPU), None if they are
    unknown."""

    code: str
    """A name for programs, which does not change."""
    message: str
    """The reason for people."""
    summary: str = ""
    """The message without amounts, which differ between similar nodes."""
    resource: str = ""
    requested: int | None = None
    available: int | None = None
    numa_nodes: tuple[int, ...] = ()
    objects: tuple[ObjectField, ...] = ()
    """What to change, with the most likely object first."""


class PolicyFact(_Value, frozen=True):
    """A policy in force, and who set it."""

    policy: str
    value: str
    source: str


class NumaTrial(_Value, frozen=True):
    """NUMA nodes that were tried."""

    numa_nodes: tuple[int, ...]
    score: int | None = None
    """None if they do not suffice."""
    rejected: str = ""
    """What they lack."""
    whole_cores: int = 0
    """The whole cores that a preferred FullPCPUs gets there."""


class OfferFacts(_Value, frozen=True):
    """What the node offers, and why."""

    score: int
    order: tuple[int, ...] = ()
    cpus: str = ""
    """A list in the kernel's form."""
    amounts: dict[int, dict[str, int]] = {}
    """By NUMA node and resource."""
    devices: dict[str, tuple[int, ...]] = {}
    """Minors by type."""
    policies: tuple[PolicyFact, ...] = ()
    tried: tuple[NumaTrial, ...] = ()
    merged: tuple[int, ...] | None = None
    """The NUMA nodes that the merge of the hints chose, None for any."""
    merge_causes: tuple[str, ...] = ()
    """Why the merged NUMA nodes are not preferred."""
    steps: tuple[str, ...] = ()
    """The steps of the accumulator that gave CPUs."""
    split_cores: int = 0
    """The number of free whole cores that would be partly taken."""


class EvictionFacts(_Value, frozen=True):
    """The pods of lower priority whose eviction makes room. Titles are those that the reader may
    read."""

    pods: int
    protected: int = 0
    """How many of them a PodDisruptionBudget protects from eviction."""
    protecting: int = 0
    """The number of these budgets."""
    victims: tuple[str, ...] = ()
    """The titles of the pods."""
    budgets: tuple[str, ...] = ()
    """The titles of the budgets."""


class NodeVerdict(_Value, frozen=True):
    node: str
    causes: tuple[Cause, ...] = ()
    """Why the node has no room, empty if it has."""
    resolvable: bool = False
    """The eviction of other pods could make room."""
    offer: OfferFacts | None = None
    """None if the node has no room."""
    eviction: EvictionFacts | None = None


class BoundFacts(_Value, frozen=True):
    """Where the pod is, with its CPUs, NUMA nodes and devices by type and minor."""

    node: str
    cpus: str = ""
    numa_nodes: tuple[int, ...] = ()
    devices: dict[str, tuple[int, ...]] = {}


class GroupFacts(_Value, frozen=True):
    """The group of the pod."""

    group: str
    size: int
    placed: int = 0
    """How many members are on a node."""
    waiting: int = 0
    """How many existing members have no node."""
    node: str = ""
    """The node of the members, "" while there is none."""

    @property
    def known(self) -> int:
        """The members that exist, 0 also if the reader may not know them."""
        return self.placed + self.waiting


class Explanation(_Value, frozen=True):
    """The explanation for one pod."""

    pod: str
    scheduler: str = ""
    needs: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    """The causes in the pod itself, whatever the node."""
    group: GroupFacts | None = None
    bound: BoundFacts | None = None
    winner: str = ""
    """The node that the pod gets, "" if it gets none."""
    nodes: tuple[NodeVerdict, ...] = ()
    nodes_left_out: int = 0
    """How many nodes were not examined because there are too many."""
    drained: tuple[str, ...] = ()
    """The nodes that count as drained."""
    claims: tuple[str, ...] = ()
    """Sentences about its ResourceClaims, which `topolet explain` adds to what a scheduler says."""


class Explanations(_Value, frozen=True):
    """One explanation for each pod of the request, in its order: each pod gets its node before the
    next one is examined."""

    explanations: tuple[Explanation, ...]
    schema_version: int = SCHEMA_VERSION


def encode(found: Explanations) -> bytes:
    return msgspec.json.encode(found)


def renamed(found: Explanation, name: Callable[[str], str]) -> Explanation:
    """The explanation with other names of objects, victims and budgets. `name` returns the new name
    for a name, "" to leave it out. Objects that are equal after that are listed once."""

    def cause(each: Cause) -> Cause:
        objects = (msgspec.structs.replace(at, name=name(at.name)) for at in each.objects)
        return msgspec.structs.replace(each, objects=tuple(dict.fromkeys(objects)))

    def titles(each: Iterable[str]) -> tuple[str, ...]:
        return tuple(filter(None, map(name, each)))

    def verdict(each: NodeVerdict) -> NodeVerdict:
        eviction = each.eviction
        if eviction is not None:
            named = {"victims": titles(eviction.victims), "budgets": titles(eviction.budgets)}
            eviction = msgspec.structs.replace(eviction, **named)
        causes = tuple(map(cause, each.causes))
        return msgspec.structs.replace(each, causes=causes, eviction=eviction)

    return msgspec.structs.replace(found, nodes=tuple(map(verdict, found.nodes)))
