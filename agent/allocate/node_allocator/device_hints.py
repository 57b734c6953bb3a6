"""NUMA hints of the devices that a pod requests, for the merge with the hints of its CPUs and
memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from agent.allocate.bits import of_nodes, subsets
from agent.allocate.devices.allocation import Allocation, allocate, node_score
from agent.allocate.devices.inventory import NodeDevices
from agent.allocate.devices.request import DeviceRefusal, DeviceRequest
from agent.allocate.numa.hint import Provider, TopologyHint
from agent.model.deviceobject import DeviceType
from agent.model.policies import Strategy


class DeviceHintProvider:
    """The hint provider for the devices of one pod on one node; it keeps its last allocation, or
    the reason why it failed."""

    def __init__(self, node: NodeDevices, request: DeviceRequest, strategy: Strategy) -> None:
        self._node = node
        self._request = request
        self._strategy = strategy
        self._numa: int | None = None
        self.found: Allocation | DeviceRefusal | None = None

    @property
    def kinds(self) -> Collection[str]:
        """The device types that are asked for."""
        return self._request.asks.keys()

    def hints(self, nodes: Collection[int], *, narrowest: bool = False) -> Provider:
        hints = device_hints(self._node, self._request, nodes, self._strategy, narrowest=narrowest)
        if isinstance(hints, DeviceRefusal):
            self.found = hints
            return dict.fromkeys(self._request.asks, ())
        return hints

    def fits(self, mask: int | None) -> bool:
        return isinstance(self.find(mask), Allocation)

    def find(self, mask: int | None) -> Allocation | DeviceRefusal:
        """The devices on these NUMA nodes; None: on any."""
        self._numa = mask
        found = allocate(self._node, self._request, numa=mask, strategy=self._strategy)
        self.found = found
        return found

    def score(self, allocation: Allocation) -> int:
        """0-100, the mean over the types."""
        points = node_score(self._node, self._request, allocation, self._strategy, numa=self._numa)
        return points // max(1, len(allocation.devices))

    def opened(self, allocation: Allocation) -> int:
        """How many devices it is the first to use."""
        return sum(
            1
            for kind, chosen in allocation.devices.items()
            for each in chosen
            if self._node.stocks[kind].idle >> each.minor & 1
        )


SAME_CARDS: Final = 500
"""The score of NUMA nodes that give the GPUs which would be chosen from all of them: more than CPU
and memory score together."""


def device_hints(
    node: NodeDevices,
    request: DeviceRequest,
    numa_nodes: Iterable[int],
    strategy: Strategy | None = None,
    *,
    narrowest: bool = False,
) -> dict[str, tuple[TopologyHint, ...]] | DeviceRefusal:
    """By device type; all types have the same hints, as they are chosen together: the sets of these
    NUMA nodes (all of the machine's) that an allocation fits on, the smallest of them preferred. A
    Refusal where the devices of all together do not do. `narrowest`: no sets but the preferred."""
    nodes = set(numa_nodes)
    everywhere = of_nodes(nodes)
    widest = allocate(node, request, numa=everywhere, strategy=strategy)
    if isinstance(widest, DeviceRefusal):
        return widest
    cards = _cards(widest)
    found: list[tuple[int, bool]] = []
    for mask in subsets(nodes):
        if narrowest and found and mask.bit_count() > found[0][0].bit_count():
            break
        allocation: Allocation | DeviceRefusal = widest
        if mask != everywhere:
            allocation = allocate(node, request, numa=mask, strategy=strategy)
        if isinstance(allocation, Allocation):
            found.append((mask, _cards(allocation) == cards))
    fewest = min(mask.bit_count() for mask, _ in found)
    hints = tuple(
        TopologyHint(mask, mask.bit_count() == fewest, SAME_CARDS if same else 0)
        for mask, same in found
    )
    return dict.fromkeys(request.asks, hints)


def _cards(allocation: Allocation) -> frozenset[int]:
    return frozenset(each.minor for each in allocation.devices.get(DeviceType.GPU, ()))
