"""The CPUs and NUMA amounts of a node: what it has, what is allocated to each pod, and the sum
(Koordinator: TopologyOptions, PodAllocation and NodeAllocation in
pkg/scheduler/plugins/nodenumaresource, topology_options.go and node_allocation.go).

`TopologyOptions` are the properties of CPUs and NUMA nodes that no pod changes, `PodAllocation` is
read from a pod's annotations and written to them, `NodeAllocation` is the sum of the allocations,
independent of their order."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate.numa.hint import NodeStatus
from agent.allocate.policies_in_force import PROFILES, NodePolicies, Profile
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import NOTHING_HELD, CpuRefCounts, Layout
from agent.model.cpu.policies import (
    ExclusivePolicy,
)
from agent.model.nrt.node_annotations import MAX_AMPLIFICATION
from agent.model.pod.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    SharedPool,
    resource_spec,
    resource_status,
    status_text,
)

_NO_MEMORY: Final[Mapping[str, int]] = MappingProxyType({})
_NO_AMOUNTS: Final[Mapping[int, int]] = MappingProxyType({})

Amounts = dict[int, dict[str, int]]
"""By NUMA node and resource; `cpu` in milli-CPU, the rest in units (bytes, devices)."""


class TopologyOptions(msgspec.Struct, frozen=True, dict=True):
    """The CPUs and NUMA nodes of a node. Raises ValueError for a ratio that is not a number up to
    1000, and for a `max_ref` below 1. The values of its cached properties must not be changed."""

    layout: Layout | None
    """The machine as bit masks, None if its CPU topology is unknown."""
    numa_allocatable: Amounts = {}
    """The allocatable amounts of the NUMA nodes in the NodeResourceTopology."""
    never_owned: CpuSet = EMPTY
    """No pod may own these CPUs, whatever `owners_on_reserved` says: those of the node reservation
    and of system QoS, and those that the kubelet assigned."""
    kubelet_reserved: CpuSet = EMPTY
    """The CPUs that the kubelet reserves; pods may own them with `owners_on_reserved`."""
    node_reserved: CpuSet = EMPTY
    """The CPUs of the node reservation."""
    policies: NodePolicies = NodePolicies()
    profile: Profile = PROFILES["koordinator"]
    cpu_ratio: float = 1.0
    """The amplification ratio of CPU; bound CPUs count amplified."""
    cpu_milli: int | None = None
    """The node's allocatable CPU after amplification, None if unknown."""
    max_ref: int = 1
    """How many pods may share a CPU."""
    kubelet_static: bool = False
    """The kubelet assigns CPUs itself, which may differ from those that a scheduler chose."""
    owners_on_reserved: bool = False
    """The node's agent lets LSE and LSR pods own CPUs that the kubelet reserves."""
    counts_memory: bool = False
    """The memory of pods that own CPUs or are bound to NUMA nodes counts on these NUMA nodes (NUMA
    topology scheduling proposal, NUMA memory policy)."""

    def __post_init__(self) -> None:
        if not -math.inf < self.cpu_ratio <= MAX_AMPLIFICATION:
            raise ValueError(f"cpu_ratio: {self.cpu_ratio} is not an amplification ratio")
        if self.max_ref < 1:
            raise ValueError(f"max_ref: {self.max_ref} pods cannot share a CPU")

    @property
    def kept(self) -> CpuSet:
        """CPUs that no pod may own."""
        return (
            self.never_owned
            if self.owners_on_reserved
            else self.never_owned | self.kubelet_reserved
        )

    def amplified(self, cpu_milli: int) -> int:
        """The amplified cost of an amount of bound CPU (rounded up, as Koordinator does)."""
        return cpu_milli if self.cpu_ratio <= 1 else math.ceil(cpu_milli * self.cpu_ratio)

    def unamplified(self, cpu_milli: int) -> int:
        """The most bound CPU whose amplified cost is at most this amount."""
        bound = cpu_milli if self.cpu_ratio <= 1 else int(cpu_milli / self.cpu_ratio) + 1
        while self.amplified(bound) > cpu_milli:
            bound -= 1
        return bound

    @cached_property
    def areas(self) -> Mapping[int, int]:
        """The CPUs of each NUMA node, as a mask."""
        return {area.id: area.cpus for area in (self.layout.nodes if self.layout else ())}

    @cached_property
    def node_ids(self) -> frozenset[int]:
        """The NUMA nodes with CPUs, and those with amounts."""
        return frozenset(self.areas) | self.numa_allocatable.keys()

    @cached_property
    def numa_resources(self) -> frozenset[str]:
        """The resources that any NUMA node reports."""
        return frozenset(name for amounts in self.numa_allocatable.values() for name in amounts)

    @cached_property
    def totals(self) -> Amounts:
        """The allocatable amounts of the NUMA nodes: without kept CPUs, CPU amplified."""
        totals = {node: dict(amounts) for node, amounts in self.numa_allocatable.items()}
        kept = self.kept.mask
        for node, amounts in totals.items():
            if "cpu" in amounts:
                cpus = self.layout.of_nodes((node,)) if self.layout else 0
                free = amounts["cpu"] - 1000 * (cpus & kept).bit_count()
                amounts["cpu"] = self.amplified(max(0, free))
        return totals


