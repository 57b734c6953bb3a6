"""What a pod asks of the accumulator, and what it gets: CPUs, or the reason why not."""

from __future__ import annotations

import enum

import msgspec

from agent.allocate.reasons import Reason
from agent.model.policies import BindPolicy, ExclusivePolicy, Strategy


class CpuRequest(msgspec.Struct, frozen=True):
    """`count` CPUs; a negative one raises ValueError.

    `bind`: FULL_PCPUS prefers whole cores, every other policy one thread of each core; a preference
    unless `required`. `exclusive` is always a preference. `prefer_l3`: of equal CPUs, those that
    share the fewest L3 caches. `nodes`: the only NUMA nodes to take from, a mask of their ids."""

    count: int
    bind: BindPolicy = BindPolicy.DEFAULT
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    strategy: Strategy = Strategy.LEAST_ALLOCATED
    required: bool = False
    prefer_l3: bool = False
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count: {self.count} CPUs cannot be taken")


class AllocationStep(enum.Enum):
    """What gave CPUs; the places are named in the order they are tried."""

    PREFERRED = "preferred"
    GIVEN_NODES = "given-numa-nodes"
    EVENLY = "evenly-over-numa-nodes"
    CORES_IN_NODE = "whole-cores-in-numa-node"
    CORES_IN_SOCKET = "whole-cores-in-socket"
    CORES_OVER_SOCKETS = "whole-cores-over-sockets"
    THREADS_IN_NODE = "thread-per-core-in-numa-node"
    CPUS_IN_NODE = "cpus-in-numa-node"
    THREADS_IN_SOCKET = "thread-per-core-in-socket"
    CPUS_IN_SOCKET = "cpus-in-socket"
    SINGLE_CPUS = "single-cpus"


class Taken(msgspec.Struct, frozen=True):
    """`cpus`: a mask of exactly as many as asked. `steps`: those that gave CPUs. `apart`: none lies
    on a core or in a NUMA node that a pod with the same exclusive policy holds."""

    cpus: int
    steps: tuple[AllocationStep, ...]
    apart: bool


class Shortage(msgspec.Struct, frozen=True):
    """`asked` CPUs, but only `free` may be taken; of these `fitting` suit the required bind policy.

    `node`: the NUMA node that was to give as many, where it is one node's shortage.
    """

    reason: Reason
    asked: int
    free: int
    fitting: int
    node: int | None = None
