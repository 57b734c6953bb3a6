"""The policies and strategies of CPU, NUMA and GPU orchestration.

Settings, the kubelet's configuration and pods' annotations (`model.pod.annotations`) name them, and
labels of Nodes (Koordinator: apis/extension/numa_aware.go)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class BindPolicy(enum.StrEnum):
    """How a pod's CPUs are placed on physical cores (`resource-spec`)."""

    DEFAULT = "Default"
    """The configured policy."""
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"
    """Binds no CPUs, but binds a pod that shares CPUs to NUMA nodes that fit its limit."""


class ExclusivePolicy(enum.StrEnum):
    """Whether a pod prefers not to share cores, or NUMA nodes, with pods of the same policy."""

    NONE = "None"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class Strategy(enum.StrEnum):
    """Which node, NUMA node, core or device to prefer. Each setting accepts only some
    strategies."""

    MOST_ALLOCATED = "MostAllocated"
    """The one with the least free resources that fits."""
    LEAST_ALLOCATED = "LeastAllocated"
    """The one with the most free resources."""
    BALANCED_ALLOCATION = "BalancedAllocation"
    """The one whose resources are used in the most equal fractions."""
    LEAST_NUMA_NODES = "LeastNUMANodes"
    """The node where the pod needs the fewest and nearest NUMA nodes."""
    DISTRIBUTE_EVENLY = "DistributeEvenly"
    """An equal part of the request on each."""


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
    """How to choose between sets of GPUs: the set whose slowest link is fastest, or (as in
    go-gpuallocator) the set that leaves good sets for other pods."""

    BANDWIDTH = "bandwidth"
    BESTEFFORT = "besteffort"


class NumaPolicy(enum.StrEnum):
    """How strictly a pod's resources must be on the same NUMA nodes."""

    NONE = "None"
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class DeviceLocality(enum.StrEnum):
    """Whether a container without CPUs of its own runs on the NUMA nodes of its devices
    (`device-locality`)."""

    OFF = "off"
    PREFER = "prefer"
    BIND = "bind"
    """As `prefer`, and its memory comes from these NUMA nodes alone."""
    REQUIRE = "require"
    """It is `prefer` on the node; Topolet's scheduler binds the pod only where there is room."""


class BeOnOwned(enum.StrEnum):
    """Whether the cpuset of suppressed BE pods has CPUs that LSR pods own."""

    IN_PROPORTION = "in-proportion"
    """As many of them as they are of the BE pool, as in Koordinator."""
    LAST = "last"
    """Only when all other CPUs of the BE pool do not suffice."""
    NEVER = "never"


class CpuGrouping(enum.StrEnum):
    """What one device of the DRA driver for CPUs is (`dra-devices`)."""

    NUMA_NODE = "numa-node"
    L3_CACHE = "l3-cache"
    CORE = "core"


class GroupOrder(enum.StrEnum):
    """The order of these devices, of which kube-scheduler takes the first that fits
    (`dra-order`)."""

    DEVICES_LAST = "devices-last"
    """NUMA nodes with fewer GPUs and other devices first, so that CPUs stay near to these."""
    NUMA_NODE = "numa-node"
    """By id."""
    SPREAD = "spread"
    """The one with the most unclaimed CPUs first."""


class NumaExclusive(enum.StrEnum):
    """Whether pods on one NUMA node and pods on several must not be on a NUMA node together."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class TopologyManagerScope(enum.StrEnum):
    """The kubelet's `topologyManagerScope`."""

    CONTAINER = "container"
    POD = "pod"


def kubelet_numa_policy(text: str) -> NumaPolicy | None:
    """A topology manager policy in any spelling: the kubelet's (`single-numa-node`), the seven of
    NodeResourceTopology (`SingleNUMANodePodLevel`) and Koordinator's; None if unknown.

    Container scope counts as the same policy of the whole pod (numa-topology-scheduling proposal).
    """
    return _BY_NAME.get(_spelled(text)[0])


def topology_manager_scope(text: str) -> TopologyManagerScope | None:
    """The scope that such a spelling names, None if it names none."""
    return _spelled(text)[1]


def _spelled(text: str) -> tuple[str, TopologyManagerScope | None]:
    """The policy in lower case without separators, and the scope."""
    name = text.replace("-", "").replace("_", "").lower()
    for scope in TopologyManagerScope:
        if name.endswith(level := f"{scope}level"):
            return name.removesuffix(level), scope
    return name, None


def reported_numa_policy(policy: str, scope: str) -> str:
    """The kubelet's topology manager policy and scope as a value of NodeResourceTopology; `None`
    for an unknown policy."""
    known = kubelet_numa_policy(policy) or NumaPolicy.NONE
    if known is NumaPolicy.NONE:
        return NumaPolicy.NONE.value
    return f"{known}{'PodLevel' if scope == 'pod' else 'ContainerLevel'}"


_BY_NAME = {each.lower(): each for each in NumaPolicy}


BIND_LABEL = "node.koordinator.sh/cpu-bind-policy"
STRATEGY_LABEL = "node.koordinator.sh/numa-allocate-strategy"
NUMA_LABEL = "node.koordinator.sh/numa-topology-policy"
NUMA_LABEL_OF_PROPOSAL = "node.koordinator.sh/numa-topology-alignment-policy"
PARTITION_LABEL = "node.koordinator.sh/gpu-partition-policy"
"""Also a label of the Device object."""


class GpuPartitionPolicy(enum.StrEnum):
    """Whether GPUs are allocated only in sets of the partition table (`gpu-partition-policy`)."""

    HONOR = "Honor"
    PREFER = "Prefer"


BIND_VALUES: Final[Mapping[str, BindPolicy | None]] = {
    "None": None,
    "FullPCPUsOnly": BindPolicy.FULL_PCPUS,
    "SpreadByPCPUs": BindPolicy.SPREAD_BY_PCPUS,
    "PCPUOnly": BindPolicy.FULL_PCPUS,
}
"""`PCPUOnly`: the fine-grained CPU orchestration proposal writes the same policy in two ways."""
STRATEGY_VALUES: Final = {str(each): each for each in NUMA_STRATEGIES}
NUMA_VALUES: Final = {str(each): each for each in NumaPolicy}


class PlacementPolicy(enum.StrEnum):
    """How the node of a pod is chosen, by the GPUs that stay usable (`allocate.placement`)."""

    RESIDUAL = "Residual"
    FGD = "FGD"
    BEST_FIT = "BestFit"
    BIN_PACK = "BinPack"
    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
