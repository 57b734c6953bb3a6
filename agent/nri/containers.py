"""The runtime's containers: their values by its reports and by the requests since."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from agent.hooks import cpuset
from agent.hooks.requests import UNCHANGED, Changes
from agent.model.notifications import RequestedResources
from agent.model.snapshot import NOTHING, Snapshot
from agent.nri.messages import NriContainer

_EXPECTED_CPUSETS: Final = 4
"""Of each container: a creation or change, another one at the same time, and the runtime's values
after each."""


class Containers:
    """`version` grows with everything that may make a container differ from what is wanted."""

    def __init__(self) -> None:
        self._present: dict[str, NriContainer] = {}
        self._expected: dict[str, deque[str]] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._present)

    def replace(self, containers: Iterable[NriContainer]) -> None:
        """The runtime reported all containers."""
        self.version += 1
        self._present = {each.id: each for each in containers}
        self._expected = {}
        for each in self._present.values():
            self.expect(each.id, each.asked.cpuset)

    def put(self, container: NriContainer) -> None:
        """One exists."""
        self.version += 1
        self._present[container.id] = container
        self.expect(container.id, container.asked.cpuset)

    def expect(self, container_id: str, cpuset: str) -> None:
        """The runtime has these CPUs of a container, or is asked for them."""
        expected = self._expected.setdefault(container_id, deque(maxlen=_EXPECTED_CPUSETS))
        expected.append(cpuset)

    def told(self, container_id: str, asked: RequestedResources) -> None:
        """The runtime was asked for these values; an unreported container stays unknown."""
        before = self._present.get(container_id)
        if before is not None and before.asked != asked:
            self.version += 1
            self._present[container_id] = msgspec.structs.replace(before, asked=asked)
            self.expect(container_id, asked.cpuset)

    def drop(self, container_id: str) -> None:
        """One that ended."""
        self._present.pop(container_id, None)
        self._expected.pop(container_id, None)

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._present

    def asked(self, container_id: str) -> RequestedResources | None:
        """The values that the runtime was asked for last, None for an unreported container."""
        present = self._present.get(container_id)
        return None if present is None else present.asked

    def strange(self, container: NriContainer) -> str | None:
        """The last requested cpuset, when the runtime has another one than the container had or was
        asked for shortly before; otherwise None. Changes by the CRI and by NRI are concurrent, and
        containerd reads a container before it waits for the lock of NRI (internal/cri/nri,
        UpdateContainerResources): a request may show a container as it was before a change that has
        ended."""
        expected = self._expected.get(container.id)
        if not expected or container.asked.cpuset in expected:
            return None
        return expected[-1]

    def differing(self, snapshot: Snapshot) -> Iterator[tuple[NriContainer, Changes]]:
        """The containers whose values differ from the agent's, with the changes. A container that
        must not be created yet is not changed either."""
        for each in self._present.values():
            wanted = snapshot.containers.get(each.id, NOTHING)
            changes = cpuset.missing(wanted, each.asked)
            if changes != UNCHANGED and not wanted.blocked:
                yield each, changes
