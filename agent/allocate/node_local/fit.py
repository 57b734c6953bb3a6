"""How well CPUs lie together, and the best to take, to add and to give back.

Narrow first, as the kubelet is with NUMA hints (pkg/kubelet/cm/cpumanager/policy_static.go,
generateCPUTopologyHints): an L3 cache where that counts, a NUMA node, a socket, the machine; inside
it what the kubelet's options choose. Of places alike the one that breaks no whole core, then the
fullest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from agent.allocate.bits import lowest
from agent.allocate.kubelet.cpu_assignment import NotEnoughCpusError, of_whole_cores, take_aligned
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.layout import Area, Layout

Cost: TypeAlias = tuple[int, int, int, int]


class CpuFit(msgspec.Struct, frozen=True):
    """CPUs as masks; `free` is what may be taken."""

    layout: Layout
    options: StaticOptions

    def cost(self, cpus: int) -> Cost:
        """Lower is better: NUMA nodes and sockets (in reverse order with align-by-socket), then
        caches or imbalance by the options, then cores with CPUs outside the set (or, to spread over
        cores, CPUs with a sibling in the set)."""
        layout, options = self.layout, self.options
        per_node = [held for node in layout.nodes if (held := (node.cpus & cpus).bit_count())]
        sockets = sum(1 for socket in layout.sockets if socket.cpus & cpus)
        middle = 0
        if options.distribute_cpus_across_numa and per_node:
            middle = max(per_node) - min(per_node)
        elif options.prefer_align_cpus_by_uncorecache:
            middle = sum(1 for cache in layout.caches if cache.cpus & cpus)
        cores = layout.touched(cpus).bit_count()
        if options.distribute_cpus_across_cores:
            last = cpus.bit_count() - cores
        else:
            last = cores - layout.whole(cpus).bit_count()
        if options.align_by_socket:
            return sockets, len(per_node), middle, last
        return len(per_node), sockets, middle, last

    @property
    def loose(self) -> CpuFit:
        """For CPUs that are not of whole cores though now they would have to be."""
        return CpuFit(self.layout, msgspec.structs.replace(self.options, full_pcpus_only=False))

    def usable(self, free: int) -> int:
        """The CPUs that may be given away: with full-pcpus-only those of whole cores."""
        return of_whole_cores(self.layout, free) if self.options.full_pcpus_only else free

    def best(self, free: int, count: int) -> int:
        """Exactly `count` of the free CPUs. Raises NotEnoughCpusError."""
        if not count:
            return 0
        usable = self.usable(free)
        if count >= usable.bit_count():
            if count > usable.bit_count():
                raise NotEnoughCpusError(count, usable.bit_count())
            return usable
        if self.options.distribute_cpus_across_numa:
            return take_aligned(self.layout, free, count, self.options)
        whole = self.layout.whole(free)
        found = []
        for area in self._areas(usable, count):
            inside = area & free
            try:
                cpus = take_aligned(self.layout, inside, count, self.options)
            except NotEnoughCpusError:
                continue
            key = self.cost(cpus), self._broken(whole, cpus), inside.bit_count(), cpus & -cpus
            found.append((key, cpus))
        if not found:
            raise NotEnoughCpusError(count, usable.bit_count())
        return min(found)[1]

    def grown(self, base: int, free: int, count: int) -> int:
        """`count` CPUs, `base` among them, the others free. Raises NotEnoughCpusError."""
        if not base:
            return self.best(free, count)
        free &= ~base
        missing = count - base.bit_count()
        siblings = self.layout.expand(self.layout.touched(base)) & free
        beside = base | lowest(siblings, missing)
        starts = [beside] if self.options.full_pcpus_only else [beside, base]
        whole = self.layout.whole(free)
        found = []
        for rank, start in enumerate(starts):
            cpus = self._spilled(start, free & ~start, count)
            if self.usable(cpus) == cpus:
                found.append(((self.cost(cpus), self._broken(whole, cpus), rank), cpus))
        if not found:
            raise NotEnoughCpusError(count, (base | self.usable(free | base)).bit_count())
        return min(found)[1]

    def shrunk(self, base: int, count: int, original: int = 0) -> int:
        """`count` of the CPUs in `base`, those it had at first rather than others."""
        first = original & base
        try:
            if first.bit_count() > count:
                return self.best(first, count)
            return self.grown(first, base, count)
        except NotEnoughCpusError:
            return self.loose.best(base, count)

    def _areas(self, usable: int, count: int) -> Iterator[int]:
        """The areas for so many CPUs: the narrow ones that have them, otherwise NUMA nodes
        together, in one socket and anywhere."""
        layout = self.layout
        tiers = [
            {cell.cpus for cell in layout.cells},
            {node.cpus for node in layout.nodes},
        ]
        if self.options.prefer_align_cpus_by_uncorecache:
            tiers.insert(0, {cache.cpus for cache in layout.caches})
        for tier in tiers:
            enough = [area for area in tier if (area & usable).bit_count() >= count]
            if enough:
                yield from enough
                return
        for socket in layout.sockets:
            if (socket.cpus & usable).bit_count() >= count:
                yield self._nodes(socket.cpus & usable, count)
        yield self._nodes(usable, count)
        yield usable

    def _nodes(self, usable: int, count: int) -> int:
        """Of as few NUMA nodes as have so many of these CPUs; the last is the smallest that is
        enough."""
        sizes = sorted(
            ((node.cpus & usable).bit_count(), -node.id, node.cpus & usable)
            for node in self.layout.nodes
        )
        taken = 0
        while sizes:
            last = next((each for each in sizes if each[0] >= count), None)
            if last is not None:
                return taken | last[2]
            size, _, cpus = sizes.pop()
            taken |= cpus
            count -= size
        return taken

    def _spilled(self, base: int, free: int, count: int) -> int:
        """`base` and free CPUs close to it, farther away step by step. Raises
        NotEnoughCpusError."""
        layout = self.layout
        steps: tuple[tuple[Area, ...], ...] = (layout.nodes, layout.sockets)
        if self.options.prefer_align_cpus_by_uncorecache:
            steps = (layout.caches, *steps)
        taken = base
        for areas in steps:
            near = free & ~taken & sum({area.cpus for area in areas if area.cpus & base})
            part = min(count - taken.bit_count(), self.usable(near).bit_count())
            if part > 0:
                try:
                    taken |= self.best(near, part)
                except NotEnoughCpusError:
                    continue
        return taken | self.best(free & ~taken, count - taken.bit_count())

    def _broken(self, whole: int, cpus: int) -> int:
        """How many cores that were wholly free are so no longer, and were not taken whole."""
        layout = self.layout
        return (layout.touched(cpus) & whole & ~layout.whole(cpus)).bit_count()
