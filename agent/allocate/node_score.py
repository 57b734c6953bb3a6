"""The score of a node for a pod that fits on it, 0 to 100.

By resources: the utilization of the NUMA nodes that the pod is bound to, with the pod on them, or
of the whole node if it is bound to none. By NUMA nodes: the share of NUMA nodes in use, for pods
that are known to use some. Both follow the proposals (fine-grained CPU orchestration, Score phase;
NUMA topology scheduling), in which the worst of several NUMA nodes counts.

Koordinator's rules differ (pkg/scheduler/plugins/nodenumaresource/scoring.go, Score and
calculateAllocatableAndRequested): it scores the NUMA nodes together; for a pod that binds CPUs, the
used CPU is the CPUs that pods own anywhere on the machine; under BestEffort, and under
SingleNUMANode on a machine with one NUMA node, it scores the whole node; and it counts only
allocated amounts as used on NUMA nodes."""

from __future__ import annotations

import functools

import msgspec

from agent.allocate.node_allocation import Amounts, NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.policies_in_force import PROFILES, Profile, in_force
from agent.allocate.refusal import Refusal
from agent.allocate.score import HIGHEST, spread, utilization_score, weights_that_count
from agent.model.cpu.policies import NODE_STRATEGIES, NUMA_STRATEGIES, NumaPolicy, Strategy
from agent.model.pod.resource_request import ResourceRequest
from agent.model.settings.plugin_args import Measure, Rules, SchedulerArgs


class WholeNode(msgspec.Struct, frozen=True):
    """The whole node, by resource: its allocatable amounts (amplified, `cpu` in milli-CPU), and the
    requests of all its pods, before CPU is amplified."""

    allocatable: dict[str, int]
    requested: dict[str, int] = {}


class ScoreInput(msgspec.Struct, frozen=True):
    """The state of the node, without the pod."""

    options: TopologyOptions
    node_allocation: NodeAllocation
    whole: WholeNode


def profile(args: SchedulerArgs) -> Profile:
    """The profile for offers under these settings."""
    base = PROFILES["koordinator" if args.rules is Rules.KOORDINATOR else "proposal"]
    return msgspec.structs.replace(
        base,
        numa_policy=args.numa_policy,
        strategy=_of_numa_nodes(args.node.type),
        bind=args.bind,
        prefer_l3=args.prefer_l3,
        packed=base.packed
        if args.distribute_across_numa is None
        else not args.distribute_across_numa,
        label_first=args.rules is Rules.KOORDINATOR,
        scoring=_of_numa_nodes(args.numa.type),
        weights=args.numa.weights,
        strict_full_pcpus_only=args.strict_full_pcpus_only,
    )


def score(
    args: SchedulerArgs, state: ScoreInput, request: ResourceRequest, allocation: PodAllocation
) -> int:
    """The score of the node with `allocation`, which was offered for `request`, allocated on it."""
    if args.rules is Rules.KOORDINATOR:
        return _as_koordinator(args, state, request, allocation)
    points = []
    if Measure.RESOURCES in args.measures:
        points.append(_by_resources(args, state, request, allocation))
    node_ids = state.node_allocation.options.node_ids
    used = _nodes(state, allocation) & node_ids
    if used and Measure.NUMA_NODES in args.measures:
        strategy = _labelled(state.options, args.node.type)
        busy = len(used | (state.node_allocation.busy_nodes() & node_ids))
        points.append(by_count(strategy, busy, len(node_ids)))
    return sum(points) // len(points) if points else 0


