"""The policies in force for one pod on one node, all together, or why they can't be."""

from __future__ import annotations

import msgspec

from agent.allocate import precedence
from agent.allocate.ask import Ask, KubeletWords
from agent.allocate.node import NodeFacts
from agent.allocate.precedence import Bind, Chosen, NodePolicies, Source
from agent.allocate.reasons import Rejection
from agent.model.policies import (
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    NumaStrategy,
)


class InForce(msgspec.Struct, frozen=True):
    """`bind` None: the pod shares CPUs. `chosen`: the same policies for people, with their
    sources."""

    bind: Bind | None
    exclusive: ExclusivePolicy
    numa: NumaPolicy
    numa_exclusive: NumaExclusive | None
    strategy: NumaStrategy
    chosen: tuple[Chosen, ...]


def in_force(facts: NodeFacts, ask: Ask) -> InForce | Rejection:
    """Rejects what the architecture lacks, and a pod whose policies conflict with the node's."""
    policies, profile = _heard(facts.policies, ask.kubelet), facts.profile
    numa = precedence.numa_policy(ask.numa, policies, profile)
    if isinstance(numa, Rejection):
        return numa
    bind = precedence.bind(ask.spec, ask.qos, policies, profile, owner=ask.owner)
    asks_cpu = bool(ask.requests.get("cpu"))
    if isinstance(bind, Rejection):
        if asks_cpu:
            return bind
        bind = None, Source.DEFAULT
    bound = bind[0] if asks_cpu else None
    if rejection := precedence.architecture(ask.spec, policies, bound):
        return rejection
    numa_exclusive = precedence.numa_exclusive(ask.numa)
    strategy = precedence.numa_strategy(policies, profile)
    chosen = [Chosen("numa policy", *numa), Chosen("numa strategy", *strategy)]
    if numa_exclusive and numa[0] is not NumaPolicy.NONE:
        chosen.append(Chosen("numa exclusive policy", numa_exclusive, Source.POD))
    if bound:
        chosen.append(Chosen("cpu bind policy", bound.policy, bind[1]))
    elif ask.burst_milli:
        chosen.append(Chosen("cpu bind policy", BindPolicy.CONSTRAINED_BURST, bind[1]))
    if bound and ask.spec.exclusive is not ExclusivePolicy.NONE:
        chosen.append(Chosen("cpu exclusive policy", ask.spec.exclusive, Source.POD))
    return InForce(
        bound,
        ask.spec.exclusive,
        numa[0],
        numa_exclusive,
        strategy[0],
        tuple(chosen),
    )


def _heard(policies: NodePolicies, words: KubeletWords) -> NodePolicies:
    match words:
        case KubeletWords.ALL:
            return policies
        case KubeletWords.NUMA:
            return msgspec.structs.replace(policies, full_pcpus_only=False)
        case KubeletWords.NONE:
            return msgspec.structs.replace(
                policies, full_pcpus_only=False, numa_kubelet=None, distribute_across_numa=False
            )
