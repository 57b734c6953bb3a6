"""How good a node is for a pod that fits on it: 0 to 100, to compare nodes by.

By resources: how much of them is used once the pod is there, of the NUMA nodes that it is held to
or, if it is held to none, of the whole node. By NUMA nodes: how many of them are used, of all; for
pods that are known to use some. Both as the proposals say (fine-grained CPU orchestration, Score
phase; NUMA topology scheduling), where of several NUMA nodes the worst counts.

Koordinator's rules differ (pkg/scheduler/plugins/nodenumaresource/scoring.go, Score and
calculateAllocatableAndRequested): the NUMA nodes together; for a pod that binds CPUs the CPUs that
pods own anywhere on the machine stand for the CPU that is used; under BestEffort, and
SingleNUMANode on a machine of one NUMA node, the whole node is scored; and what NUMA nodes have
left is what was not given by amounts.
"""

from __future__ import annotations

import msgspec

from agent.allocate.account import Account
from agent.allocate.ask import ResourceRequest
from agent.allocate.claims import PodAllocation
from agent.allocate.node import NodeFacts
from agent.allocate.policies_in_force import PROFILES, Profile, in_force
from agent.allocate.reasons import Rejection
from agent.allocate.worth import counted, spread, worth
from agent.model.policies import NumaPolicy, NumaStrategy
from agent.model.schedulerargs import Measure, Rules, SchedulerArgs, ScoringType


class Whole(msgspec.Struct, frozen=True):
    """The whole node, by resource: what it calls allocatable (amplified, `cpu` in milli-CPU), and
    what all its pods request, before CPU is amplified."""

    allocatable: dict[str, int]
    requested: dict[str, int] = {}


class Scene(msgspec.Struct, frozen=True):
    """What a pod would find: `account` does not count it yet."""

    facts: NodeFacts
    account: Account
    whole: Whole


def profile(args: SchedulerArgs) -> Profile:
    """What offers are made by under these settings."""
    base = PROFILES["koordinator" if args.rules is Rules.KOORDINATOR else "proposal"]
    return msgspec.structs.replace(
        base,
        numa_policy=args.numa_policy,
        strategy=_strategy(args.node.type),
        bind=args.bind,
        label_first=args.rules is Rules.KOORDINATOR,
        scoring=_strategy(args.numa.type),
        weights=args.numa.weights,
    )


def score(args: SchedulerArgs, scene: Scene, ask: ResourceRequest, claim: PodAllocation) -> int:
    """Of the node with `claim` on it, which was offered for `ask`."""
    if args.rules is Rules.KOORDINATOR:
        return _as_koordinator(args, scene, ask, claim)
    points = []
    if Measure.RESOURCES in args.measures:
        points.append(_by_resources(args, scene, ask, claim))
    known = scene.account.node_ids
    used = _nodes(scene, claim) & known
    if used and Measure.NUMA_NODES in args.measures:
        strategy = _labelled(scene.facts, args.node.type)
        busy = len(used | (scene.account.busy_nodes() & known))
        points.append(by_count(strategy, busy, len(known)))
    return sum(points) // len(points) if points else 0


def by_count(strategy: ScoringType, used: int, total: int) -> int:
    """Of a machine with so many NUMA nodes in use. Balanced are all or none."""
    if strategy is ScoringType.BALANCED_ALLOCATION:
        return spread({1.0: used, 0.0: total - used})
    return worth(strategy, {"nodes": 1}, {"nodes": total}, {"nodes": used})


def _strategy(type_: ScoringType) -> NumaStrategy:
    most = type_ is ScoringType.MOST_ALLOCATED
    return NumaStrategy.MOST_ALLOCATED if most else NumaStrategy.LEAST_ALLOCATED


def _by_resources(
    args: SchedulerArgs, scene: Scene, ask: ResourceRequest, claim: PodAllocation
) -> int:
    if not claim.amounts:
        return _of_whole(args, scene, ask, claim)
    totals, weights = scene.account.totals(), counted(args.node.weights, ask.requests)
    return min(
        worth(
            args.node.type,
            weights,
            totals.get(node, {}),
            {
                name: scene.account.used(node, name)
                + _paid(scene.facts, claim, name, amounts.get(name, 0))
                for name in weights
            },
        )
        for node, amounts in claim.amounts.items()
    )


def _of_whole(args: SchedulerArgs, scene: Scene, ask: ResourceRequest, claim: PodAllocation) -> int:
    """Of the whole node, the CPUs that pods own amplified."""
    facts = scene.facts
    owned = 1000 * scene.account.holdings.full(1).bit_count()
    used = dict(scene.whole.requested)
    used["cpu"] = used.get("cpu", 0) - owned + facts.amplified(owned)
    return _with_pod(args, facts, ask, claim, scene.whole.allocatable, used)


def _as_koordinator(
    args: SchedulerArgs, scene: Scene, ask: ResourceRequest, claim: PodAllocation
) -> int:
    facts, account = scene.facts, scene.account
    policy = _numa_policy(facts, ask)
    if policy is NumaPolicy.NONE:
        return _of_whole(args, scene, ask, claim)
    totals = account.totals()
    capacity, used = scene.whole.allocatable, dict(scene.whole.requested)
    single = policy is NumaPolicy.SINGLE_NUMA_NODE and len(totals) > 1
    if claim.amounts and (single or policy is NumaPolicy.RESTRICTED):
        capacity, used = {}, {}
        for node in claim.amounts:
            for name, total in totals.get(node, {}).items():
                capacity[name] = capacity.get(name, 0) + total
                used[name] = used.get(name, 0) + account.recorded_used(node, name)
    if claim.cpus:
        used["cpu"] = facts.amplified(1000 * account.holdings.full(1).bit_count())
    return _with_pod(args, facts, ask, claim, capacity, used)


def _with_pod(
    args: SchedulerArgs,
    facts: NodeFacts,
    ask: ResourceRequest,
    claim: PodAllocation,
    capacity: dict[str, int],
    used: dict[str, int],
) -> int:
    for name, asked in ask.requests.items():
        used[name] = used.get(name, 0) + _paid(facts, claim, name, asked)
    return worth(args.node.type, counted(args.node.weights, ask.requests), capacity, used)


def _numa_policy(facts: NodeFacts, ask: ResourceRequest) -> NumaPolicy:
    found = in_force(facts.policies, facts.profile, ask)
    return NumaPolicy.NONE if isinstance(found, Rejection) else found.numa


def _paid(facts: NodeFacts, claim: PodAllocation, name: str, amount: int) -> int:
    return facts.amplified(amount) if name == "cpu" and claim.cpus else amount


def _nodes(scene: Scene, claim: PodAllocation) -> set[int]:
    layout = scene.facts.layout
    own = layout.node_ids(claim.cpus.mask) if layout and claim.cpus else ()
    return {*own, *claim.amounts}


def _labelled(facts: NodeFacts, configured: ScoringType) -> ScoringType:
    """The strategy that the node's label names, if it is one of the two that count NUMA nodes."""
    label = facts.policies.strategy_label
    if label is NumaStrategy.MOST_ALLOCATED:
        return ScoringType.MOST_ALLOCATED
    if label is NumaStrategy.LEAST_ALLOCATED:
        return ScoringType.LEAST_ALLOCATED
    return configured