def bound(args: SchedulerArgs, state: ScoreInput, request: ResourceRequest) -> int:
    """An upper bound of `score` on the node over all allocations for the request. It costs less
    time than an offer, and nodes whose bound is too low need no offer."""
    kind, node_allocation = args.node.type, state.node_allocation
    if args.rules is Rules.KOORDINATOR or kind not in (
        Strategy.MOST_ALLOCATED,
        Strategy.LEAST_ALLOCATED,
    ):
        return HIGHEST
    weights = weights_that_count(args.node.weights, request.requests)
    resources = numa = 0
    if Measure.RESOURCES in args.measures:
        resources = _whole_bound(state, request, kind, weights)
        numa = _numa_bound(state, request, kind, weights)
    points = [max(resources, numa)] if Measure.RESOURCES in args.measures else []
    if Measure.NUMA_NODES in args.measures and node_allocation.options.node_ids:
        strategy = _labelled(state.options, args.node.type)
        busy = len(node_allocation.busy_nodes() & node_allocation.options.node_ids)
        points.append(_count_bound(strategy, busy, len(node_allocation.options.node_ids)))
    # A pod that is bound to no NUMA node has no points for them.
    return max(resources, sum(points) // len(points) if points else 0)


def _most(state: ScoreInput, request: ResourceRequest, kind: Strategy) -> dict[str, int]:
    """The amounts on one NUMA node with which the score is highest: all of the pod's for
    MostAllocated, none for LeastAllocated."""
    if kind is not Strategy.MOST_ALLOCATED:
        return {}
    cpu_milli = 1000 * -(-max(request.requests.get("cpu", 0), 1) // 1000)
    return {**request.requests, "cpu": state.options.amplified(cpu_milli)}


def _whole_bound(
    state: ScoreInput, request: ResourceRequest, kind: Strategy, weights: dict[str, int]
) -> int:
    used = _used_of_whole(state)
    most = _most(state, request, kind) or request.requests
    for name, amount in most.items():
        used[name] = used.get(name, 0) + amount
    return utilization_score(kind, weights, state.whole.allocatable, used)


def _numa_bound(
    state: ScoreInput, request: ResourceRequest, kind: Strategy, weights: dict[str, int]
) -> int:
    """An upper bound of the score by NUMA nodes, which is that of the worst NUMA node of the pod. A
    pod on one NUMA node gets at most the best score of the nodes with room for all of it. A pod on
    several gets at most the second-best score of all nodes."""
    node_allocation, most = state.node_allocation, _most(state, request, kind)
    totals, left = node_allocation.options.totals, node_allocation.available()
    scores, single = [], 0
    for node, total in totals.items():
        score = utilization_score(
            kind,
            weights,
            total,
            {name: node_allocation.used(node, name) + most.get(name, 0) for name in weights},
        )
        scores.append(score)
        room = left.get(node, {})
        if score > single and all(
            room.get(name, 0) >= amount
            for name, amount in request.requests.items()
            if name in total
        ):
            single = score
    scores.sort()
    return max(single, scores[-2] if len(scores) > 1 else 0)


@functools.lru_cache(maxsize=1024)
def _count_bound(strategy: Strategy, busy: int, total: int) -> int:
    return max(by_count(strategy, used, total) for used in range(max(1, busy), total + 1))


def by_count(strategy: Strategy, used: int, total: int) -> int:
    """The score of a machine on which `used` of `total` NUMA nodes are in use. BalancedAllocation
    is highest if all or none are in use."""
    if strategy is Strategy.BALANCED_ALLOCATION:
        return spread({1.0: used, 0.0: total - used})
    return utilization_score(strategy, {"nodes": 1}, {"nodes": total}, {"nodes": used})


def _of_numa_nodes(strategy: Strategy) -> Strategy:
    """BalancedAllocation does not order NUMA nodes."""
    return strategy if strategy in NUMA_STRATEGIES else Strategy.LEAST_ALLOCATED


def _by_resources(
    args: SchedulerArgs, state: ScoreInput, request: ResourceRequest, allocation: PodAllocation
) -> int:
    if not allocation.amounts:
        return _of_whole(args, state, request, allocation)
    totals = state.node_allocation.options.totals
    weights = weights_that_count(args.node.weights, request.requests)
    return min(
        utilization_score(
            args.node.type,
            weights,
            totals.get(node, {}),
            {
                name: state.node_allocation.used(node, name)
                + _paid(state.options, allocation, name, amounts.get(name, 0))
                for name in weights
            },
        )
        for node, amounts in _on_nodes(state, allocation).items()
    )


def _on_nodes(state: ScoreInput, allocation: PodAllocation) -> Amounts:
    """The amounts of the pod by NUMA node, with the CPUs that it owns."""
    areas = state.options.layout.nodes if state.options.layout else ()
    own = {area.id: 1000 * (area.cpus & allocation.cpus.mask).bit_count() for area in areas}
    return {
        node: {**amounts, "cpu": max(amounts.get("cpu", 0), own.get(node, 0))}
        for node, amounts in allocation.amounts.items()
    }


def _of_whole(
    args: SchedulerArgs, state: ScoreInput, request: ResourceRequest, allocation: PodAllocation
) -> int:
    """The score of the whole node, with the CPUs that pods own amplified."""
    used = _used_of_whole(state)
    return _with_pod(args, state.options, request, allocation, state.whole.allocatable, used)


def _used_of_whole(state: ScoreInput) -> dict[str, int]:
    """The requests of the node's pods, with the CPUs that pods own amplified."""
    owned_milli = 1000 * state.node_allocation.cpu_counts.full(1).bit_count()
    used = dict(state.whole.requested)
    used["cpu"] = used.get("cpu", 0) - owned_milli + state.options.amplified(owned_milli)
    return used


def _as_koordinator(
    args: SchedulerArgs, state: ScoreInput, request: ResourceRequest, allocation: PodAllocation
) -> int:
    options, node_allocation = state.options, state.node_allocation
    policy = _numa_policy(options, request)
    if policy is NumaPolicy.NONE:
        return _of_whole(args, state, request, allocation)
    totals = node_allocation.options.totals
    capacity, used = state.whole.allocatable, dict(state.whole.requested)
    single = policy is NumaPolicy.SINGLE_NUMA_NODE and len(totals) > 1
    if allocation.amounts and (single or policy is NumaPolicy.RESTRICTED):
        capacity, used = {}, {}
        for node in allocation.amounts:
            for name, total in totals.get(node, {}).items():
                capacity[name] = capacity.get(name, 0) + total
                used[name] = used.get(name, 0) + node_allocation.recorded_used(node, name)
    if allocation.cpus:
        used["cpu"] = options.amplified(1000 * node_allocation.cpu_counts.full(1).bit_count())
    return _with_pod(args, options, request, allocation, capacity, used)


def _with_pod(
    args: SchedulerArgs,
    options: TopologyOptions,
    request: ResourceRequest,
    allocation: PodAllocation,
    capacity: dict[str, int],
    used: dict[str, int],
) -> int:
    for name, requested in request.requests.items():
        used[name] = used.get(name, 0) + _paid(options, allocation, name, requested)
    return utilization_score(
        args.node.type, weights_that_count(args.node.weights, request.requests), capacity, used
    )


def _numa_policy(options: TopologyOptions, request: ResourceRequest) -> NumaPolicy:
    policies = in_force(options.policies, options.profile, request)
    return NumaPolicy.NONE if isinstance(policies, Refusal) else policies.numa


def _paid(options: TopologyOptions, allocation: PodAllocation, name: str, amount: int) -> int:
    return options.amplified(amount) if name == "cpu" and allocation.cpus else amount


def _nodes(state: ScoreInput, allocation: PodAllocation) -> set[int]:
    layout = state.options.layout
    own = layout.node_ids(allocation.cpus.mask) if layout and allocation.cpus else ()
    return {*own, *allocation.amounts}


def _labelled(options: TopologyOptions, configured: Strategy) -> Strategy:
    """The strategy that the node's label names, if it is one of the two that count NUMA nodes."""
    label = options.policies.strategy_label
    return label if label in NODE_STRATEGIES else configured
