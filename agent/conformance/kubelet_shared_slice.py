"""The kubelet's distribution over four or more NUMA nodes: a combination tried later overwrites the
end of the best one that it remembers, so that it hands out a worse one."""

from __future__ import annotations

from typing import Final

from agent.allocate.layout import Layout
from agent.conformance.verdict import Difference

SHARED_SLICE: Final = Difference(
    "shared-slice",
    "distribution over four or more NUMA nodes leaves the free CPUs no more even than ours: the"
    " best combination found was overwritten by a later one",
    listed=True,
)
_FEWEST_NODES: Final = 4


def less_even(layout: Layout, free: int, ours: int, theirs: int) -> bool:
    """Whether the two take equally many CPUs from that many NUMA nodes, and ours leaves the nodes
    at least as even: the predicate, narrowed further by what is known of the case."""
    alike = ours.bit_count() == theirs.bit_count() and not (ours | theirs) & ~free
    spans = len(layout.node_ids(ours)) >= _FEWEST_NODES
    return alike and spans and _squares(layout, free & ~ours) <= _squares(layout, free & ~theirs)


def _squares(layout: Layout, left: int) -> int:
    """The more even, the less, for one number of CPUs."""
    return sum((node.cpus & left).bit_count() ** 2 for node in layout.nodes)
