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
    """A field of an object that somebody can change. `kind`: that of Kubernetes;
    KubeletConfiguration has the name of its node. `name`: NAMESPACE/NAME for namespaced kinds."""

    kind: str
    name: str
    field: str


class Cause(_Value, frozen=True):
    """One reason. `code`: a stable name. `message`: for people; `summary`: the same without
    amounts, which differ between similar nodes. Amounts are in the resource's unit (`cpu` in
    milli-CPU), None if unknown. `objects`: what to change, the first one most likely."""

    code: str
    message: str
    summary: str = ""
    resource: str = ""
    requested: int | None = None
    available: int | None = None
    numa_nodes: tuple[int, ...] = ()
    objects: tuple[ObjectField, ...] = ()


class PolicyFact(_Value, frozen=True):
    """A policy in force, and who set it."""

    policy: str
    value: str
    source: str


class NumaTrial(_Value, frozen=True):
    """NUMA nodes that were tried: their score, or what they lack. `whole_cores`: those that a
    preferred FullPCPUs gets there."""

    numa_nodes: tuple[int, ...]
    score: int | None = None
    rejected: str = ""
    whole_cores: int = 0


class OfferFacts(_Value, frozen=True):
    """What the node offers, and why. `cpus`: a list of Linux. `amounts`: by NUMA node and
    resource. `devices`: minors by type. `merged`: the NUMA nodes that the merge of the hints chose,
    None for any; `merge_causes`: why they are not preferred. `steps`: those of the accumulator that
    gave CPUs. `split_cores`: free whole cores that would be partly taken."""

    score: int
    order: tuple[int, ...] = ()
    cpus: str = ""
    amounts: dict[int, dict[str, int]] = {}
    devices: dict[str, tuple[int, ...]] = {}
    policies: tuple[PolicyFact, ...] = ()
    tried: tuple[NumaTrial, ...] = ()
    merged: tuple[int, ...] | None = None
    merge_causes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    split_cores: int = 0


class EvictionFacts(_Value, frozen=True):
    """Pods of lower priority whose eviction makes room. `protected`: the number of those whose
    PodDisruptionBudget does not allow it; `protecting`: the number of these budgets. `victims` and
    `budgets`: their titles, as far as the reader may read them."""

    pods: int
    protected: int = 0
    protecting: int = 0
    victims: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()


class NodeVerdict(_Value, frozen=True):
    """The verdict on one node. `causes` is empty if the node has room; `offer` is None if it does
    not. `resolvable`: the eviction of other pods could make room."""

    node: str
    causes: tuple[Cause, ...] = ()
    resolvable: bool = False
    offer: OfferFacts | None = None
    eviction: EvictionFacts | None = None


class BoundFacts(_Value, frozen=True):
    """Where the pod is, with its CPUs, NUMA nodes and devices by type and minor."""

    node: str
    cpus: str = ""
    numa_nodes: tuple[int, ...] = ()
    devices: dict[str, tuple[int, ...]] = {}


class GroupFacts(_Value, frozen=True):
    """The group of the pod. `placed`: members on a node; `waiting`: existing ones without a node.
    `node`: the node of the members, "" while there is none."""

    group: str
    size: int
    placed: int = 0
    waiting: int = 0
    node: str = ""

    @property
    def known(self) -> int:
        """The members that exist, 0 also if the reader may not know them."""
        return self.placed + self.waiting


class Explanation(_Value, frozen=True):
    """The explanation for one pod. `causes`: the causes in the pod itself, whatever the node.
    `winner`: the node that the pod gets, "" if it gets none. `nodes_left_out`: the number of nodes
    that were not examined, because there are too many. `drained`: the nodes that count as
    drained."""

    pod: str
    scheduler: str = ""
    needs: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    group: GroupFacts | None = None
    bound: BoundFacts | None = None
    winner: str = ""
    nodes: tuple[NodeVerdict, ...] = ()
    nodes_left_out: int = 0
    drained: tuple[str, ...] = ()


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
