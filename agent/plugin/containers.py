"""What the runtime holds of every container, as it told us and as it was told since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from agent.hooks import cpuset
from agent.hooks.changes import UNCHANGED, Changes
from agent.model.doorbell import Asked
from agent.model.snapshot import Snapshot
from agent.model.wanted import NOTHING
from agent.runtime.nri.messages import Seen


class Containers:
    """`version` grows with everything that may make a container differ from what is wanted.
    `telling`: the id of the one that the runtime is just being asked to change, and to what."""

    def __init__(self) -> None:
        self._present: dict[str, Seen] = {}
        self.version = 0
        self.telling: tuple[str, Asked] | None = None

    def __len__(self) -> int:
        return len(self._present)

    def replace(self, containers: Iterable[Seen]) -> None:
        """The runtime told of all."""
        self.version += 1
        self._present = {each.id: each for each in containers}

    def put(self, container: Seen) -> None:
        """One exists."""
        self.version += 1
        self._present[container.id] = container

    def told(self, container_id: str, asked: Asked) -> None:
        """The runtime was asked for this; a container that it did not tell of stays unknown."""
        before = self._present.get(container_id)
        if before is not None and before.asked != asked:
            self.version += 1
            self._present[container_id] = msgspec.structs.replace(before, asked=asked)

    def drop(self, container_id: str) -> None:
        """One that ended."""
        self._present.pop(container_id, None)

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._present

    def asked(self, container_id: str) -> Asked | None:
        """What the runtime was asked for last, None for a container that it did not tell of."""
        present = self._present.get(container_id)
        return None if present is None else present.asked

    def strange(self, container: Seen) -> str | None:
        """The cpuset that a container was given, where it has another; a change under way may have
        been made or not."""
        before = self.asked(container.id)
        if before is None or container.asked.cpuset == before.cpuset:
            return None
        telling_id, telling = self.telling or ("", before)
        if telling_id == container.id and container.asked.cpuset == telling.cpuset:
            return None
        return before.cpuset

    def differing(self, snapshot: Snapshot) -> Iterator[tuple[Seen, Changes]]:
        """Those of which the runtime holds something else than the agent wants, and what to change.
        One that must not be created yet is not changed either."""
        for each in self._present.values():
            wanted = snapshot.containers.get(each.id, NOTHING)
            changes = cpuset.missing(wanted, each.asked)
            if changes != UNCHANGED and not wanted.blocked:
                yield each, changes
