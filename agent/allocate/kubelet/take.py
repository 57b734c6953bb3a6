"""Which CPUs of those that are free: the one question that all options of the policy answer."""

from __future__ import annotations

from agent.allocate.kubelet.distributed import take_distributed
from agent.allocate.kubelet.options import StaticOptions
from agent.allocate.kubelet.packed import take_packed
from agent.allocate.layout import Layout


def take(layout: Layout, free: int, count: int, options: StaticOptions) -> int:
    """Exactly `count` of the free CPUs. Raises NotEnoughCpusError.

    That whole cores are asked for whole is for the caller to see to; here `full_pcpus_only` makes
    the groups in which CPUs are distributed.
    """
    spread = options.distribute_cpus_across_cores
    if options.distribute_cpus_across_numa:
        group = layout.threads if options.full_pcpus_only else 1
        return take_distributed(layout, free, count, group=group, spread=spread)
    by_cache = options.prefer_align_cpus_by_uncorecache
    return take_packed(layout, free, count, by_cache=by_cache, spread=spread)
