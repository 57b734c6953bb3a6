"""What a static policy has handed out: the value that its functions map to the next one."""

from __future__ import annotations

from typing import Final

import msgspec


class StaticState(msgspec.Struct, frozen=True):
    """CPU masks. `default`: what containers without CPUs of their own share; `assigned`: by pod uid
    and container. `reusable`: CPUs of ended or ending init containers of the one pod
    `reusable_of`, that placed a container last; its next containers may have them."""

    default: int
    assigned: dict[str, dict[str, int]] = {}
    reusable_of: str | None = None
    reusable: int = 0

    def held(self, uid: str, container: str) -> int:
        """The container's own CPUs; 0 where it has none."""
        return self.assigned.get(uid, _NOTHING).get(container, 0)

    def reusable_by(self, uid: str) -> int:
        return self.reusable if uid == self.reusable_of else 0

    def with_assigned(self, uid: str, container: str, cpus: int) -> dict[str, dict[str, int]]:
        """The assignments and this one."""
        return {**self.assigned, uid: {**self.assigned.get(uid, _NOTHING), container: cpus}}

    def without(self, uid: str, container: str) -> dict[str, dict[str, int]]:
        """The assignments but this one."""
        mine = {name: cpus for name, cpus in self.assigned[uid].items() if name != container}
        others = {other: held for other, held in self.assigned.items() if other != uid}
        return {**others, uid: mine} if mine else others


EMPTY: Final = StaticState(0)
_NOTHING: Final[dict[str, int]] = {}
