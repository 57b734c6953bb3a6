"""What a cluster loses to fragmentation, as `scheduler.fragmentation` reports it: free CPUs and
GPUs that its pods can't use."""

from __future__ import annotations

import msgspec

from agent.model.rebind_resource import StatusMeasures


class RebindGain(msgspec.Struct, frozen=True):
    """What a rebind would improve."""

    pods: int
    """How many would move."""
    before: StatusMeasures
    after: StatusMeasures


class NodeFragmentation(msgspec.Struct, frozen=True):
    """What one node loses to fragmentation."""

    node: str
    free_cpus: int = 0
    cpus_on_broken_cores: int = 0
    cpus_on_small_numa_rests: float = 0.0
    free_gpus: float = 0.0
    gpus_lost_to_shares: float = 0.0
    gpus_without_cpu_or_memory: float = 0.0
    rebind: RebindGain | None = None
    """None if no plan improves the node."""
    fitting: int | None = None
    """How many more pods like a given one fit, None without one."""

    @property
    def lost(self) -> tuple[float, float]:
        """GPUs and CPUs, to compare nodes."""
        gpus = self.gpus_lost_to_shares + self.gpus_without_cpu_or_memory
        return gpus, self.cpus_on_broken_cores + self.cpus_on_small_numa_rests


class ClusterFragmentation(msgspec.Struct, frozen=True):
    """What all nodes lose to fragmentation."""

    cpus: int
    gpus: int
    free_cpus: int
    cpus_on_broken_cores: int
    cpus_on_small_numa_rests: float
    free_gpus: float
    gpus_lost_to_shares: float
    gpus_without_cpu_or_memory: float
    rebind_nodes: int
    rebind_pods: int
    cores_mended_by_rebind: int
    numa_crossings_mended_by_rebind: int
    fitting: int | None
    nodes: tuple[NodeFragmentation, ...]
    """The nodes that lose most come first."""
    schema_version: int = 1
    """The version of this format."""
