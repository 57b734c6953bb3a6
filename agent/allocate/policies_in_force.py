"""The policies in force for a pod on a node, with their sources.

NUMA policy: the kubelet's if it is not None (the kubelet rejects pods that break it), else the
node's label, else the configured one (numa-topology-scheduling proposal); `label_first` is
Koordinator's order. A pod's own policy counts if the node has none, and is rejected if the node has
another. Bind policy: the one that the node forces on every pod (the kubelet's full-pcpus-only, else
the label), else the one that the pod requires or prefers if it owns CPUs (Koordinator:
getCPUBindPolicy in pkg/scheduler/plugins/nodenumaresource/util.go). On a node that forces whole
cores, Koordinator gives them to every pod with a whole number of CPUs; the proposal only to
Guaranteed, LSE and LSR pods, and pods that prefer SpreadByPCPUs avoid the node
(`strict_full_pcpus_only`). NUMA strategy: the node's label, else the kubelet's
distribute-cpus-across-numa, else the configured one (fine-grained CPU orchestration proposal, NUMA
allocate strategy). Under a NUMA policy it decides only between NUMA nodes that the policy leaves
equal."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import (
    BIND_LABEL,
    BIND_VALUES,
    NUMA_LABEL,
    NUMA_LABEL_OF_PROPOSAL,
    NUMA_VALUES,
    STRATEGY_LABEL,
    STRATEGY_VALUES,
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    Strategy,
    kubelet_numa_policy,
)
from agent.model.nrt.node_annotations import label_faults
from agent.model.pod.annotations import (
    NumaSpec,
    ResourceSpec,
)
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import FollowedPolicies, ResourceRequest

ARCHITECTURE_LABEL = "kubernetes.io/arch"


class PolicySource(enum.StrEnum):
    """Who set a policy."""

    POD = "pod"
    NODE_LABEL = "node label"
    KUBELET = "kubelet"
    DEFAULT = "default"


class Profile(msgspec.Struct, frozen=True):
    """The defaults if neither pod nor node has a policy, and the order of the sources.
    `prefer_l3`: among equal CPUs, prefers those that share an L3. `packed`: amounts fill one NUMA
    node after the other instead of being split evenly; None: under MostAllocated. `strategy` orders
    NUMA nodes; `scoring` does so under a NUMA policy, by default `strategy`. `weights` (by
    resource): of the scores of NUMA nodes; the default is equal weights of CPU and memory.
    `strict_full_pcpus_only`: the proposal's rules for nodes that allocate only whole cores,
    otherwise Koordinator's."""

    numa_policy: NumaPolicy
    strategy: Strategy
    bind: BindPolicy = BindPolicy.FULL_PCPUS
    label_first: bool = False
    prefer_l3: bool = False
    packed: bool | None = False
    scoring: Strategy | None = None
    weights: dict[str, int] = {}
    strict_full_pcpus_only: bool = False


PROFILES: Final[Mapping[str, Profile]] = {
    "koordinator": Profile(NumaPolicy.NONE, Strategy.LEAST_ALLOCATED),
    "proposal": Profile(
        NumaPolicy.BEST_EFFORT, Strategy.MOST_ALLOCATED, packed=None, strict_full_pcpus_only=True
    ),
}
"""The defaults of Koordinator's code, and those of the proposals."""


class NodePolicies(msgspec.Struct, frozen=True):
    """The policies of a node's labels and kubelet; None: there is none. `arm`: the architecture is
    ARM; cores with one thread alone do not count."""

    numa_label: NumaPolicy | None = None
    numa_kubelet: NumaPolicy | None = None
    bind_label: BindPolicy | None = None
    strategy_label: Strategy | None = None
    full_pcpus_only: bool = False
    distribute_across_numa: bool = False
    arm: bool = False


class PolicyKind(enum.StrEnum):
    """The names of policies, for people."""

    NUMA = "numa policy"
    NUMA_STRATEGY = "numa strategy"
    NUMA_EXCLUSIVE = "numa exclusive policy"
    CPU_BIND = "cpu bind policy"
    CPU_EXCLUSIVE = "cpu exclusive policy"


class PolicyInForce(msgspec.Struct, frozen=True):
    """A policy with its value and the source of the value."""

    policy: PolicyKind
    value: str
    source: PolicySource


class Bind(msgspec.Struct, frozen=True):
    """The bind policy of a pod to which CPUs are bound. `required`: the CPUs must follow the
    policy. `avoided`: the pod prefers another policy, so the scheduler chooses this node only if no
    other one fits."""

    policy: BindPolicy
    required: bool
    avoided: bool = False


