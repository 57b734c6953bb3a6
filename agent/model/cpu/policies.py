"""The policies and strategies of CPU, NUMA and GPU orchestration.

Settings and kubelets name them. Pods name them in two annotations of Koordinator's, `resource-spec`
and `numa-topology-spec` (apis/extension/numa_aware.go): how their CPUs are placed on cores and NUMA
nodes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from agent.model.pod.annotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC, AnnotationError, decoded


class BindPolicy(enum.StrEnum):
    """How a pod's CPUs are placed on physical cores (`resource-spec`; `Default`: the configured
    one). CONSTRAINED_BURST binds no CPUs: it binds a pod that shares CPUs to NUMA nodes that fit
    its limit.
    """

    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class ExclusivePolicy(enum.StrEnum):
    """What a pod prefers not to share with pods of the same policy: cores, or NUMA nodes."""

    NONE = "None"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class Strategy(enum.StrEnum):
    """Which of several nodes, NUMA nodes, cores or devices is better. A setting accepts only the
    strategies of its kind."""

    MOST_ALLOCATED = "MostAllocated"
    """The fullest that fits."""
    LEAST_ALLOCATED = "LeastAllocated"
    """The emptiest."""
    BALANCED_ALLOCATION = "BalancedAllocation"
    """The one whose resources are used in the most equal parts."""
    LEAST_NUMA_NODES = "LeastNUMANodes"
    """The one on the fewest and nearest NUMA nodes."""
    DISTRIBUTE_EVENLY = "DistributeEvenly"
    """An equal part of each."""


NUMA_STRATEGIES: Final = (
    Strategy.MOST_ALLOCATED,
    Strategy.LEAST_ALLOCATED,
    Strategy.DISTRIBUTE_EVENLY,
)
"""The order of NUMA nodes on one node."""
NODE_STRATEGIES: Final = (
    Strategy.MOST_ALLOCATED,
    Strategy.LEAST_ALLOCATED,
    Strategy.BALANCED_ALLOCATION,
)
"""The score of a node."""
ZONE_STRATEGIES: Final = (*NODE_STRATEGIES, Strategy.LEAST_NUMA_NODES)
"""The score of a node for a plain pod, by its NUMA nodes."""


class GpuObjective(enum.StrEnum):
    """How to choose between sets of GPUs: no slow link within the set, or (as in go-gpuallocator)
    good sets left for other pods."""

    BANDWIDTH = "bandwidth"
    BESTEFFORT = "besteffort"


class NumaPolicy(enum.StrEnum):
    """How strictly a pod's resources must be on the same NUMA nodes."""

    NONE = "None"
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NumaExclusive(enum.StrEnum):
    """Whether pods on one NUMA node and pods on several must not be on a NUMA node together."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class TopologyManagerScope(enum.StrEnum):
    """The kubelet's `topologyManagerScope`."""

    CONTAINER = "container"
    POD = "pod"


class ResourceSpec(msgspec.Struct, frozen=True):
    """`required` None: nothing is required. DEFAULT in either place: the configured policy. No
    exclusive policy is configured, so the proposal's `Default` is NONE."""

    preferred: BindPolicy = BindPolicy.DEFAULT
    required: BindPolicy | None = None
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE


class NumaSpec(msgspec.Struct, frozen=True):
    """`policy` None: the node's policy. `exclusive` None: the default of the policy."""

    policy: NumaPolicy | None = None
    exclusive: NumaExclusive | None = None


class _ResourceSpecText(msgspec.Struct, frozen=True):
    preferred_bind: str = msgspec.field(default="", name="preferredCPUBindPolicy")
    required_bind: str = msgspec.field(default="", name="requiredCPUBindPolicy")
    exclusive: str = msgspec.field(default="", name="preferredCPUExclusivePolicy")


class _NumaSpecText(msgspec.Struct, frozen=True):
    policy: str = msgspec.field(default="", name="numaTopologyPolicy")
    exclusive: str = msgspec.field(default="", name="singleNUMANodeExclusive")


_resource_spec_decoder = msgspec.json.Decoder(_ResourceSpecText | None)
_numa_spec_decoder = msgspec.json.Decoder(_NumaSpecText | None)
_Word = TypeVar("_Word", bound=enum.StrEnum)


def resource_spec(annotations: Mapping[str, str]) -> ResourceSpec:
    """Fields that are absent have their defaults. Raises AnnotationError that names the field."""
    text = decoded(annotations, RESOURCE_SPEC, _resource_spec_decoder)
    if text is None:
        return ResourceSpec()

    def word(kind: type[_Word], value: str, field: str) -> _Word | None:
        return _word(kind, value, RESOURCE_SPEC, field)

    return ResourceSpec(
        word(BindPolicy, text.preferred_bind, "preferredCPUBindPolicy") or BindPolicy.DEFAULT,
        word(BindPolicy, text.required_bind, "requiredCPUBindPolicy"),
        word(
            ExclusivePolicy,
            "" if text.exclusive == BindPolicy.DEFAULT else text.exclusive,
            "preferredCPUExclusivePolicy",
        )
        or ExclusivePolicy.NONE,
    )


def numa_spec(annotations: Mapping[str, str]) -> NumaSpec:
    """Fields that are absent have their defaults. Raises AnnotationError that names the field."""
    text = decoded(annotations, NUMA_TOPOLOGY_SPEC, _numa_spec_decoder)
    if text is None:
        return NumaSpec()
    return NumaSpec(
        _word(NumaPolicy, text.policy, NUMA_TOPOLOGY_SPEC, "numaTopologyPolicy"),
        _word(NumaExclusive, text.exclusive, NUMA_TOPOLOGY_SPEC, "singleNUMANodeExclusive"),
    )


def _word(kind: type[_Word], value: str, key: str, field: str) -> _Word | None:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise AnnotationError(key, f"{field}: {value[:40]!r} is none of {known}") from None


def kubelet_numa_policy(text: str) -> NumaPolicy | None:
    """A topology manager policy in any of its spellings: the kubelet's own (`single-numa-node`),
    NodeResourceTopology's seven (`SingleNUMANodePodLevel`) and Koordinator's; None if unknown.

    Container scope counts as the same policy of the whole pod (numa-topology-scheduling proposal).
    """
    word = text.replace("-", "").lower()
    for scope in ("podlevel", "containerlevel"):
        word = word.removesuffix(scope)
    return _BY_WORD.get(word)


def reported_numa_policy(policy: str, scope: str) -> str:
    """The kubelet's topology manager policy and scope as NodeResourceTopology's single value; None
    for unknown ones."""
    known = kubelet_numa_policy(policy) or NumaPolicy.NONE
    if known is NumaPolicy.NONE:
        return NumaPolicy.NONE.value
    return f"{known}{'PodLevel' if scope == 'pod' else 'ContainerLevel'}"


_BY_WORD = {each.lower(): each for each in NumaPolicy}
