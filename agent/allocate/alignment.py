"""Which NUMA nodes a pod gets under a NUMA policy: hints, their merge, and a trial of the answer.

Koordinator's topology manager (pkg/scheduler/frameworkext/topologymanager) with the hints of CPU,
memory and whatever else NUMA nodes count; but a request that could not be reserved is not admitted,
not even under BestEffort, and a machine with one NUMA node keeps an account too. Other hint
providers, such as the allocator of devices, join the merge as companions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from agent.allocate.bits import ids
from agent.allocate.node_allocation import NodeAllocation
from agent.allocate.numa import koordinator_merge
from agent.allocate.numa.hint import MergeCause, Merged, Provider, TopologyHint
from agent.allocate.numa.resource_hints import resource_hints
from agent.allocate.offer import NumaCandidate
from agent.allocate.policies_in_force import InForce
from agent.allocate.reasons import Reason, Rejection
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.trials import Allotment, Trials
from agent.model.policies import NumaExclusive, NumaPolicy


class Aligned(msgspec.Struct, frozen=True):
    """`found`: the allotment, or why there is none; `candidates` as they were tried."""

    found: Allotment | tuple[Rejection, ...]
    candidates: tuple[NumaCandidate, ...] = ()
    merged: Merged | None = None


class Companion(Protocol):
    """A hint provider for what a pod requests in addition to what the NUMA nodes count."""

    def hints(self, nodes: Collection[int], *, narrowest: bool = False) -> Provider:
        """The sets of NUMA nodes that it could come from; `narrowest`: the sets of the fewest
        nodes, which are the preferred ones."""

    def fits(self, mask: int | None) -> bool:
        """Whether it can be had of the NUMA nodes that were chosen; None: of any."""


def align(
    account: NodeAllocation,
    ask: ResourceRequest,
    policies: InForce,
    trials: Trials,
    companion: Companion | None = None,
) -> Aligned:
    """The place of a pod that asks for something the NUMA nodes count, or has a companion."""
    wanted = {name: amount for name, amount in ask.requests.items() if trials.numa_knows(name)}
    if not trials.totals:
        return Aligned((Rejection(Reason.NO_NUMA_RESOURCES),))
    if "cpu" not in wanted and (policies.bind or ask.burst_milli):
        return Aligned((Rejection(Reason.NO_NUMA_RESOURCES, "cpu", ask.requests["cpu"]),))
    if not wanted and companion is None:
        return Aligned(Allotment(0, {}))
    tried: dict[int, Rejection | None] = {}
    scores: dict[int, int] = {}

    def fits(mask: int) -> bool:
        lacking = tried[mask] = trials.lacks(ids(mask))
        return lacking is None

    def score(mask: int) -> int:
        scores[mask] = trials.score(mask)
        return scores[mask]

    def merge(
        others: Provider | None, widest: int | None = None, *, narrowest: bool = False
    ) -> Merged:
        hints = resource_hints(
            wanted,
            trials.available,
            trials.totals,
            policies.numa,
            score,
            fits,
            narrowest=narrowest,
            widest=widest,
        )
        return koordinator_merge.merge(
            [hints] if others is None else [hints, others],
            trials.totals,
            policies.numa,
            policies.numa_exclusive,
            account.numa_status(),
        )

    if companion is None:
        merged = merge(None, narrowest=True)
        if policies.numa_exclusive is NumaExclusive.REQUIRED and not merged.preferred:
            # Others keep it out of all narrow sets.
            merged = merge(None)
    else:
        merged = _together(companion, trials, merge)
    candidates = tuple(
        NumaCandidate(ids(mask), scores.get(mask), rejection) for mask, rejection in tried.items()
    )
    if not merged.admit:
        return Aligned(_rejections(wanted, merged, trials), candidates, merged)
    nodes = tuple(trials.totals) if merged.mask is None else ids(merged.mask)
    found = trials.on_nodes(nodes)
    if isinstance(found, Rejection):
        return Aligned((found,), candidates, merged)
    if companion is not None and not companion.fits(merged.mask):
        return Aligned((Rejection(Reason.NUMA_COMPANION, nodes=nodes),), candidates, merged)
    return Aligned(found, candidates, merged)


def _together(
    companion: Companion, trials: Trials, merge: Callable[[Provider, int | None], Merged]
) -> Merged:
    """The companion prefers its narrowest sets. Where all providers prefer some of these, no wider
    set can win, so wider sets are tried only where there are none. The companion's own wider sets
    matter only where a result that is not preferred is admitted too."""
    nodes = tuple(trials.totals)
    narrow = companion.hints(nodes, narrowest=True)
    sizes = [_size(hint) for hints in narrow.values() for hint in hints or ()]
    if sizes:
        merged = merge(narrow, max(sizes))
        if merged.preferred:
            return merged
    admits_all = trials.policies.numa is NumaPolicy.BEST_EFFORT
    return merge(companion.hints(nodes) if admits_all else narrow, None)


def _size(hint: TopologyHint) -> int:
    return 0 if hint.mask is None else hint.mask.bit_count()


def _rejections(wanted: dict[str, int], merged: Merged, trials: Trials) -> tuple[Rejection, ...]:
    if MergeCause.RESOURCE_LACKING in merged.causes or MergeCause.NOT_ON_ONE_NODE in merged.causes:
        together = MergeCause.RESOURCE_LACKING in merged.causes
        reason = Reason.NUMA_UNSATISFIED if together else Reason.NUMA_UNALIGNED
        return tuple(
            Rejection(reason, name, wanted[name], trials.left(name, together=together))
            if name in wanted
            else Rejection(reason, name)
            for pick in merged.lacking
            if (name := pick.resource) is not None
        )
    nodes = ids(merged.combined or 0)
    return (Rejection(Reason.NUMA_UNALIGNED, nodes=nodes, detail=", ".join(merged.causes)),)
