"""Several pods for one node: the offer of each, all of which can be committed together. Whole cards
are first chosen for all of them as for one pod, so that the best links are between them; each pod
then gets its part of these. When that is impossible (a NUMA policy or a partition table admits no
set so large), each pod in turn gets its own best offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agent.allocate.devices.allocation import DeviceRequest
from agent.allocate.devices.request import TypeRequest
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import Granted, Refused
from agent.allocate.node_allocator.holding import AssignedPod
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.allocate.pod_allocation import PodAllocation
from agent.model.device_allocation import Holdings
from agent.model.device_wishes import DeviceWishes
from agent.model.devices import DeviceType


def together(
    place: NodeAllocator, pod_requests: Sequence[PodRequest]
) -> tuple[Granted, ...] | Refused:
    """One offer for each request, all of which can be committed; the requests have different uids
    and the same content. Changes nothing."""
    outside = _outside(place, pod_requests)
    if outside:
        trial = place.without(())
        trial.record(AssignedPod(_OTHERS, _OTHERS, PodAllocation(_OTHERS, _OTHERS), outside))
        found = _in_turn(trial, pod_requests)
        if not isinstance(found, Refused):
            return found
    return _in_turn(place.without(()), pod_requests)


def _in_turn(
    trial: NodeAllocator, pod_requests: Sequence[PodRequest]
) -> tuple[Granted, ...] | Refused:
    granted = []
    for pod_request in pod_requests:
        found = trial.offer(pod_request)
        if isinstance(found, Refused):
            return found
        trial.commit(found)
        granted.append(found)
    return tuple(granted)


def _outside(place: NodeAllocator, pod_requests: Sequence[PodRequest]) -> Holdings:
    """The cards outside the best set for all pods; empty without such a set."""
    inventory, request = place.facts.inventory, pod_requests[0].devices
    cards = request.asks.get(DeviceType.GPU) if request is not None else None
    if len(pod_requests) < 2 or inventory is None or cards is None or cards.shared:
        return {}
    found = place.offer(_as_one(pod_requests, cards))
    if not isinstance(found, Granted) or found.allocation is None:
        return {}
    chosen = {each.minor for each in found.allocation.devices[_GPU]}
    fleet = inventory.fleets[_GPU]
    return {(_GPU, minor): total for minor, total in fleet.totals.items() if minor not in chosen}


def _as_one(pod_requests: Sequence[PodRequest], cards: TypeRequest) -> PodRequest:
    """The cards of all as one pod's request, and nothing else."""
    size, first = len(pod_requests), pod_requests[0]
    total = {name: amount * size for name, amount in cards.total.items()}
    asks = {_GPU: TypeRequest(total, cards.count * size, cards.per)}
    hints = first.devices.wishes.hints if first.devices else {}
    return msgspec.structs.replace(
        first,
        ask=msgspec.structs.replace(first.ask, owner=False, requests={}),
        devices=DeviceRequest(asks, DeviceWishes(hints=hints)),
    )


_GPU: Final = DeviceType.GPU.value
_OTHERS: Final = "cards outside"