class PodAllocation(msgspec.Struct, frozen=True):
    """The allocation of one pod. `amounts`: by NUMA node and resource, `cpu` in milli-CPU, the rest
    in units. `cpu_milli`: the CPU request of the whole pod. Only for a pod with `cpus`:
    `exclusive`, and `memory`, the request of the whole pod for the resources of `memory_of`."""

    uid: str
    title: str
    cpus: CpuSet = EMPTY
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    amounts: dict[int, dict[str, int]] = {}
    cpu_milli: int = 0
    memory: dict[str, int] = {}

    @property
    def bound(self) -> bool:
        """Whether the pod has CPUs of its own, or NUMA nodes."""
        return bool(self.cpus or self.amounts)

    def annotations(self, pools: Collection[SharedPool] = ()) -> dict[str, str]:
        """The annotation that `pod_allocation` reads; empty for a pod without CPUs and amounts.
        `pools`: on which a pod without CPUs of its own runs."""
        if not self.bound:
            return {}
        return {RESOURCE_STATUS: status_text(self.cpus, self.amounts, pools)}


def memory_of(requests: Mapping[str, int]) -> dict[str, int]:
    """The requests for resources that count together with memory: memory and hugepages."""
    return {
        name: amount
        for name, amount in requests.items()
        if name == "memory" or name.startswith("hugepages-")
    }


def pod_allocation(
    uid: str,
    title: str,
    annotations: Mapping[str, str],
    cpu_milli: int = 0,
    memory: Mapping[str, int] = _NO_MEMORY,
) -> PodAllocation:
    """The allocation in a pod's annotations. Raises AnnotationError for a resource-status that
    can't be read. A pod that owns CPUs keeps them if another of its annotations can't be read: then
    without amounts, or without an exclusive policy. A pod that an older Koordinator bound to pools
    (cpuSharedPools) holds its CPU request there."""
    status = resource_status(annotations)
    cpus = status.cpus()
    try:
        amounts = status.amounts()
    except AnnotationError:
        if not cpus:
            raise
        amounts = {}
    if not cpus:
        for node, share in status.pool_shares(cpu_milli).items():
            amounts.setdefault(node, {})["cpu"] = share
    bound = dict(memory) if cpus else {}
    return PodAllocation(uid, title, cpus, _exclusive(annotations, cpus), amounts, cpu_milli, bound)


def _exclusive(annotations: Mapping[str, str], cpus: CpuSet) -> ExclusivePolicy:
    if not cpus:
        return ExclusivePolicy.NONE
    try:
        return resource_spec(annotations).exclusive
    except AnnotationError:
        return ExclusivePolicy.NONE


