"""An offer of CPUs and NUMA nodes of one node to a pod: the checks first, then CPUs, then NUMA
nodes.

Checks come in Koordinator's order (pkg/scheduler/plugins/nodenumaresource/plugin.go, PreFilter and
Filter): policies, whole CPUs, amplified CPU, SMT alignment. Without a NUMA policy an owner's CPUs
are taken from the whole machine. With one, hints name the NUMA nodes that could hold CPU, memory
and other resources, their merge chooses the nodes, and the amounts are split over these. Nothing is
offered that could not be committed at once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agent.allocate import alignment, burst
from agent.allocate.alignment import Companion
from agent.allocate.node_allocation import NodeAllocation
from agent.allocate.offer import Declined, Offer, Price, Why
from agent.allocate.pod_allocation import PodAllocation
from agent.allocate.policies_in_force import InForce, in_force
from agent.allocate.reasons import Reason, Rejection
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.topology_options import TopologyOptions
from agent.allocate.trials import Allotment, Trials
from agent.model.cpuset import CpuSet
from agent.model.policies import BindPolicy, ExclusivePolicy, NumaPolicy


def offer(
    facts: TopologyOptions,
    account: NodeAllocation,
    ask: ResourceRequest,
    companion: Companion | None = None,
    trying: Callable[[TopologyOptions, NodeAllocation, ResourceRequest, InForce], Trials] = Trials,
) -> Offer | Declined:
    """The place for a pod that holds nothing on the node yet. `companion` takes part where a NUMA
    policy is in force. `trying`: how NUMA nodes are tried."""
    if not ask.requests and not ask.burst_milli and companion is None:
        return Offer(PodAllocation(ask.uid, ask.title), Price(0, 0, 0), Why())
    policies = in_force(facts.policies, facts.profile, ask)
    if isinstance(policies, Rejection):
        return Declined(ask.uid, ask.title, (policies,), Why())
    why = Why(policies.chosen)
    if rejection := _unfit(facts, account, ask, policies):
        return Declined(ask.uid, ask.title, (rejection,), why)
    held = _held_by_cpu(ask)
    trials = trying(facts, account, held, policies)
    if policies.numa is NumaPolicy.NONE:
        found = _unaligned(held, policies, trials)
        if isinstance(found, Rejection):
            return Declined(ask.uid, ask.title, (found,), why)
    else:
        aligned = alignment.align(account, held, policies, trials, companion)
        why = Why(policies.chosen, aligned.candidates, aligned.merged)
        if isinstance(aligned.found, tuple):
            return Declined(ask.uid, ask.title, aligned.found, why)
        found = aligned.found
    claim = PodAllocation(
        ask.uid,
        ask.title,
        CpuSet.from_int(found.cpus),
        policies.exclusive if found.cpus else ExclusivePolicy.NONE,
        found.amounts,
        ask.requests.get("cpu", 0),
    )
    why = Why(policies.chosen, why.candidates, why.merged, found.steps)
    return Offer(claim, trials.price(found), why)


def gone(facts: TopologyOptions, account: NodeAllocation, claim: PodAllocation) -> str:
    """What an allocation needs and the node does not have any more; empty if it has all."""
    if missing := claim.cpus - CpuSet.from_int(account.free_cpus()):
        return f"CPUs {missing} are not free any more"
    if facts.cpu_ratio > 1 and facts.cpu_milli is not None:
        paid, left = account.paid(claim), facts.cpu_milli - account.cpu_milli
        if paid > max(0, left):
            return f"the node has {left} of {paid} amplified CPU left"
    available = account.available()
    counted = {name for amounts in available.values() for name in amounts}
    for node, amounts in claim.amounts.items():
        for name, asked in amounts.items():
            if name not in counted:
                continue
            amount = facts.amplified(asked) if name == "cpu" and claim.cpus else asked
            left = available.get(node, {}).get(name, 0)
            if amount > left:
                return f"NUMA node {node} has {left} of {amount} {name} left"
    return ""


def _unfit(
    facts: TopologyOptions, account: NodeAllocation, ask: ResourceRequest, policies: InForce
) -> Rejection | None:
    cpu_milli = ask.requests.get("cpu", 0)
    bind = policies.bind
    if bind and cpu_milli % 1000:
        return Rejection(Reason.CPU_NOT_INTEGER, "cpu", cpu_milli)
    if facts.cpu_ratio > 1 and facts.cpu_milli is not None:
        asked = facts.amplified(cpu_milli) if bind else cpu_milli
        left = facts.cpu_milli - account.cpu_milli
        if asked > max(0, left):
            return Rejection(Reason.AMPLIFIED_CPU, "cpu", asked, left)
    if bind is None:
        return None
    if facts.layout is None:
        return Rejection(Reason.NO_CPU_TOPOLOGY)
    if bind.required and bind.policy is BindPolicy.FULL_PCPUS:
        threads = facts.layout.threads
        if cpu_milli // 1000 % threads:
            return Rejection(Reason.SMT_ALIGNMENT, "cpu", cpu_milli, detail=f"{threads} threads")
    return None


def _held_by_cpu(ask: ResourceRequest) -> ResourceRequest:
    """A pod that bursts is held to NUMA nodes by the CPU it has there: it asks for some."""
    if not ask.burst_milli or ask.requests.get("cpu"):
        return ask
    return msgspec.structs.replace(ask, requests={**ask.requests, "cpu": 1})


def _unaligned(ask: ResourceRequest, policies: InForce, trials: Trials) -> Allotment | Rejection:
    if policies.bind or not ask.burst_milli:
        return trials.anywhere()
    left = trials.pools
    if trials.numa_knows("cpu"):
        left = {node: trials.available.get(node, {}).get("cpu", 0) for node in trials.pools}
    request = ask.requests["cpu"]
    nodes = burst.nodes(ask.burst_milli, request, trials.pools, left, policies.strategy)
    if isinstance(nodes, Rejection):
        return nodes
    shares = burst.amounts(request, nodes, left)
    return Allotment(0, {node: {"cpu": share} for node, share in shares.items()})
