"""What a pod would get of a node, or why it gets nothing, each with its reasons as data."""

from __future__ import annotations

import msgspec

from agent.allocate.numa.hint import Merged
from agent.allocate.packing import AllocationStep
from agent.allocate.pod_allocation import PodAllocation
from agent.allocate.policies_in_force import PolicyInForce
from agent.allocate.reasons import Rejection


class NumaCandidate(msgspec.Struct, frozen=True):
    """NUMA nodes that were tried: their score (0-100, by the strategy), or what they lack."""

    nodes: tuple[int, ...]
    score: int | None = None
    rejection: Rejection | None = None


class Why(msgspec.Struct, frozen=True):
    """`policies`: those in force, with their sources. `candidates`: in the order tried. `merged`:
    what the hints of all resources together chose. `steps`: those of the accumulator that gave
    CPUs, in one tuple for each NUMA node where each gave its own."""

    policies: tuple[PolicyInForce, ...] = ()
    candidates: tuple[NumaCandidate, ...] = ()
    merged: Merged | None = None
    steps: tuple[AllocationStep, ...] = ()


class Price(msgspec.Struct, frozen=True):
    """`score`: 0-100, by the strategy over CPU and memory of the NUMA nodes that the pod would use,
    the whole node where it is not held to some. `numa_nodes`: how many it would use. `split_cores`:
    free whole cores that it would leave partly taken."""

    score: int
    numa_nodes: int
    split_cores: int


class Offer(msgspec.Struct, frozen=True):
    """`claim`: what to commit and to write; without CPUs and amounts the pod runs where it may."""

    claim: PodAllocation
    price: Price
    why: Why


class Declined(msgspec.Struct, frozen=True):
    """No place for the pod here; never without a rejection."""

    uid: str
    title: str
    rejections: tuple[Rejection, ...]
    why: Why
