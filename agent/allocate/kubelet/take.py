"""Which CPUs of those that are free: the one question that all options of the policy answer."""

from __future__ import annotations

from agent.allocate.kubelet.distributed import take_distributed
from agent.allocate.kubelet.options import StaticOptions
from agent.allocate.kubelet.packed import NotEnoughCpusError, take_packed
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


def take_aligned(layout: Layout, free: int, count: int, options: StaticOptions) -> int:
    """The same, with full-pcpus-only of whole cores alone. Raises NotEnoughCpusError.

    Half cores have their weight in the order of what is used most, as in the kubelet, but none is
    handed out: the choice is made again among whole cores, then among those with most threads, as
    cores unlike may not add up.
    """
    cpus = take(layout, free, count, options)
    if not options.full_pcpus_only or of_whole_cores(layout, cpus) == cpus:
        return cpus
    whole = layout.whole(free)
    for leads in (whole, whole & layout.sizes[0][1]):
        cpus = take(layout, layout.expand(leads), count, options)
        if of_whole_cores(layout, cpus) == cpus:
            return cpus
    raise NotEnoughCpusError(count, layout.expand(whole).bit_count())


def of_whole_cores(layout: Layout, cpus: int) -> int:
    """Those of the CPUs whose siblings are among them too."""
    return layout.expand(layout.whole(cpus))