class NodeAllocation:
    """The sum of allocations: two sums of the same allocations are equal. Not thread-safe."""

    def __init__(self, options: TopologyOptions) -> None:
        self.options = options
        self.cpu_counts: CpuRefCounts = NOTHING_HELD
        self.cpu_milli = 0
        self._used: Counter[tuple[int, str]] = Counter()
        """By NUMA node and resource: the recorded amounts, and the memory of owners that counts."""
        self._unrecorded: Counter[int] = Counter()
        """By NUMA node: the milli-CPU of owned CPUs that is in no recorded amount."""
        self._owned: Counter[int] = Counter()
        """By NUMA node: the milli-CPU of owned CPUs."""
        self._records: Counter[int] = Counter()
        """By NUMA node: the number of pods with recorded amounts."""
        self._inside: Counter[int] = Counter()
        """By NUMA node: the number of pods that own CPUs of this node alone."""
        self._spanning: Counter[int] = Counter()
        """By NUMA node: the number of pods that own CPUs of several nodes, and of this one."""
        self._cached_left: tuple[Amounts, Amounts] | None = None

    def copy(self) -> NodeAllocation:
        """An independent copy."""
        other = copy.copy(self)
        for name in ("_used", "_unrecorded", "_owned", "_records", "_inside", "_spanning"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def add(self, allocation: PodAllocation) -> None:
        """Adds the allocation of a pod."""
        self.cpu_counts = self.cpu_counts.adding(allocation.cpus.mask, allocation.exclusive)
        self._count(allocation, 1)

    def remove(self, allocation: PodAllocation) -> None:
        """Removes the allocation of a pod that was added."""
        self.cpu_counts = self.cpu_counts.removing(allocation.cpus.mask, allocation.exclusive)
        self._count(allocation, -1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeAllocation) and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]

    def state(self) -> Hashable:
        """A value that is equal for equal sums of allocations."""
        counters = (
            self._used,
            self._unrecorded,
            self._owned,
            self._records,
            self._inside,
            self._spanning,
        )
        return self.cpu_counts, self.cpu_milli, *(tuple(sorted(each.items())) for each in counters)

    def free_cpus(self) -> int:
        """Mask of the CPUs that a pod may still own."""
        layout = self.options.layout
        if layout is None:
            return 0
        return layout.cpus & ~self.options.kept.mask & ~self.cpu_counts.full(self.options.max_ref)

    def left_by_records(self) -> Amounts:
        """The amounts that the allocated amounts of pods leave, never below 0. Koordinator scores
        NUMA nodes by them. The caller may change the result."""
        return _copied(self._left()[0])

    def available(self) -> Amounts:
        """The amounts of `left_by_records`, reduced also by the CPUs that a pod owns in excess of
        its amounts. The caller may change the result."""
        return _copied(self._left()[1])

    def _left(self) -> tuple[Amounts, Amounts]:
        """The results of `left_by_records` and `available`, cached: most offers are not followed by
        a commit."""
        if self._cached_left is None:
            recorded = {
                node: {
                    name: max(0, total - self.recorded_used(node, name))
                    for name, total in amounts.items()
                }
                for node, amounts in self.options.totals.items()
            }
            left = _copied(recorded)
            for node, cpu_milli in self._owned.items():
                if cpu_milli and "cpu" in left.get(node, ()):
                    left[node]["cpu"] = max(
                        0, self.options.totals[node]["cpu"] - self.used(node, "cpu")
                    )
            self._cached_left = recorded, left
        return self._cached_left

    def used(self, node: int, name: str) -> int:
        """The amount of a resource of a NUMA node that pods hold. All CPUs that a pod owns count,
        also if its recorded amount is smaller."""
        amount = self._used[node, name]
        if name != "cpu":
            return amount
        return amount + self._unrecorded[node] + self._amplification(node)

    def recorded_used(self, node: int, name: str) -> int:
        """The amount that pods hold by their recorded amounts. If there are any, the amplification
        of the CPUs that pods own is added (Koordinator:
        pkg/scheduler/plugins/nodenumaresource/node_allocation.go,
        getAvailableNUMANodeResources)."""
        amount = self._used[node, name]
        return (
            amount + self._amplification(node) if name == "cpu" and self._records[node] else amount
        )

    def busy_nodes(self) -> set[int]:
        """The NUMA nodes where a pod holds something."""
        return {node for node, _ in self._used} | self._inside.keys() | self._spanning.keys()

    def shared_pools(self) -> dict[int, int]:
        """The milli-CPU of the CPUs without an owner, by NUMA node. CPUs that the kubelet reserves
        are in the pool, as on the node (fine-grained CPU orchestration proposal, Basic CPU
        orchestration principles)."""
        shared = ~(self.cpu_counts.full(1) | self.options.never_owned.mask)
        return {
            node: 1000 * (cpus & shared).bit_count() for node, cpus in self.options.areas.items()
        }

    def counts_memory_of(self, nodes: Collection[int]) -> bool:
        """Whether the memory of a pod that owns CPUs of these NUMA nodes counts on them. It does
        not if one of them has no memory (see `allocate.pools`)."""
        return self.options.counts_memory and all(
            self.options.totals.get(node, {}).get("memory") for node in nodes
        )

    def numa_status(self) -> dict[int, NodeStatus]:
        """The status of every NUMA node."""
        return {
            node: NodeStatus.SHARED
            if self._spanning[node]
            else NodeStatus.SINGLE
            if self._inside[node]
            else NodeStatus.IDLE
            for node in sorted(self.options.node_ids)
        }

    def paid(self, allocation: PodAllocation) -> int:
        """The milli-CPU of the whole node that a pod uses, with its own CPUs amplified."""
        bound = 1000 * len(allocation.cpus)
        return max(allocation.cpu_milli, bound) - bound + self.options.amplified(bound)

    def _count(self, allocation: PodAllocation, sign: int) -> None:
        self._cached_left = None
        self.cpu_milli += sign * self.paid(allocation)
        own = {
            node: count
            for node, cpus in self.options.areas.items()
            if (count := (cpus & allocation.cpus.mask).bit_count())
        }
        for node, amounts in allocation.amounts.items():
            self._add(self._records, node, sign)
            for name, amount in amounts.items():
                self._add(self._used, (node, name), sign * amount)
        for node, name, amount in self._unrecorded_memory(allocation, own):
            self._add(self._used, (node, name), sign * amount)
        for node, count in own.items():
            bound = 1000 * count
            self._add(self._owned, node, sign * bound)
            missing = max(0, bound - allocation.amounts.get(node, {}).get("cpu", 0))
            self._add(self._unrecorded, node, sign * missing)
        for node in own:
            self._add(self._spanning if len(own) > 1 else self._inside, node, sign)

    def _unrecorded_memory(
        self, allocation: PodAllocation, own: Mapping[int, int]
    ) -> Iterator[tuple[int, str, int]]:
        """The memory that counts on the NUMA nodes of an owner but is not in its recorded amounts,
        because another scheduler placed the pod, or memory did not count then. It is divided in
        proportion to the pod's CPUs on each node."""
        if not own or not self.counts_memory_of(own):
            return
        recorded = {name for amounts in allocation.amounts.values() for name in amounts}
        for name, amount in allocation.memory.items():
            missing, cpus = 0 if name in recorded else amount, sum(own.values())
            for node, count in sorted(own.items()):
                share = missing * count // cpus
                missing, cpus = missing - share, cpus - count
                yield node, name, share

    def _amplification(self, node: int) -> int:
        """What amplification adds to the CPUs that pods own on this NUMA node."""
        owned = self._owned[node]
        return self.options.amplified(owned) - owned

    def _add(self, counter: Counter, key: object, amount: int) -> None:  # type: ignore[type-arg]
        counter[key] += amount
        if not counter[key]:
            del counter[key]


