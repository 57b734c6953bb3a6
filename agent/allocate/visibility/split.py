"""The devices of a pod divided over its containers (docs/devices.md, "Who sees what"): the
annotation has the devices of the pod, and only the containers' requests show which containers
requested devices.

Containers that run together take from the front of the list, in the order of their specification:
whole devices first, so that no whole one consists of two halves. An init container ends before the
next begins: it takes from all that no earlier side-car has, and later ones may take the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.allocate.devices.request import RequestError, TypeRequest, asks
from agent.model.apiobjects import ApiPod
from agent.model.device_allocation import AllocatedDevice


class SplitError(ValueError):
    """Containers ask for more than their pod was given; the text names the first that lacks."""


class ContainerWish(msgspec.Struct, frozen=True):
    """The request of one container, by type. `init`: it runs before the others; `sidecar`: it keeps
    running while all later ones run."""

    name: str
    wishes: Mapping[str, TypeRequest] = {}
    init: bool = False
    sidecar: bool = False


def split(
    given: Sequence[AllocatedDevice], kind: str, containers: Sequence[ContainerWish]
) -> dict[str, tuple[int, ...]]:
    """By name what the containers that ask for devices of the type have: places in `given`, which
    is shared out from its front. `containers` in the order in which they start. Raises SplitError.
    """
    ordered = tuple(range(len(given)))
    asking = [each for each in containers if kind in each.wishes]
    if len(given) == 1 or len(asking) == 1:
        return {each.name: ordered for each in asking}
    staying = [each for each in asking if not each.init or each.sidecar]
    room = _Room(kind, given)
    taken = {}
    for each in sorted(staying, key=lambda each: (not each.sidecar, each.wishes[kind].shared)):
        taken[each.name] = room.take(each)
    for before, each in enumerate(asking):
        if each.name not in taken:
            room = _Room(kind, given)
            for earlier in asking[:before]:
                if earlier.sidecar:
                    room.take(earlier)
            taken[each.name] = room.take(each)
    return taken


class _Room:
    """What is left of each device; None of one that is taken whole."""

    def __init__(self, kind: str, given: Sequence[AllocatedDevice]) -> None:
        self._kind = kind
        self._given = given
        self._left: dict[int, dict[str, int] | None] = {
            place: dict(each.resources) for place, each in enumerate(given)
        }

    def take(self, container: ContainerWish) -> tuple[int, ...]:
        """Raises SplitError."""
        wish = container.wishes[self._kind]
        fitting = [place for place in self._left if self._fits(place, wish)]
        if len(fitting) < wish.count:
            raise SplitError(
                f"container {container.name} asks for {wish.count} of the {len(self._given)}"
                f" {self._kind} devices of its pod, and {len(fitting)} are left"
            )
        for place in fitting[: wish.count]:
            left = self._left[place]
            self._left[place] = (
                {name: amount - wish.per.get(name, 0) for name, amount in left.items()}
                if left and wish.shared
                else None
            )
        return tuple(fitting[: wish.count])

    def _fits(self, place: int, wish: TypeRequest) -> bool:
        left = self._left[place]
        if left is None or (not wish.shared and left != self._given[place].resources):
            return False
        return all(left[name] >= amount for name, amount in wish.per.items() if name in left)


def container_wishes(pod: ApiPod) -> tuple[ContainerWish, ...] | None:
    """In the order in which they start; None where what one asks for means something only together
    with what others do."""
    ordered = [(each, True) for each in pod.init_containers]
    ordered += [(each, False) for each in pod.containers]
    try:
        return tuple(
            ContainerWish(each.name, asks({**each.requests, **each.limits}), init, each.sidecar)
            for each, init in ordered
        )
    except RequestError:
        return None
