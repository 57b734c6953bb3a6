"""The words of CPU, NUMA and GPU orchestration, as pods, nodes and settings write them."""

from __future__ import annotations

import enum


class BindPolicy(enum.StrEnum):
    """How a pod's CPUs lie on physical cores (`resource-spec`; `Default`: the configured one).

    CONSTRAINED_BURST binds no CPUs: it holds a pod that shares to NUMA nodes that fit its limit.
    """

    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class ExclusivePolicy(enum.StrEnum):
    """What a pod would rather not share with pods of the same policy: cores, NUMA nodes."""

    NONE = "None"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class NumaStrategy(enum.StrEnum):
    """Which NUMA node first: the fullest that fits, the emptiest, or evenly over all."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


class GpuObjective(enum.StrEnum):
    """How to choose between sets of GPUs: no slow link within the set, or (as go-gpuallocator does)
    good sets left for others."""

    BANDWIDTH = "bandwidth"
    BESTEFFORT = "besteffort"


class NumaPolicy(enum.StrEnum):
    """How strictly a pod's resources must lie on the same NUMA nodes."""

    NONE = "None"
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NumaExclusive(enum.StrEnum):
    """Whether a NUMA node is kept from pods of one node and pods of several at once."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


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
