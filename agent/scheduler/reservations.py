"""What was promised to pods that no watch has shown to be bound yet."""

from __future__ import annotations

import msgspec

from agent.allocate.place.holding import Holding


class Reservation(msgspec.Struct, frozen=True):
    """`until`: when the API server is asked what became of the Binding that it took, or may have
    taken; None while that is under way, and for what is held for a group."""

    node: str
    holding: Holding
    until: float | None = None

    @property
    def uid(self) -> str:
        return self.holding.uid

    @property
    def title(self) -> str:
        """The pod's namespace/name."""
        return self.holding.title

    @property
    def sent(self) -> bool:
        """Only the API server can say by now whether the pod is there."""
        return self.until is not None

    def over(self, now: float) -> bool:
        return self.until is not None and now >= self.until


class Reservations:
    """By pod uid. One thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, Reservation] = {}

    def get(self, uid: str) -> Reservation | None:
        return self._kept.get(uid)

    def put(self, reservation: Reservation) -> None:
        """In place of an earlier one of the same pod."""
        self._kept[reservation.uid] = reservation

    def pop(self, uid: str) -> Reservation | None:
        return self._kept.pop(uid, None)

    def overdue(self, now: float) -> tuple[Reservation, ...]:
        return tuple(each for each in self._kept.values() if each.over(now))
