"""An offer of CPUs and NUMA nodes of one node to a pod, or the reasons why there is none.

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

A second hint provider, the allocator of devices, takes part in the merge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

import msgspec

from agent.allocate.node_allocation import (
    NodeAllocation,
    PodAllocation,
    TopologyOptions,
    memory_of,
)
from agent.allocate.numa import koordinator_merge
from agent.allocate.numa.hint import MergeCause, Merged, Provider, TopologyHint, ids, resource_hints
from agent.allocate.packing import AllocationStep, CpuExclusivity
from agent.allocate.policies_in_force import InForce, PolicyInForce, in_force
from agent.allocate.refusal import Reason, Refusal, combined
from agent.allocate.score import HIGHEST
from agent.allocate.steps import UNCOUNTED, Steps
from agent.allocate.trials import (
    Allotment,
    Price,
    Trials,
    burst_amounts,
)
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import (
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    Strategy,
)
from agent.model.pod.annotations import SharedPool
from agent.model.pod.resource_request import ResourceRequest


class NumaCandidate(msgspec.Struct, frozen=True):
    """NUMA nodes that were tried: what the pod's exclusive policy gets there, the number of whole
    cores that a preferred FullPCPUs gets, and their score (0-100, by the strategy), or what they
    lack."""

    nodes: tuple[int, ...]
    exclusivity: CpuExclusivity | None = None
    whole_cores: int | None = None
    score: int | None = None
    refusal: Refusal | None = None


class Why(msgspec.Struct, frozen=True):
    """`policies`: those in force, with their sources. `candidates`: in the order in which they were
    tried. `merged`: the result of the merge of the hints of all resources. `steps`: the steps of
    the accumulator that gave CPUs."""

    policies: tuple[PolicyInForce, ...] = ()
    candidates: tuple[NumaCandidate, ...] = ()
    merged: Merged | None = None
    steps: tuple[AllocationStep, ...] = ()


class Offer(msgspec.Struct, frozen=True):
    """`allocation`: the allocation to commit and to write. Without CPUs and amounts the pod is not
    bound. `pools`: the CPU shared pools on which a pod without CPUs of its own runs; none if it is
    bound to no NUMA node."""

    allocation: PodAllocation
    price: Price
    why: Why
    pools: tuple[SharedPool, ...] = ()


class HintProvider(Protocol):
    """A hint provider for resources that the NUMA nodes do not count."""

    def hints(self, nodes: Collection[int], *, narrowest: bool = False) -> Provider:
        """The sets of NUMA nodes that the resources could come from; `narrowest`: only the sets
        with the fewest nodes, which are the preferred ones."""

    def fits(self, mask: int | None) -> bool:
        """Whether the chosen NUMA nodes have the resources; None: whether any nodes have them."""


def offer(
    options: TopologyOptions,
    account: NodeAllocation,
    request: ResourceRequest,
    provider: HintProvider | None = None,
    steps: Steps = UNCOUNTED,
) -> Offer | Refusal:
    """An offer for a pod that holds nothing on the node. `provider` takes part under a NUMA policy.
    Raises TooComplexError."""
    if not request.requests and not request.burst_milli and provider is None:
        return Offer(PodAllocation(request.uid, request.title), Price(0, 0, 0), Why())
    policies = in_force(options.policies, options.profile, request)
    if isinstance(policies, Refusal):
        return policies
    why = Why(policies.chosen)
    if refusal := _early_refusal(options, account, request, policies):
        return refusal
    held = _with_cpu(request)
    trials = Trials(options, account, held, policies, steps)
    trials.with_devices = provider is not None
    if policies.numa is NumaPolicy.NONE:
        found = _unaligned(held, policies, trials)
        if isinstance(found, Refusal):
            return found
    else:
        aligned = _align(account, held, policies, trials, provider)
        if isinstance(aligned, Refusal):
            return aligned
        why = Why(policies.chosen, aligned.candidates, aligned.merged)
        found = aligned.allotment
    allocation = PodAllocation(
        request.uid,
        request.title,
        CpuSet.from_int(found.cpus),
        policies.exclusive if found.cpus else ExclusivePolicy.NONE,
        found.amounts,
        request.requests.get("cpu", 0),
        memory_of(request.requests) if found.cpus else {},
    )
    why = Why(policies.chosen, why.candidates, why.merged, found.steps)
    return Offer(allocation, trials.price(found), why, _pools(options, allocation))


def _pools(options: TopologyOptions, allocation: PodAllocation) -> tuple[SharedPool, ...]:
    amounts = allocation.amounts
    if allocation.cpus or not any("cpu" in of_node for of_node in amounts.values()):
        return ()
    socket_of = options.layout.socket_of if options.layout else lambda _: 0
    return tuple(SharedPool(each, socket_of(each)) for each in sorted(amounts))


def unavailable(
    options: TopologyOptions,
    account: NodeAllocation,
    request: ResourceRequest,
    allocation: PodAllocation,
) -> str:
    """What an offered allocation needs and the node no longer has; "" if the node has all of it."""
    if outgrown := _outgrown(options, account, request, allocation):
        return outgrown
    if missing := allocation.cpus - CpuSet.from_int(account.free_cpus()):
        return f"CPUs {missing} are no longer free"
    if options.cpu_ratio > 1 and options.cpu_milli is not None:
        paid, left = account.paid(allocation), options.cpu_milli - account.cpu_milli
        if paid > max(0, left):
            return f"the node has {left} of {paid} amplified CPU left"
    available = account.available()
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
    account: NodeAllocation,
    request: ResourceRequest,
    allocation: PodAllocation,
) -> str:
    """Why the shared pools are too small for the limit of a pod that bursts; "" if they are not."""
    limit = request.burst_milli
    if not limit or allocation.cpus or not allocation.amounts:
        return ""
    pools = account.shared_pools()
    pool = sum(pools.get(node, 0) for node in allocation.amounts)
    if pool >= limit:
        return ""
    nodes = ", ".join(map(str, sorted(allocation.amounts)))
    return f"the pools of NUMA nodes {nodes} have {pool} of {limit} milli-CPU left"


def _early_refusal(
    options: TopologyOptions, account: NodeAllocation, request: ResourceRequest, policies: InForce
) -> Refusal | None:
    """Rejects a pod that fits on no NUMA nodes, before any trial."""
    cpu_milli = request.requests.get("cpu", 0)
    bind = policies.bind
    if bind and cpu_milli % 1000:
        return Refusal(Reason.CPU_NOT_INTEGER, "cpu", cpu_milli)
    if options.cpu_ratio > 1 and options.cpu_milli is not None:
        requested = options.amplified(cpu_milli) if bind else cpu_milli
        left = options.cpu_milli - account.cpu_milli
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
    if trials.numa_nodes_have("cpu"):
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
    """The NUMA nodes to which a pod that bursts is bound. `pools`: the milli-CPU of the shared
    pools. `available`: the milli-CPU that no pod has; nodes without any are left out. `memory`: the
    amounts that count on the nodes, by resource; `free_memory`: the free amounts, by
    resource and node. Among single nodes MostAllocated takes the smallest pool that fits, every
    other strategy the node with the most available CPU; of equal nodes the one with the lower id.
    """
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


class _Aligned(msgspec.Struct, frozen=True):
    """An allotment under a NUMA policy, and how it was found."""

    allotment: Allotment
    candidates: tuple[NumaCandidate, ...] = ()
    merged: Merged | None = None


def _align(
    account: NodeAllocation,
    request: ResourceRequest,
    policies: InForce,
    trials: Trials,
    provider: HintProvider | None = None,
) -> _Aligned | Refusal:
    """For a pod under a NUMA policy: hints, their merge, and a trial of the merged NUMA nodes."""
    wanted = {
        name: amount for name, amount in request.requests.items() if trials.numa_nodes_have(name)
    }
    if not trials.totals:
        return Refusal(Reason.NO_NUMA_RESOURCES)
    if "cpu" not in wanted and (policies.bind or request.burst_milli):
        return Refusal(Reason.NO_NUMA_RESOURCES, "cpu", request.requests["cpu"])
    if not wanted and provider is None:
        return _Aligned(Allotment(0, {}))
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
            account.numa_status(),
            by_score=True,
            steps=trials.steps,
        )

    if provider is None:
        merged = merge(None, narrowest=True)
        if policies.numa_exclusive is NumaExclusive.REQUIRED and not merged.preferred:
            # Other providers exclude all of its narrow sets.
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
    return _Aligned(allotment, candidates, merged)


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
