"""From which NUMA nodes a pod's devices could come: hints for the merge (koordinator.md §4.5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.allocate.devices.allocation import Allocation, DeviceRequest, allocate
from agent.allocate.devices.refusal import Refusal
from agent.allocate.devices.state import NodeDevices
from agent.allocate.numa.hint import Hint
from agent.allocate.numa.masks import of_nodes, subsets
from agent.model.devices import DeviceType
from agent.model.policies import NumaStrategy

SAME_CARDS: Final = 500
"""The score of NUMA nodes that give the GPUs which would be chosen from all of them: more than CPU
and memory score together."""


def device_hints(
    node: NodeDevices,
    request: DeviceRequest,
    numa_nodes: Iterable[int],
    strategy: NumaStrategy | None = None,
    *,
    narrowest: bool = False,
) -> dict[str, tuple[Hint, ...]] | Refusal:
    """By device type; all types have the same hints, as they are chosen together: the sets of these
    NUMA nodes (all of the machine's) that an allocation fits on, the smallest of them preferred. A
    Refusal where the devices of all together do not do. `narrowest`: no sets but the preferred."""
    nodes = set(numa_nodes)
    everywhere = of_nodes(nodes)
    widest = allocate(node, request, numa=everywhere, strategy=strategy)
    if isinstance(widest, Refusal):
        return widest
    cards = _cards(widest)
    found: list[tuple[int, bool]] = []
    for mask in subsets(nodes):
        if narrowest and found and mask.bit_count() > found[0][0].bit_count():
            break
        allocation: Allocation | Refusal = widest
        if mask != everywhere:
            allocation = allocate(node, request, numa=mask, strategy=strategy)
        if isinstance(allocation, Allocation):
            found.append((mask, _cards(allocation) == cards))
    fewest = min(mask.bit_count() for mask, _ in found)
    hints = tuple(
        Hint(mask, mask.bit_count() == fewest, SAME_CARDS if same else 0) for mask, same in found
    )
    return dict.fromkeys(request.asks, hints)


def _cards(allocation: Allocation) -> frozenset[int]:
    return frozenset(each.minor for each in allocation.devices.get(DeviceType.GPU, ()))
