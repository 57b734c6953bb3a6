"""The CPUs and NUMA amounts of one node: an offer of them to a pod, or the reasons why there is
none.

Checks come first, in Koordinator's order (pkg/scheduler/plugins/nodenumaresource/plugin.go,
PreFilter and Filter): policies, whole CPUs, amplified CPU, SMT alignment. Without a NUMA policy the
CPUs of a pod that binds them are taken from the whole machine. With one, hints name the NUMA nodes
that CPU, memory and other resources could come from, their merge chooses the nodes, and the amounts
are split over these. Only what could be committed at once is offered.

NUMA nodes are chosen as by Koordinator's topology manager
(pkg/scheduler/frameworkext/topologymanager), with three differences:

- A request that could not be reserved is not admitted, not even under BestEffort.
- The amounts of a machine with one NUMA node are counted too.
- Among NUMA nodes that are equal under the policy, the exclusive policy decides, then the whole
  cores that a preferred FullPCPUs gets, then the strategy in force, not their ids.

The devices take part in the merge as a second hint provider.

An amount is split evenly (`split_evenly`) or fills one NUMA node after the other (`split_packed`);
both order the nodes by their available amounts. CPUs of a pod that prefers FullPCPUs are split by
whole cores, as far as there are any, and the rest by single CPUs. Koordinator's function
(pkg/scheduler/plugins/nodenumaresource/resource_manager.go, tryBestToDistributeEvenly) compares
available amounts by position instead, so its order is wrong unless the nodes have the ids 0, 1, ...

Where memory counts on the NUMA nodes of a pod's CPUs, the memory of an owner comes from the NUMA
nodes that give its CPUs, also without a NUMA policy: if those have too little, its CPUs come from
the fewest NUMA nodes that have the memory too (NUMA topology scheduling proposal, NUMA memory
policy).

A pod with ConstrainedBurst shares CPUs on the fewest NUMA nodes whose pools fit its limit: a single
node, else the nodes with the largest pools. It can burst to its limit on these nodes (fine-grained
CPU orchestration proposal).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import cached_property, partial
from itertools import groupby
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from agent.allocate import accumulator, node_score
from agent.allocate.accumulator import (
    AllocationStep,
    CpuExclusivity,
    CpuRequest,
    Shortage,
    Taken,
    Terms,
)
from agent.allocate.node_allocation import (
    Amounts,
    NodeAllocation,
    PodAllocation,
    TopologyOptions,
    memory_of,
    split_evenly,
    split_packed,
)
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.part import Priced
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.node_score import ScoreInput, WholeNode
from agent.allocate.numa import koordinator_merge
from agent.allocate.numa.hint import (
    MergeCause,
    Merged,
    Provider,
    TopologyHint,
    ids,
    resource_hints,
    subsets,
)
from agent.allocate.policies_in_force import InForce, PolicyInForce, in_force
from agent.allocate.refusal import Reason, Refusal, combined
from agent.allocate.score import HIGHEST, points, weights_that_count
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import (
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    Strategy,
)
from agent.model.pod.annotations import SharedPool
from agent.model.pod.resource_request import ResourceRequest
from agent.model.pod_request import Needs, PodRequest, Reads

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_NO_CPU: Final[Mapping[int, int]] = MappingProxyType({})
_WEIGHTS: Final = {"cpu": 1, "memory": 1}


class Price(msgspec.Struct, frozen=True):
    """The cost of an offer."""

    score: int
    """0 to 100, by the scoring of the node, or by the strategy in force over CPU and memory of the
    NUMA nodes that the pod would use (of all of them, if it is bound to none)."""
    numa_nodes: int
    """The number of NUMA nodes that the pod would use."""
    split_cores: int
    """The number of free whole cores that the pod would take only in part."""
    avoided: bool = False
    """Whether the pod avoids the node (see `Bind`)."""


class NumaCandidate(msgspec.Struct, frozen=True):
    """NUMA nodes that were tried: what the pod gets there, or what they lack."""

    nodes: tuple[int, ...]
    exclusivity: CpuExclusivity | None = None
    whole_cores: int | None = None
    """The whole cores that a preferred FullPCPUs gets."""
    score: int | None = None
    """0 to 100, by the strategy."""
    refusal: Refusal | None = None


class Why(msgspec.Struct, frozen=True):
    """How an offer was found."""

    policies: tuple[PolicyInForce, ...] = ()
    candidates: tuple[NumaCandidate, ...] = ()
    """In the order in which they were tried."""
    merged: Merged | None = None
    """The result of the merge of the hints of all resources."""
    cpu_steps: tuple[AllocationStep, ...] = ()
    """The steps of the accumulator that gave CPUs."""


class CpuOffer(msgspec.Struct, frozen=True):
    """What is committed and written to the pod. Without CPUs and amounts the pod is not bound."""

    allocation: PodAllocation
    price: Price
    why: Why
    pools: tuple[SharedPool, ...] = ()
    """The CPU shared pools on which a pod without CPUs of its own runs; none if it is bound to no
    NUMA node."""


class HintProvider(Protocol):
    """A hint provider for resources that the NUMA nodes do not count."""

    def hints(self, nodes: Collection[int], *, narrowest: bool = False) -> Provider:
        """The sets of NUMA nodes that the resources could come from; `narrowest`: only the sets
        with the fewest nodes, which are the preferred ones."""

    def fits(self, mask: int | None) -> bool:
        """Whether the chosen NUMA nodes have the resources; None: whether any nodes have them."""

    def explain(self, refusal: Refusal) -> Refusal:
        """The refusal of the merge, with what these resources lack."""


class CpuAllocator:
    """The CPUs and NUMA amounts that the pods of a node hold, and the sum of their requests. Not
    thread-safe."""

    def __init__(self, properties: NodeProperties) -> None:
        self.properties = properties
        self.requested: Counter[str] = Counter()
        self._node_allocation = NodeAllocation(properties.cpus) if properties.cpus else None

    def admits(self, pod_request: PodRequest, steps: Steps) -> Refusal | None:
        cpus = self.properties.cpus
        if pod_request.unequal:
            text = f"{pod_request.unequal}: {pod_request.resources.qos} pods need equal amounts"
            return Refusal(Reason.CPU_LIMIT_DIFFERS, detail=text)
        if cpus is None and Needs.CPUS in pod_request.needs:
            text = f"node {self.properties.name} has no usable NodeResourceTopology"
            return Refusal(Reason.NO_REPORT, detail=text)
        reason = pod_request.shared_reason
        if reason and cpus is not None and cpus.kubelet_static:
            text = f"the kubelet's static CPU policy assigns it no CPUs: {reason}"
            return Refusal(Reason.STATIC_KUBELET, detail=text)
        return None

    def offer(
        self, pod_request: PodRequest, steps: Steps, hints: HintProvider | None = None
    ) -> Priced[CpuOffer | None] | Refusal:
        node_allocation, cpus = self._node_allocation, self.properties.cpus
        if node_allocation is None or cpus is None:
            return Priced(None, None, (False, 0, 0))
        request, scored = pod_request.resources, _scored(pod_request)
        args = self.properties.rules.scoring if scored else None
        score = None
        if args is not None:
            score = partial(
                node_score.score, args, self._score_input(cpus, node_allocation), request
            )
        answer = cpu_offer(cpus, node_allocation, request, hints, steps, score)
        if isinstance(answer, Refusal):
            return answer if hints is None else hints.explain(answer)
        price = answer.price
        order = (price.avoided, price.split_cores, price.numa_nodes)
        return Priced(answer, price.score if scored else None, order, price.avoided)

    def score_bound(self, pod_request: PodRequest) -> int:
        """No offer to the pod, which holds nothing here, has a higher score. Negative if there is
        surely none."""
        args, cpus, request = (
            self.properties.rules.scoring,
            self.properties.cpus,
            pod_request.resources,
        )
        node_allocation = self._node_allocation
        if cpus is None or node_allocation is None:
            return HIGHEST
        if _surely_refused(cpus, node_allocation, request):
            return -1
        if args is None or not _scored(pod_request):
            return HIGHEST
        return node_score.bound(args, self._score_input(cpus, node_allocation), request)

    def missing(self, pod_request: PodRequest, choice: CpuOffer | None, steps: Steps) -> str:
        if choice is None:
            return ""
        allocation, cpus = choice.allocation, self.properties.cpus
        if cpus is None or self._node_allocation is None:
            lost = allocation.cpus or allocation.amounts
            return "the node no longer has a usable NodeResourceTopology" if lost else ""
        return unavailable(cpus, self._node_allocation, pod_request.resources, allocation)

    def record(self, pod: AssignedPod) -> None:
        self.requested += pod.requests
        if self._node_allocation is not None:
            self._node_allocation.add(pod.allocation)

    def forget(self, pod: AssignedPod) -> None:
        self.requested -= Counter(pod.requests)
        if self._node_allocation is not None:
            self._node_allocation.remove(pod.allocation)

    def without(self, pods: Collection[AssignedPod]) -> CpuAllocator:
        other = copy.copy(self)
        other.requested = self.requested.copy()
        other._node_allocation = self._node_allocation.copy() if self._node_allocation else None
        for pod in pods:
            other.forget(pod)
        return other

    def state(self, reads: Reads) -> Hashable:
        node_allocation = self._node_allocation.state() if self._node_allocation else None
        scored = self.properties.rules.scoring is not None
        return node_allocation, tuple(sorted(self.requested.items())) if scored else ()

    def free_cpus(self) -> int:
        """Mask of the CPUs that a pod may still own."""
        return self._node_allocation.free_cpus() if self._node_allocation else 0

    def _score_input(self, cpus: TopologyOptions, node_allocation: NodeAllocation) -> ScoreInput:
        return ScoreInput(
            cpus, node_allocation, WholeNode(self.properties.allocatable, self.requested)
        )


def _scored(pod_request: PodRequest) -> bool:
    return "cpu" in pod_request.requests or "memory" in pod_request.requests


def cpu_offer(
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    request: ResourceRequest,
    provider: HintProvider | None = None,
    steps: Steps = UNCOUNTED,
    score: Callable[[PodAllocation], int] | None = None,
) -> CpuOffer | Refusal:
    """An offer for a pod that holds nothing on the node. Raises TooComplexError.

    `provider`: takes part in the merge under a NUMA policy.
    `score`: returns the score of an allocation; None for the score by the strategy in force."""
    if not request.requests and not request.burst_milli and provider is None:
        return CpuOffer(PodAllocation(request.uid, request.title), Price(0, 0, 0), Why())
    policies = in_force(options.policies, options.profile, request)
    if isinstance(policies, Refusal):
        return policies
    if refusal := _early_refusal(options, node_allocation, request, policies):
        return refusal
    held = _with_cpu(request)
    trials = Trials(
        options, node_allocation, held, policies, steps, with_devices=provider is not None
    )
    if policies.numa is NumaPolicy.NONE:
        allotment = _unaligned(held, policies, trials)
    else:
        allotment = _align(node_allocation, held, policies, trials, provider)
    if isinstance(allotment, Refusal):
        return allotment
    allocation = PodAllocation(
        request.uid,
        request.title,
        CpuSet.from_int(allotment.cpus),
        policies.exclusive if allotment.cpus else ExclusivePolicy.NONE,
        allotment.amounts,
        request.requests.get("cpu", 0),
        memory_of(request.requests) if allotment.cpus else {},
    )
    why = Why(policies.chosen, allotment.candidates, allotment.merged, allotment.steps)
    price = trials.price(allotment, None if score is None else score(allocation))
    return CpuOffer(allocation, price, why, _pools(options, allocation))


def _surely_refused(
    options: TopologyOptions, node_allocation: NodeAllocation, request: ResourceRequest
) -> bool:
    """Whether `cpu_offer` refuses the pod because all NUMA nodes together have too little: a small
    part of an offer tells it."""
    free_milli = 1000 * node_allocation.free_cpus().bit_count()
    available = node_allocation.available().values()
    short_of_cpus = request.requests.get("cpu", 0) > free_milli
    short_of_amounts = any(
        amount > sum(of_node.get(name, 0) for of_node in available)
        for name, amount in request.requests.items()
        if name in node_allocation.options.numa_resources
    )
    if not short_of_cpus and not short_of_amounts:
        return False
    policies = in_force(options.policies, options.profile, request)
    if isinstance(policies, Refusal):
        return True
    aligned = policies.numa is not NumaPolicy.NONE
    return (short_of_cpus and policies.bind is not None) or (short_of_amounts and aligned)


def _pools(options: TopologyOptions, allocation: PodAllocation) -> tuple[SharedPool, ...]:
    amounts = allocation.amounts
    if allocation.cpus or not any("cpu" in of_node for of_node in amounts.values()):
        return ()
    socket_of = options.layout.socket_of if options.layout else lambda _: 0
    return tuple(SharedPool(each, socket_of(each)) for each in sorted(amounts))


def unavailable(
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    request: ResourceRequest,
    allocation: PodAllocation,
) -> str:
    """What an offered allocation needs and the node no longer has; "" if the node has all of it."""
    if outgrown := _outgrown(options, node_allocation, request, allocation):
        return outgrown
    if missing := allocation.cpus - CpuSet.from_int(node_allocation.free_cpus()):
        return f"CPUs {missing} are no longer free"
    if options.cpu_ratio > 1 and options.cpu_milli is not None:
        paid, left = node_allocation.paid(allocation), options.cpu_milli - node_allocation.cpu_milli
        if paid > max(0, left):
            return f"the node has {left} of {paid} amplified CPU left"
    available = node_allocation.available()
    counted = {name for amounts in available.values() for name in amounts}
    for node, amounts in allocation.amounts.items():
        for name, requested in amounts.items():
            if name not in counted:
                continue
            amount = (
                options.amplified(requested) if name == "cpu" and allocation.cpus else requested
            )
            left = available.get(node, {}).get(name, 0)
            if amount > left:
                return f"NUMA node {node} has {left} of {amount} {name} left"
    return ""


def _outgrown(
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    request: ResourceRequest,
    allocation: PodAllocation,
) -> str:
    """Why the shared pools are too small for the limit of a pod that bursts; "" if they are not."""
    limit = request.burst_milli
    if not limit or allocation.cpus or not allocation.amounts:
        return ""
    pools = node_allocation.shared_pools()
    pool = sum(pools.get(node, 0) for node in allocation.amounts)
    if pool >= limit:
        return ""
    nodes = ", ".join(map(str, sorted(allocation.amounts)))
    return f"the pools of NUMA nodes {nodes} have {pool} of {limit} milli-CPU left"


def _early_refusal(
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    request: ResourceRequest,
    policies: InForce,
) -> Refusal | None:
    """Rejects a pod that fits on no NUMA nodes, before any trial."""
    cpu_milli = request.requests.get("cpu", 0)
    bind = policies.bind
    if bind and cpu_milli % 1000:
        return Refusal(Reason.CPU_NOT_INTEGER, "cpu", cpu_milli)
    if options.cpu_ratio > 1 and options.cpu_milli is not None:
        requested = options.amplified(cpu_milli) if bind else cpu_milli
        left = options.cpu_milli - node_allocation.cpu_milli
        if requested > max(0, left):
            return Refusal(Reason.AMPLIFIED_CPU, "cpu", requested, left)
    if bind is None:
        return None
    if options.layout is None:
        return Refusal(Reason.NO_CPU_TOPOLOGY)
    if bind.required and bind.policy is BindPolicy.FULL_PCPUS:
        threads = options.layout.threads
        if cpu_milli // 1000 % threads:
            return Refusal(Reason.SMT_ALIGNMENT, "cpu", cpu_milli, detail=f"{threads} threads")
    return None


def _with_cpu(request: ResourceRequest) -> ResourceRequest:
    """A pod that bursts is bound to NUMA nodes by its CPU amounts there, so it requests at least 1
    milli-CPU."""
    if not request.burst_milli or request.requests.get("cpu"):
        return request
    return msgspec.structs.replace(request, requests={**request.requests, "cpu": 1})


def _unaligned(request: ResourceRequest, policies: InForce, trials: Trials) -> Allotment | Refusal:
    if policies.bind or not request.burst_milli:
        return trials.anywhere()
    left = trials.pools
    if "cpu" in trials.numa_resources:
        left = {node: trials.available.get(node, {}).get("cpu", 0) for node in trials.pools}
    cpu_milli, memory = request.requests["cpu"], trials.counted_memory
    nodes = burst_nodes(
        request.burst_milli,
        cpu_milli,
        trials.pools,
        left,
        policies.strategy,
        memory,
        {name: trials.left_of(name, trials.pools) for name in memory},
    )
    if isinstance(nodes, Refusal):
        return nodes
    amounts = {
        node: {"cpu": share} for node, share in burst_amounts(cpu_milli, nodes, left).items()
    }
    bound = trials.with_memory(nodes)
    if isinstance(bound, Refusal):
        return bound
    for node, of_node in bound.items():
        amounts[node] |= of_node
    return Allotment(0, amounts)


def burst_nodes(
    limit_milli: int,
    request_milli: int,
    pools: Mapping[int, int],
    available: Mapping[int, int],
    strategy: Strategy,
    memory: Mapping[str, int],
    free_memory: Mapping[str, Mapping[int, int]],
) -> tuple[int, ...] | Refusal:
    """The NUMA nodes to which a pod that bursts is bound.

    Among single nodes MostAllocated takes the smallest pool that fits, every other strategy the
    node with the most available CPU; of equal nodes the one with the lower id.

    `pools`: the milli-CPU of the shared pool of each node.
    `available`: the milli-CPU that no pod has; nodes without any are left out.
    `memory`: the requested amounts that count on the nodes, by resource.
    `free_memory`: the free amounts of these resources, by node."""
    pools = {node: pool for node, pool in pools.items() if available.get(node, 0) > 0}

    def fit(*nodes: int) -> bool:
        return (
            sum(pools[each] for each in nodes) >= limit_milli
            and sum(available[each] for each in nodes) >= request_milli
            and not any(_missing(*nodes))
        )

    def _missing(*nodes: int) -> Iterator[tuple[str, int, int]]:
        for name, requested in memory.items():
            have = sum(free_memory[name].get(each, 0) for each in nodes)
            if have < requested:
                yield name, requested, have

    fitting = [node for node in pools if fit(node)]
    if fitting:
        if strategy is Strategy.MOST_ALLOCATED:
            return (min(fitting, key=lambda node: (pools[node], available[node], node)),)
        return (min(fitting, key=lambda node: (-available[node], node)),)
    chosen: list[int] = []
    for node in sorted(pools, key=lambda node: (-pools[node], node)):
        chosen.append(node)
        if fit(*chosen):
            return tuple(sorted(chosen))
    whole = sum(pools.values())
    if whole < limit_milli:
        return Refusal(Reason.NO_POOL_FITS, "cpu", limit_milli, whole)
    left = sum(available[node] for node in pools)
    if left < request_milli:
        return Refusal(Reason.NUMA_INSUFFICIENT, "cpu", request_milli, left, tuple(pools))
    name, requested, have = next(_missing(*pools))
    return Refusal(Reason.NUMA_INSUFFICIENT, name, requested, have, tuple(pools))


def _align(
    node_allocation: NodeAllocation,
    request: ResourceRequest,
    policies: InForce,
    trials: Trials,
    provider: HintProvider | None = None,
) -> Allotment | Refusal:
    """For a pod under a NUMA policy: hints, their merge, and a trial of the merged NUMA nodes."""
    wanted = {
        name: amount for name, amount in request.requests.items() if name in trials.numa_resources
    }
    if not trials.totals:
        return Refusal(Reason.NO_NUMA_RESOURCES)
    if "cpu" not in wanted and (policies.bind or request.burst_milli):
        return Refusal(Reason.NO_NUMA_RESOURCES, "cpu", request.requests["cpu"])
    if not wanted and provider is None:
        return Allotment(0, {})
    tried: dict[int, Refusal | None] = {}
    judged: dict[int, tuple[CpuExclusivity, int, int]] = {}
    cpus = wanted.get("cpu", 0) // 1000

    def fits(mask: int) -> bool:
        if mask not in tried:
            tried[mask] = trials.lacks(ids(mask))
        return tried[mask] is None

    def total_score(mask: int) -> int:
        if mask not in judged:
            whole_cores = trials.whole_cores(mask)
            judged[mask] = trials.exclusivity(mask), whole_cores, trials.score(mask)
        exclusivity, whole_cores, score = judged[mask]
        # One number compares exclusivity, then whole cores, then the score.
        return (HIGHEST + 1) * ((cpus + 1) * exclusivity + whole_cores) + score

    def merge(
        others: Provider | None, widest: int | None = None, *, narrowest: bool = False
    ) -> Merged:
        hints = resource_hints(
            wanted,
            trials.available,
            trials.totals,
            policies.numa,
            total_score,
            fits,
            narrowest=narrowest,
            widest=widest,
            steps=trials.steps,
        )
        return koordinator_merge.merge(
            [hints] if others is None else [hints, others],
            trials.totals,
            policies.numa,
            policies.numa_exclusive,
            node_allocation.numa_status(),
            by_score=True,
            steps=trials.steps,
        )

    if provider is None:
        merged = merge(None, narrowest=True)
        if policies.numa_exclusive is NumaExclusive.REQUIRED and not merged.preferred:
            # The NUMA exclusive policy may exclude all narrow sets, because of pods there.
            merged = merge(None)
    else:
        merged = _merged_with(provider, trials, merge)
    if not merged.admit:
        return _unmerged(request, wanted, merged, trials)
    nodes = tuple(trials.totals) if merged.mask is None else ids(merged.mask)
    allotment = trials.on_nodes(nodes)
    if isinstance(allotment, Refusal):
        return allotment
    if provider is not None and not provider.fits(merged.mask):
        return Refusal(Reason.NUMA_COMPANION, nodes=nodes)
    candidates = tuple(
        NumaCandidate(ids(mask), refusal=refusal)
        if (measures := judged.get(mask)) is None
        else NumaCandidate(ids(mask), *measures)
        for mask, refusal in tried.items()
    )
    return msgspec.structs.replace(allotment, candidates=candidates, merged=merged)


def _merged_with(
    provider: HintProvider, trials: Trials, merge: Callable[[Provider, int | None], Merged]
) -> Merged:
    """Merges the hints of both providers. The first merge has only the narrowest sets, which the
    provider prefers: if its result is preferred, no wider set can win. Otherwise wider sets are
    tried too; those of the provider matter only under a policy that admits a result that is not
    preferred."""
    nodes = tuple(trials.totals)
    narrow = provider.hints(nodes, narrowest=True)
    sizes = [_size(hint) for hints in narrow.values() for hint in hints or ()]
    if sizes:
        merged = merge(narrow, max(sizes))
        if merged.preferred:
            return merged
    admits_all = trials.policies.numa is NumaPolicy.BEST_EFFORT
    return merge(provider.hints(nodes) if admits_all else narrow, None)


def _size(hint: TopologyHint) -> int:
    return 0 if hint.mask is None else hint.mask.bit_count()


def _pool_milli(trials: Trials, *, together: bool) -> int:
    """The milli-CPU of the shared pools of NUMA nodes with available CPU: of all `together`, or of
    the largest one."""
    left = trials.left_of("cpu", trials.pools)
    pools = [pool for node, pool in trials.pools.items() if left[node] > 0]
    return sum(pools) if together else max(pools, default=0)


def _unmerged(
    request: ResourceRequest, wanted: dict[str, int], merged: Merged, trials: Trials
) -> Refusal:
    if MergeCause.RESOURCE_LACKING in merged.causes or MergeCause.NOT_ON_ONE_NODE in merged.causes:
        together = MergeCause.RESOURCE_LACKING in merged.causes
        reason = Reason.NUMA_UNSATISFIED if together else Reason.NUMA_UNALIGNED
        limit = 0 if trials.policies.bind else request.burst_milli

        def refusal(name: str) -> Refusal:
            if name == "cpu" and limit > (pool := _pool_milli(trials, together=together)):
                return Refusal(Reason.NO_POOL_FITS, name, limit, pool)
            if name not in wanted:
                return Refusal(reason, name)
            return Refusal(reason, name, wanted[name], trials.left(name, together=together))

        return combined([refusal(pick.resource) for pick in merged.lacking if pick.resource])
    nodes = ids(merged.combined or 0)
    return Refusal(Reason.NUMA_UNALIGNED, nodes=nodes, detail=", ".join(merged.causes))


class Allotment(msgspec.Struct, frozen=True):
    """The CPUs and amounts that a pod would get, and how they were found."""

    cpus: int
    """A mask, 0 for a pod that shares CPUs."""
    amounts: Amounts
    """By NUMA node; empty if the pod is bound to none."""
    steps: tuple[AllocationStep, ...] = ()
    candidates: tuple[NumaCandidate, ...] = ()
    merged: Merged | None = None


class Trials:
    """Trials of one pod on one node in its current state. They change nothing, and raise
    TooComplexError when the steps are used up."""

    downgrade = True
    """See CpuRequest."""

    def __init__(
        self,
        options: TopologyOptions,
        node_allocation: NodeAllocation,
        request: ResourceRequest,
        policies: InForce,
        steps: Steps = UNCOUNTED,
        *,
        with_devices: bool = False,
    ) -> None:
        """`with_devices`: the pod gets devices too, which may be on each of its NUMA nodes."""
        self._options = options
        self._node_allocation = node_allocation
        self._request = request
        self.policies = policies
        self.steps = steps
        self._with_devices = with_devices
        self._free = node_allocation.free_cpus()
        self.totals = options.totals
        self.numa_resources = options.numa_resources
        self._areas = options.areas
        self.available = node_allocation.available()
        self._recorded = node_allocation.left_by_records()
        self.trim()

    @cached_property
    def pools(self) -> dict[int, int]:
        """See `NodeAllocation.shared_pools`."""
        return self._node_allocation.shared_pools()

    def anywhere(self) -> Allotment | Refusal:
        """Takes CPUs from the whole machine, for a pod without a NUMA policy."""
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return Allotment(0, {})
        self.steps.take(self._steps_of_node * len(layout.nodes))
        taken = accumulator.take(
            layout, self._free, self._node_allocation.cpu_counts, request, self._options.max_ref
        )
        if isinstance(taken, Shortage):
            return _rejection(taken)
        allotment = self._on_cpus(layout, taken)
        if isinstance(allotment, Refusal):
            return self._where_memory_is(layout, allotment)
        return allotment

    def lacks(self, nodes: Collection[int]) -> Refusal | None:
        """Why the pod does not fit these NUMA nodes, None if `on_nodes` finds an allotment."""
        self.steps.take(1 + len(nodes) * len(self._request.requests) // 6)
        if self._have_enough(nodes):
            return None
        amounts = self._amounts(nodes)
        if isinstance(amounts, Refusal):
            return amounts
        shares = self._shares(amounts, nodes)
        if isinstance(shares, Refusal):
            return shares
        layout = self._options.layout
        if layout is None or len(layout.sizes) <= 1:
            # `trim` left only CPUs that suit the bind policy, and equal cores add up to the need.
            return None
        allotment = self._bound(amounts, shares)
        return allotment if isinstance(allotment, Refusal) else None

    def on_nodes(self, nodes: Collection[int]) -> Allotment | Refusal:
        """Takes all requested amounts from these NUMA nodes. Resources that no NUMA node has are
        ignored. The limit of a pod that bursts must fit the pools of the nodes that it is bound
        to."""
        amounts = self._amounts(nodes)
        if isinstance(amounts, Refusal):
            return amounts
        shares = self._shares(amounts, nodes)
        return shares if isinstance(shares, Refusal) else self._bound(amounts, shares)

    def whole_cores(self, mask: int) -> int:
        """The number of whole cores that the pod gets on these NUMA nodes, if it prefers FullPCPUs;
        0 for other pods."""
        if not self._whole_milli:
            return 0
        missing = self._request.requests["cpu"]
        for node in ids(mask):
            missing -= self._whole_milli.get(node, 0)
        return (self._request.requests["cpu"] - max(0, missing)) // self._core_milli

    def score(self, mask: int) -> int:
        """The score of these NUMA nodes, 0-100, by the strategy in force, with the pod on them."""
        self.steps.take(4 + mask.bit_count())
        return self._scores.of(mask)

    def exclusivity(self, mask: int) -> CpuExclusivity:
        """What the exclusive policy of the pod gets on these NUMA nodes, by a trial."""
        terms = self._terms
        if terms is None or not (terms.nodes_off or terms.cores_off):
            return CpuExclusivity.SATISFIED
        allotment = self.on_nodes(ids(mask))
        if isinstance(allotment, Refusal):
            return CpuExclusivity.SAME_CORES
        return terms.exclusivity(allotment.cpus)

    def price(self, allotment: Allotment, score: int | None = None) -> Price:
        """The price of an allotment before it is committed.

        `score`: None for the score by the strategy."""
        layout = self._options.layout
        used = set(allotment.amounts)
        split_cores = 0
        if layout:
            used.update(layout.node_ids(allotment.cpus))
            touched = layout.touched(allotment.cpus) & layout.whole(self._free)
            split_cores = (touched & ~layout.whole(allotment.cpus)).bit_count()
        mask = sum(1 << node for node in used or self.totals)
        bind = self.policies.bind
        avoided = bind is not None and bind.avoided
        self.steps.take(4 + mask.bit_count())
        points = self._scores.of(mask) if score is None else score
        return Price(points, len(used), split_cores, avoided)

    def left(self, name: str, *, together: bool) -> int:
        """The available amount of a resource: of all NUMA nodes `together`, or of the one that has
        most."""
        amounts = [held.get(name, 0) for held in self.available.values()]
        return sum(amounts) if together else max(amounts, default=0)

    def split(
        self,
        name: str,
        requested: int,
        room: dict[int, int],
        cpu_shares: Mapping[int, int] = _NO_CPU,
    ) -> dict[int, int]:
        """Splits an amount over NUMA nodes with this available amount each. `cpu_shares`:
        the CPU that the pod gets there."""
        unit = self.unit(name)
        if name != "cpu":
            return _in_order(requested, room, unit, cpu_shares, packed=self._packed)
        # Full or whole cores may leave a NUMA node without CPUs of a pod that needs some of each:
        # then its CPUs are split evenly, and at last without regard to cores.
        for packed in (True, False) if self._packed else (False,):
            if self._whole_milli:
                shares = self._by_cores(requested, room, packed=packed)
            else:
                shares = _in_order(requested, room, unit, packed=packed)
            if len(shares) == len(room) or not self._on_all_nodes:
                return shares
        return split_evenly(requested, room, unit)

    def _by_cores(self, requested: int, room: Mapping[int, int], *, packed: bool) -> dict[int, int]:
        whole = {node: min(left, self._whole_milli.get(node, 0)) for node, left in room.items()}
        shares = _in_order(requested, whole, self._core_milli, packed=packed)
        missing = requested - sum(shares.values())
        if missing:
            rest = {node: left - shares.get(node, 0) for node, left in room.items()}
            more = _in_order(missing, rest, self.unit("cpu"), shares, packed=packed)
            for node, share in more.items():
                shares[node] = shares.get(node, 0) + share
        return shares

    @cached_property
    def _packed(self) -> bool:
        """Whether amounts fill one NUMA node after the other. A pod with devices gets even parts,
        so that each device has CPUs nearby, unless the configuration says otherwise."""
        strategy, configured = self.policies.strategy, self._options.profile.packed
        if configured is None:
            return strategy is Strategy.MOST_ALLOCATED and not self._with_devices
        return configured and strategy is not Strategy.DISTRIBUTE_EVENLY

    @cached_property
    def _on_all_nodes(self) -> bool:
        """Whether the pod needs CPUs of all NUMA nodes that were chosen for it: for their memory,
        or to be a pod of several NUMA nodes for the NUMA exclusive policy."""
        required = self.policies.numa_exclusive is NumaExclusive.REQUIRED
        return required or bool(self.counted_memory)

    @cached_property
    def counted_memory(self) -> dict[str, int]:
        """The requested memory and hugepages that count on the NUMA nodes which report them."""
        if not self._options.counts_memory:
            return {}
        requested = memory_of(self._request.requests)
        return {name: amount for name, amount in requested.items() if name in self.numa_resources}

    def left_of(self, name: str, nodes: Collection[int]) -> dict[int, int]:
        """The available amounts of a resource on these NUMA nodes."""
        return {node: self.available.get(node, _NOTHING).get(name, 0) for node in nodes}

    def with_memory(
        self, nodes: Collection[int], cpu_shares: Mapping[int, int] = _NO_CPU
    ) -> Amounts | Refusal:
        """The memory that counts on these NUMA nodes, on which the pod has CPUs;
        `cpu_shares`: see `split`."""
        amounts: Amounts = {}
        for name, requested in self.counted_memory.items():
            shares = self.split(name, requested, self.left_of(name, nodes), cpu_shares)
            if (given := sum(shares.values())) < requested:
                return Refusal(Reason.NUMA_INSUFFICIENT, name, requested, given, tuple(nodes))
            for node, share in shares.items():
                amounts.setdefault(node, {})[name] = share
        return amounts

    def _on_cpus(self, layout: Layout, taken: Taken) -> Allotment | Refusal:
        nodes = layout.node_ids(taken.cpus)
        cpu_shares = {node: (taken.cpus & self._areas[node]).bit_count() for node in nodes}
        amounts = (
            self.with_memory(nodes, cpu_shares)
            if self._node_allocation.counts_memory_of(nodes)
            else {}
        )
        if isinstance(amounts, Refusal):
            return amounts
        return Allotment(taken.cpus, amounts, taken.steps)

    def _where_memory_is(self, layout: Layout, lacking: Refusal) -> Allotment | Refusal:
        """Takes CPUs of the fewest NUMA nodes that have the CPUs and the memory. Among sets of
        equally many NUMA nodes the exclusive policy decides, then the whole cores that a preferred
        FullPCPUs gets, then the strategy by their free CPUs, then their ids.

        `lacking`: why the CPUs that were chosen without regard to memory have too little; it is
            returned if no NUMA nodes have both."""
        request, terms = self._cpu_request, self._terms
        free = {area.id: (area.cpus & self._free).bit_count() for area in layout.nodes}
        holders = [node for node, count in free.items() if count]
        everywhere = self.with_memory(holders)
        if request is None or terms is None or isinstance(everywhere, Refusal):
            return everywhere if isinstance(everywhere, Refusal) else lacking
        sign = -1 if request.strategy is Strategy.MOST_ALLOCATED else 1
        for _, masks in groupby(subsets(holders), key=int.bit_count):
            fitting: list[tuple[tuple[int, int, int, int], Allotment]] = []
            for mask in masks:
                self.steps.take(self._steps_of_node * mask.bit_count())
                count = sum(free[node] for node in ids(mask))
                if count < request.count or isinstance(self.with_memory(ids(mask)), Refusal):
                    continue
                on_each = msgspec.structs.replace(
                    request, strategy=Strategy.DISTRIBUTE_EVENLY, nodes=mask
                )
                taken = accumulator.take(
                    layout,
                    self._free,
                    self._node_allocation.cpu_counts,
                    on_each,
                    self._options.max_ref,
                )
                if isinstance(taken, Shortage):
                    continue
                allotment = self._on_cpus(layout, taken)
                if isinstance(allotment, Allotment):
                    whole_cores = self.whole_cores(mask)
                    rank = terms.exclusivity(allotment.cpus), whole_cores, sign * count, -mask
                    fitting.append((rank, allotment))
            if fitting:
                return max(fitting, key=lambda ranked: ranked[0])[1]
        return lacking

    def _have_enough(self, nodes: Collection[int]) -> bool:
        """Whether the sums of the nodes' amounts show that the pod fits."""
        if self._units is None:
            return False
        for name, missing, unit in self._units:
            for node in nodes:
                missing -= self.available[node].get(name, 0) // unit
            if missing > 0:
                return False
        return True

    @cached_property
    def _steps_of_node(self) -> int:
        """The steps of a trial for each of its NUMA nodes."""
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return 1
        caches = len(layout.caches) ** 2 // len(layout.nodes) if request.prefer_l3 else 0
        return (
            10
            + 2 * layout.forms
            + (len(layout.nodes) + len(layout.sockets) + len(layout.cells) + caches) // 4
        )

    @cached_property
    def _units(self) -> list[tuple[str, int, int]] | None:
        """The name, the requested number of units and the size of a unit of each requested
        resource. None if the sums of the nodes' whole units do not decide whether the pod fits."""
        bind, layout = self.policies.bind, self._options.layout
        if bind is None:
            if self._request.burst_milli:
                return None
        elif (
            layout is None
            or not self.totals.keys() <= self._areas.keys()
            or (bind.required and len(layout.sizes) > 1)
            or self.counted_memory
        ):
            return None
        requested = [
            (name, amount, self.unit(name))
            for name, amount in self._request.requests.items()
            if name in self.numa_resources
        ]
        if any(amount % unit for _, amount, unit in requested):
            return None
        return [(name, amount // unit, unit) for name, amount, unit in requested]

    @cached_property
    def _scores(self) -> MaskScores:
        requests = self._request.requests
        if self.policies.bind:
            requests = {**requests, "cpu": self._options.amplified(requests["cpu"])}
        return MaskScores(
            requests,
            self._recorded,
            self.totals,
            self.policies.strategy,
            self._options.profile.weights or _WEIGHTS,
        )

    def _amounts(self, nodes: Collection[int]) -> Amounts | Refusal:
        """The amounts of each node, for the resources that NUMA nodes have."""
        self.steps.take(5 + 2 * len(nodes) * len(self._request.requests))
        limit = 0 if self.policies.bind else self._request.burst_milli
        amounts: Amounts = {}
        # CPU comes first: memory that counts by NUMA node follows it.
        for name, requested in sorted(
            self._request.requests.items(), key=lambda each: each[0] != "cpu"
        ):
            if name not in self.numa_resources:
                continue
            room = self.left_of(name, nodes)
            if name in self.counted_memory and self._cpu_request is not None:
                giving = [node for node, given in amounts.items() if "cpu" in given]
                if self._node_allocation.counts_memory_of(giving):
                    room = self.left_of(name, giving)
            if limit and name == "cpu":
                chosen = tuple(node for node in nodes if room[node] > 0)
                pool = sum(self.pools.get(node, 0) for node in chosen)
                if pool < limit:
                    return Refusal(Reason.NO_POOL_FITS, name, limit, pool, tuple(sorted(nodes)))
                shares = burst_amounts(requested, chosen, room)
            else:
                cpu_shares = {node: held.get("cpu", 0) for node, held in amounts.items()}
                shares = self.split(name, requested, room, cpu_shares)
            if (given := sum(shares.values())) < requested:
                return Refusal(
                    Reason.NUMA_INSUFFICIENT, name, requested, given, tuple(sorted(nodes))
                )
            for node, share in shares.items():
                amounts.setdefault(node, {})[name] = share
        return amounts

    def _shares(self, amounts: Amounts, nodes: Collection[int]) -> dict[int, int] | Refusal:
        """The number of CPUs that each node gives; empty for a pod that shares."""
        request, areas = self._cpu_request, self._areas
        if request is None:
            return {}
        shares: dict[int, int] = {}
        for node in nodes:
            if node in areas:
                free = (self._free & areas[node]).bit_count()
                share = min(free, amounts.get(node, _NOTHING).get("cpu", 0) // 1000)
                if share:
                    shares[node] = share
        if (given := sum(shares.values())) < request.count:
            requested, where = 1000 * request.count, tuple(sorted(nodes))
            return Refusal(Reason.NOT_ENOUGH_CPUS, "cpu", requested, 1000 * given, where)
        return shares

    def _bound(self, amounts: Amounts, shares: dict[int, int]) -> Allotment | Refusal:
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return Allotment(0, amounts)
        self.steps.take(self._steps_of_node * len(shares))
        taken = accumulator.take_on_nodes(
            layout,
            self._free,
            self._node_allocation.cpu_counts,
            request,
            shares,
            self._options.max_ref,
        )
        if isinstance(taken, Shortage):
            return _rejection(taken)
        return Allotment(taken.cpus, amounts, taken.steps)

    @cached_property
    def _cpu_request(self) -> CpuRequest | None:
        """None for a pod that shares, and on a node that does not report its CPUs."""
        bind = self.policies.bind
        if bind is None or self._options.layout is None:
            return None
        return CpuRequest(
            self._request.requests["cpu"] // 1000,
            bind.policy,
            self.policies.exclusive,
            self.policies.strategy,
            required=bind.required,
            prefer_l3=self._options.profile.prefer_l3,
            downgrade=self.downgrade,
        )

    @cached_property
    def _terms(self) -> Terms | None:
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return None
        return Terms.of(layout, self._node_allocation.cpu_counts, request, self._options.max_ref)

    @cached_property
    def _whole_milli(self) -> dict[int, int]:
        """The milli-CPU of the whole cores that each NUMA node has available, for a pod that
        prefers FullPCPUs; empty for other pods, and if every core has one thread."""
        bind, layout = self.policies.bind, self._options.layout
        if bind is None or bind.required or bind.policy is not BindPolicy.FULL_PCPUS:
            return {}
        if layout is None or layout.threads == 1:
            return {}
        whole, core_milli = layout.expand(layout.whole(self._free)), self._core_milli
        whole_milli = {}
        for node, cpus in self._areas.items():
            left = self.available.get(node, _NOTHING).get("cpu", 0)
            most = min(left, 1000 * (whole & cpus).bit_count())
            whole_milli[node] = most // core_milli * core_milli
        return whole_milli

    @cached_property
    def _core_milli(self) -> int:
        """The milli-CPU of a core."""
        return 1000 * (self._options.layout.threads if self._options.layout else 1)

    def unit(self, name: str) -> int:
        """The unit of a resource: amounts are multiples of it."""
        bind = self.policies.bind
        if name != "cpu" or bind is None:
            return 1
        whole_cores = bind.required and bind.policy is BindPolicy.FULL_PCPUS
        return self._core_milli if whole_cores else 1000

    def suitable(self, free: int, policy: BindPolicy) -> int:
        """How many of these free CPUs a pod can own that requires this bind policy."""
        layout = self._options.layout
        if layout is None:
            return free.bit_count()
        if policy is BindPolicy.FULL_PCPUS:
            free = layout.expand(layout.whole(free))
        else:
            free = layout.touched(free)
        return free.bit_count()

    def trim(self) -> None:
        """Limits the available CPU of each NUMA node for an owner to its free CPUs that suit a
        required policy, and to the bound CPU that its amplified amount covers."""
        layout, bind = self._options.layout, self.policies.bind
        if layout is None or bind is None:
            return
        if bind.required:
            self.steps.take(2 * layout.forms * len(layout.nodes))
        for area in layout.nodes:
            free = self._free & area.cpus
            most = 1000 * (self.suitable(free, bind.policy) if bind.required else free.bit_count())
            room = self.available.get(area.id, {})
            if "cpu" in room:
                paid = min(room["cpu"], self._options.amplified(most))
                room["cpu"] = self._options.unamplified(paid)
            recorded = self._recorded.get(area.id, {})
            if bind.required and "cpu" in recorded:
                recorded["cpu"] = min(recorded["cpu"], most)


def _in_order(
    requested: int,
    room: Mapping[int, int],
    unit: int,
    first: Mapping[int, int] = _NO_CPU,
    *,
    packed: bool,
) -> dict[int, int]:
    """`first`: see `split_packed`."""
    if packed:
        return split_packed(requested, room, unit, first)
    return split_evenly(requested, room, unit)


def _rejection(shortage: Shortage) -> Refusal:
    nodes = () if shortage.node is None else (shortage.node,)
    unmet = shortage.reason is Reason.BIND_POLICY_UNMET
    have = shortage.fitting if unmet else shortage.free
    return Refusal(shortage.reason, "cpu", 1000 * shortage.requested, 1000 * have, nodes)


def burst_amounts(
    request_milli: int, chosen: tuple[int, ...], available: Mapping[int, int]
) -> dict[int, int]:
    """Splits the request over the chosen nodes, which have CPU available. Each gets an amount above
    0, because that binds the pod to it."""
    shares = split_evenly(request_milli, {node: available[node] for node in chosen})
    return {node: max(1, shares.get(node, 0)) for node in chosen}


class MaskScores:
    """Scores sets of NUMA nodes with the request on them: the weighted mean over the resources that
    they have. Fuller sets score higher under MostAllocated, emptier ones under every other
    strategy."""

    def __init__(
        self,
        request: Mapping[str, int],
        available: Mapping[int, Mapping[str, int]],
        total: Mapping[int, Mapping[str, int]],
        strategy: Strategy,
        weights: Mapping[str, int],
    ) -> None:
        self._most = strategy is Strategy.MOST_ALLOCATED
        self._parts = [
            (
                weight,
                request.get(name, 0),
                {
                    1 << node: (amounts[name], amounts[name] - available.get(node, {}).get(name, 0))
                    for node, amounts in total.items()
                    if name in amounts
                },
            )
            for name, weight in weights_that_count(weights, request).items()
        ]

    def of(self, mask: int) -> int:
        score = total = 0
        for weight, used, by_node in self._parts:
            capacity = 0
            left = mask
            while left:
                low = left & -left
                left ^= low
                if (part := by_node.get(low)) is not None:
                    capacity += part[0]
                    used += part[1]
            if capacity > 0:
                total += weight
                score += weight * points(self._most, capacity, used)
        return score // total if total else 0