def _copied(amounts: Amounts) -> Amounts:
    return {node: dict(of_node) for node, of_node in amounts.items()}


def split_evenly(requested: int, available: Mapping[int, int], unit: int = 1) -> dict[int, int]:
    """Splits as equally as availability and whole `unit`s permit; a remainder goes to the nodes
    that have most. Nodes that get nothing are left out; a sum below `requested` is a shortage.
    Koordinator's rule (tryBestToDistributeEvenly): the node with the least first, each at most its
    share of the rest."""
    shares: dict[int, int] = {}
    missing = requested // unit
    ordered = sorted(available, key=lambda node: (available[node], node))
    for index, node in enumerate(ordered):
        share = min(available[node] // unit, missing // (len(ordered) - index))
        if share > 0:
            shares[node] = share * unit
            missing -= share
    return shares


def split_packed(
    requested: int,
    available: Mapping[int, int],
    unit: int = 1,
    first: Mapping[int, int] = _NO_AMOUNTS,
) -> dict[int, int]:
    """One node after the other gives all that it has: those with the most in `first`, then those
    with the most available. Without `first`, the fewest nodes hold the amount."""
    shares: dict[int, int] = {}
    missing = requested // unit
    for node in sorted(available, key=lambda node: (-first.get(node, 0), -available[node], node)):
        share = min(available[node] // unit, missing)
        if share > 0:
            shares[node] = share * unit
            missing -= share
    return shares
