"""Grants: the CPUs of creations that the agent may not have seen yet."""

from __future__ import annotations

import time

import msgspec

from agent.hooks.cpuset import CpuGrant
from agent.model.snapshot import Snapshot

MOST = 256
"""Grants that are kept one by one."""


class Grants:
    """Every creation since the agent's last pass, by a number of its own and by container id. A new
    process does not know the creations of the last one: until the agent's next pass a grant without
    CPUs stands for them. It also stands for the oldest ones beyond `MOST`: an absent agent must not
    cost memory."""

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, CpuGrant] = {}
        self._ids: dict[str, int] = {}
        self._earlier: CpuGrant | None = CpuGrant(
            "", "an earlier time", None, answered_at=time.monotonic_ns()
        )

    def all(self) -> tuple[CpuGrant, ...]:
        earlier = () if self._earlier is None else (self._earlier,)
        return (*earlier, *self._open.values())

    def of(self, container_id: str) -> CpuGrant | None:
        """The grant of a container that was created through this frontend and not seen yet."""
        number = self._ids.get(container_id)
        return None if number is None else self._open.get(number)

    def open(self, grant: CpuGrant) -> int:
        """A creation is sent to the runtime; the number identifies it in `answered` and
        `failed`."""
        number = self._number()
        self._open[number] = grant
        return number

    def answered(self, number: int, container_id: str) -> None:
        """The runtime created the container."""
        grant = self._open.get(number)
        if grant is not None:
            self._open[number] = msgspec.structs.replace(grant, answered_at=time.monotonic_ns())
            self._ids[container_id] = number
            self._fold()

    def failed(self, number: int) -> None:
        """No answer, or an error: the container may exist until the agent's next pass."""
        grant = self._open.get(number)
        if grant is not None:
            self._open[number] = msgspec.structs.replace(grant, answered_at=time.monotonic_ns())
            self._fold()

    def gone(self, container_id: str) -> None:
        """The container was removed and holds nothing."""
        number = self._ids.pop(container_id, None)
        if number is not None:
            self._open.pop(number, None)

    def seen(self, snapshot: Snapshot) -> None:
        """Drops the grants that the agent's pass has seen."""
        if self._earlier is not None and self._earlier.seen_by(snapshot):
            self._earlier = None
        if any(grant.seen_by(snapshot) for grant in self._open.values()):
            self._open = {
                number: grant for number, grant in self._open.items() if not grant.seen_by(snapshot)
            }
            self._ids = {each: number for each, number in self._ids.items() if number in self._open}

    def _fold(self) -> None:
        if len(self._open) <= MOST:
            return
        answered = [number for number, each in self._open.items() if each.answered_at is not None]
        folded = set(answered[: len(answered) // 2])
        if not folded:
            return
        latest = max(self._open[number].answered_at or 0 for number in folded)
        self._earlier = CpuGrant("", "an earlier time", None, answered_at=latest)
        self._open = {number: each for number, each in self._open.items() if number not in folded}
        self._ids = {each: number for each, number in self._ids.items() if number in self._open}

    def _number(self) -> int:
        self._next += 1
        return self._next
