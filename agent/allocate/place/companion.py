"""The devices that a pod asks for, in the merge with its CPUs and memory."""

from __future__ import annotations

from collections.abc import Collection

from agent.allocate.devices.allocation import Allocation, DeviceRequest, allocate, node_score
from agent.allocate.devices.hints import device_hints
from agent.allocate.devices.refusal import Refusal
from agent.allocate.devices.state import NodeDevices
from agent.allocate.numa.hint import Provider
from agent.allocate.offer import Declined, Offer
from agent.allocate.place.answer import Granted, Refused, refused
from agent.allocate.place.wish import Wish
from agent.allocate.reasons import Reason
from agent.model.policies import NumaStrategy


class DeviceCompanion:
    """Of one pod on one node as it stands; remembers what it gave last, or why it gave nothing."""

    def __init__(self, node: NodeDevices, request: DeviceRequest, strategy: NumaStrategy) -> None:
        self._node = node
        self._request = request
        self._strategy = strategy
        self._numa: int | None = None
        self.found: Allocation | Refusal | None = None

    @property
    def kinds(self) -> Collection[str]:
        """The device types that are asked for."""
        return self._request.asks.keys()

    def hints(self, nodes: Collection[int], *, narrowest: bool = False) -> Provider:
        hints = device_hints(self._node, self._request, nodes, self._strategy, narrowest=narrowest)
        if isinstance(hints, Refusal):
            self.found = hints
            return dict.fromkeys(self._request.asks, ())
        return hints

    def fits(self, mask: int | None) -> bool:
        return isinstance(self.find(mask), Allocation)

    def find(self, mask: int | None) -> Allocation | Refusal:
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


def offered(
    wish: Wish, offer: Offer | None, companion: DeviceCompanion | None, score: int | None
) -> Granted | Refused:
    """Both voices' offers as one. `score`: of what is no device, None where nothing is asked."""
    scores = [] if score is None else [score]
    order = (0, 0) if offer is None else (offer.price.split_cores, offer.price.numa_nodes)
    if companion is None:
        return Granted(wish, offer, score=sum(scores), order=order)
    found = companion.found or companion.find(None)
    if not isinstance(found, Allocation):
        return refused(found)
    scores.append(companion.score(found))
    mean = sum(scores) // len(scores)
    return Granted(wish, offer, found, mean, (*order, companion.opened(found)))


def declined(answer: Declined, companion: DeviceCompanion | None) -> Refused:
    """What the devices lack is told by themselves, not by the merge."""
    if companion is None or not isinstance(companion.found, Refusal):
        return refused(*answer.rejections)
    others = [
        each
        for each in answer.rejections
        if each.reason is not Reason.NUMA_COMPANION and each.resource not in companion.kinds
    ]
    return refused(companion.found, *others)