def node_policies(
    labels: Mapping[str, str],
    topology_policy: str = "",
    static_options: Mapping[str, str] | None = None,
) -> tuple[NodePolicies, tuple[str, ...]]:
    """Reads a node's labels, the kubelet's topology manager policy and the options of its static
    CPU manager policy (None under another policy). Also returns a message for every unknown value,
    which is ignored."""
    faults: list[str] = []
    kubelet = kubelet_numa_policy(topology_policy)
    if topology_policy and kubelet is None:
        faults.append(f"topology manager policy {topology_policy[:60]!r} is not known")
    options = static_options or {}
    policies = NodePolicies(
        numa_label=_labelled(labels, NUMA_VALUES, NUMA_LABEL, NUMA_LABEL_OF_PROPOSAL),
        numa_kubelet=kubelet,
        bind_label=_labelled(labels, BIND_VALUES, BIND_LABEL),
        strategy_label=_labelled(labels, STRATEGY_VALUES, STRATEGY_LABEL),
        full_pcpus_only=options.get("full-pcpus-only") == "true",
        distribute_across_numa=options.get("distribute-cpus-across-numa") == "true",
        arm=labels.get(ARCHITECTURE_LABEL, "").startswith("arm"),
    )
    return policies, (*faults, *label_faults(labels))


def numa_policy(
    spec: NumaSpec, node: NodePolicies, profile: Profile
) -> tuple[NumaPolicy, PolicySource] | Refusal:
    """Rejects a pod whose own policy differs from the node's."""
    kubelet = node.numa_kubelet if node.numa_kubelet is not NumaPolicy.NONE else None
    candidates = [(kubelet, PolicySource.KUBELET), (node.numa_label, PolicySource.NODE_LABEL)]
    if profile.label_first:
        candidates.reverse()
    policy, source = next((each for each in candidates if each[0]), (None, PolicySource.DEFAULT))
    own = spec.policy if spec.policy is not NumaPolicy.NONE else None
    if own is None:
        return policy or profile.numa_policy, source
    if policy in (None, NumaPolicy.NONE):
        return own, PolicySource.POD
    if own is not policy:
        return Refusal(Reason.NUMA_POLICY_CONFLICT, detail=f"pod: {own}, {source}: {policy}")
    return own, source


def numa_exclusive(spec: NumaSpec) -> NumaExclusive | None:
    """The NUMA exclusive policy of the pod; by default REQUIRED if the pod sets a NUMA policy."""
    if spec.exclusive is None and spec.policy not in (None, NumaPolicy.NONE):
        return NumaExclusive.REQUIRED
    return spec.exclusive


def bind(
    spec: ResourceSpec,
    qos: QoS,
    node: NodePolicies,
    profile: Profile,
    *,
    owner: bool,
    guaranteed: bool = False,
) -> tuple[Bind | None, PolicySource] | Refusal:
    """None: no CPUs are bound. `owner`, `guaranteed`: see ResourceRequest.

    A node's policy binds every pod that requests CPU, except BE pods, which run on the rest. On ARM
    the default is FullPCPUs, even if another one is configured (fine-grained CPU orchestration
    proposal). So it is if ConstrainedBurst is configured, which binds no CPUs."""
    requested = spec.required or spec.preferred
    source = PolicySource.DEFAULT if requested is BindPolicy.DEFAULT else PolicySource.POD
    binds = profile.bind in _BINDING and not node.arm
    configured = profile.bind if binds else BindPolicy.FULL_PCPUS
    policy = configured if requested is BindPolicy.DEFAULT else requested
    owns = owner and policy in _BINDING
    forced = BindPolicy.FULL_PCPUS if node.full_pcpus_only else node.bind_label
    if forced and qos is not QoS.BE:
        forced_by = PolicySource.KUBELET if node.full_pcpus_only else PolicySource.NODE_LABEL
        if owns and spec.required and policy is not forced:
            detail = f"pod: {policy}, {forced_by}: {forced}"
            return Refusal(Reason.BIND_POLICY_CONFLICT, detail=detail)
        strict = profile.strict_full_pcpus_only and forced is BindPolicy.FULL_PCPUS
        if strict and not guaranteed:
            detail = f"pod: {qos}, {forced_by}: {forced}"
            return Refusal(Reason.NOT_GUARANTEED, detail=detail)
        avoided = strict and owns and policy is BindPolicy.SPREAD_BY_PCPUS
        return Bind(forced, required=True, avoided=avoided), forced_by
    return (Bind(policy, required=spec.required is not None) if owns else None), source


