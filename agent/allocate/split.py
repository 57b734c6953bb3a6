"""An amount of one resource, split over the NUMA nodes of a mask.

Both ways walk the nodes in an order of their availability by NUMA id. Koordinator's function
(pkg/scheduler/plugins/nodenumaresource/resource_manager.go, tryBestToDistributeEvenly) compares
availability by position instead, so its order is wrong unless the mask is NUMA nodes 0 to k - 1.
"""

from __future__ import annotations

from collections.abc import Mapping


def evenly(asked: int, available: Mapping[int, int], unit: int = 1) -> dict[int, int]:
    """As equal as availability and whole `unit`s permit; a remainder goes to the nodes that have
    most. Nodes that get nothing are left out; a sum below `asked` is a shortage.

    Koordinator's rule (tryBestToDistributeEvenly): the poorest node first, each at most its share
    of what is left."""
    shares: dict[int, int] = {}
    missing = asked // unit
    ordered = sorted(available, key=lambda node: (available[node], node))
    for index, node in enumerate(ordered):
        share = min(available[node] // unit, missing // (len(ordered) - index))
        if share > 0:
            shares[node] = share * unit
            missing -= share
    return shares


def packed(asked: int, available: Mapping[int, int], unit: int = 1) -> dict[int, int]:
    """The richest node first, each all that it has: as few nodes as hold the amount."""
    shares: dict[int, int] = {}
    missing = asked // unit
    for node in sorted(available, key=lambda node: (-available[node], node)):
        share = min(available[node] // unit, missing)
        if share > 0:
            shares[node] = share * unit
            missing -= share
    return shares
