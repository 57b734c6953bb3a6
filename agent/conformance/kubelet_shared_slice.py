"""The kubelet's distribution over four or more NUMA nodes: a combination tried later overwrites the
end of the best one that it remembers."""

from __future__ import annotations

from typing import Final

from agent.allocate.layout import Layout
from agent.conformance.files import Difference

SHARED_SLICE: Final = Difference(
    "shared-slice",
    "distribution over four or more NUMA nodes: the best combination found is overwritten by a"
    " later one, that leaves the nodes no more even",
    listed=True,
)
_FEWEST_NODES: Final = 4


def overwritten(layout: Layout, free: int, ours: int, theirs: int) -> bool:
    """Whether both take as many of the free CPUs from as many NUMA nodes, enough for slices to be
    shared, and ours leaves the nodes at least as even."""
    nodes = len(layout.node_ids(ours))
    return (
        nodes >= _FEWEST_NODES
        and nodes == len(layout.node_ids(theirs))
        and ours.bit_count() == theirs.bit_count()
        and not theirs & ~free
        and _squares(layout, free & ~ours) <= _squares(layout, free & ~theirs)
    )


def _squares(layout: Layout, left: int) -> int:
    """The more even, the less, for one number of CPUs."""
    return sum((node.cpus & left).bit_count() ** 2 for node in layout.nodes)