def numa_strategy(
    node: NodePolicies, profile: Profile, policy: NumaPolicy = NumaPolicy.NONE
) -> tuple[Strategy, PolicySource]:
    """The order in which NUMA nodes are used under this NUMA policy. DistributeEvenly is
    LeastAllocated between sets of NUMA nodes, and even parts on the nodes of a set."""
    if node.strategy_label:
        return node.strategy_label, PolicySource.NODE_LABEL
    if node.distribute_across_numa:
        return Strategy.DISTRIBUTE_EVENLY, PolicySource.KUBELET
    scoring = None if policy is NumaPolicy.NONE else profile.scoring
    return scoring or profile.strategy, PolicySource.DEFAULT


def architecture(
    spec: ResourceSpec, node: NodePolicies, bound: Bind | None = None
) -> Refusal | None:
    """On ARM only FullPCPUs and NUMANodeLevel exist (fine-grained CPU orchestration proposal).
    `bound`: the policy in force for the pod, which may come from the node's label."""
    if not node.arm:
        return None
    for policy in (spec.required, spec.preferred, bound and bound.policy):
        if policy is BindPolicy.SPREAD_BY_PCPUS:
            return Refusal(Reason.ARCHITECTURE, detail=f"bind policy {policy}")
    if spec.exclusive is ExclusivePolicy.PCPU_LEVEL:
        return Refusal(Reason.ARCHITECTURE, detail=f"exclusive policy {spec.exclusive}")
    return None


_Value = TypeVar("_Value")
_BINDING: Final = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)


def _labelled(labels: Mapping[str, str], values: Mapping[str, _Value], *keys: str) -> _Value | None:
    """The policy of the first label with a known value."""
    for key in keys:
        if (value := labels.get(key, "")) in values:
            return values[value]
    return None


class InForce(msgspec.Struct, frozen=True):
    """`bind` None: the pod shares CPUs. `chosen`: the same policies with their sources, for
    display."""

    bind: Bind | None
    exclusive: ExclusivePolicy
    numa: NumaPolicy
    numa_exclusive: NumaExclusive | None
    strategy: Strategy
    chosen: tuple[PolicyInForce, ...]


def in_force(
    of_node: NodePolicies, profile: Profile, request: ResourceRequest
) -> InForce | Refusal:
    """Rejects policies that the architecture does not have, and a pod whose policies conflict with
    the node's."""
    policies = _without_kubelet(of_node, request.kubelet)
    numa = numa_policy(request.numa, policies, profile)
    if isinstance(numa, Refusal):
        return numa
    spec, owner, guaranteed = request.spec, request.owner, request.guaranteed
    of_bind = bind(spec, request.qos, policies, profile, owner=owner, guaranteed=guaranteed)
    asks_cpu = bool(request.requests.get("cpu"))
    if isinstance(of_bind, Refusal):
        if asks_cpu:
            return of_bind
        of_bind = None, PolicySource.DEFAULT
    bound = of_bind[0] if asks_cpu else None
    if rejection := architecture(spec, policies, bound):
        return rejection
    exclusive = numa_exclusive(request.numa)
    strategy = numa_strategy(policies, profile, numa[0])
    chosen = [
        PolicyInForce(PolicyKind.NUMA, *numa),
        PolicyInForce(PolicyKind.NUMA_STRATEGY, *strategy),
    ]
    if exclusive and numa[0] is not NumaPolicy.NONE:
        chosen.append(PolicyInForce(PolicyKind.NUMA_EXCLUSIVE, exclusive, PolicySource.POD))
    if bound:
        chosen.append(PolicyInForce(PolicyKind.CPU_BIND, bound.policy, of_bind[1]))
    elif request.burst_milli:
        chosen.append(PolicyInForce(PolicyKind.CPU_BIND, BindPolicy.CONSTRAINED_BURST, of_bind[1]))
    if bound and spec.exclusive is not ExclusivePolicy.NONE:
        chosen.append(PolicyInForce(PolicyKind.CPU_EXCLUSIVE, spec.exclusive, PolicySource.POD))
    return InForce(
        bound,
        spec.exclusive,
        numa[0],
        exclusive,
        strategy[0],
        tuple(chosen),
    )


def _without_kubelet(policies: NodePolicies, followed: FollowedPolicies) -> NodePolicies:
    """Without the kubelet's policies that the pod does not follow."""
    match followed:
        case FollowedPolicies.ALL:
            return policies
        case FollowedPolicies.NUMA:
            return msgspec.structs.replace(policies, full_pcpus_only=False)
        case FollowedPolicies.NONE:
            return msgspec.structs.replace(
                policies, full_pcpus_only=False, numa_kubelet=None, distribute_across_numa=False
            )
