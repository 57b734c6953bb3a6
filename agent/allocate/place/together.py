"""Pods that come to one node together: what each of them would get beside the others.

Whole cards are first found for all of them as for one pod, so that the best links are between them;
each pod then gets its part of these. Where that can't be (a NUMA policy or a partition table admits
no set so large), one pod after the other is offered what suits it best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agent.allocate.claims import Claim
from agent.allocate.devices.allocation import DeviceRequest
from agent.allocate.devices.request import Ask
from agent.allocate.place.answer import Granted, Refused
from agent.allocate.place.holding import Holding
from agent.allocate.place.place import Place
from agent.allocate.place.wish import Wish
from agent.model.device_allocation import Holdings
from agent.model.device_wishes import DeviceWishes
from agent.model.devices import DeviceType


def together(place: Place, wishes: Sequence[Wish]) -> tuple[Granted, ...] | Refused:
    """One offer for each wish, all of which can be committed; the wishes have uids of their own and
    one shape. Changes nothing."""
    outside = _outside(place, wishes)
    if outside:
        trial = place.without(())
        trial.record(Holding(_OTHERS, _OTHERS, Claim(_OTHERS, _OTHERS), outside))
        found = _in_turn(trial, wishes)
        if not isinstance(found, Refused):
            return found
    return _in_turn(place.without(()), wishes)


def _in_turn(trial: Place, wishes: Sequence[Wish]) -> tuple[Granted, ...] | Refused:
    granted = []
    for wish in wishes:
        found = trial.offer(wish)
        if isinstance(found, Refused):
            return found
        trial.commit(found)
        granted.append(found)
    return tuple(granted)


def _outside(place: Place, wishes: Sequence[Wish]) -> Holdings:
    """The cards that are none of the best set for all pods; nothing where there is no such set."""
    inventory, request = place.facts.inventory, wishes[0].devices
    cards = request.asks.get(DeviceType.GPU) if request is not None else None
    if len(wishes) < 2 or inventory is None or cards is None or cards.shared:
        return {}
    found = place.offer(_as_one(wishes, cards))
    if not isinstance(found, Granted) or found.allocation is None:
        return {}
    chosen = {each.minor for each in found.allocation.devices[_GPU]}
    fleet = inventory.fleets[_GPU]
    return {(_GPU, minor): total for minor, total in fleet.totals.items() if minor not in chosen}


def _as_one(wishes: Sequence[Wish], cards: Ask) -> Wish:
    """The cards of all as one pod's wish, and nothing else."""
    size, first = len(wishes), wishes[0]
    total = {name: amount * size for name, amount in cards.total.items()}
    asks = {_GPU: Ask(total, cards.count * size, cards.per)}
    hints = first.devices.wishes.hints if first.devices else {}
    return msgspec.structs.replace(
        first,
        ask=msgspec.structs.replace(first.ask, owner=False, requests={}),
        devices=DeviceRequest(asks, DeviceWishes(hints=hints)),
    )


_GPU: Final = DeviceType.GPU.value
_OTHERS: Final = "cards outside"
