"""The account of CPUs that pods hold: how often each is taken, and with which exclusive policy.

Counts are kept as masks, the k-th being the CPUs that are held more than k times, so that a pod
comes and goes with a few bit operations. A CPU that several pods hold is exclusive at a level while
any of them has that policy: the account depends on the pods, never on the order they came in.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.policies import ExclusivePolicy


class Holdings(msgspec.Struct, frozen=True):
    """Each field is a tuple of masks, none empty; `[k]`: the CPUs held by more than k pods (of that
    exclusive policy)."""

    held: tuple[int, ...] = ()
    core_exclusive: tuple[int, ...] = ()
    node_exclusive: tuple[int, ...] = ()

    def adding(
        self, cpus: int, exclusive: ExclusivePolicy = ExclusivePolicy.NONE, times: int = 1
    ) -> Holdings:
        """With one pod more, or `times` alike, on these CPUs."""
        new = self
        for _ in range(times):
            new = Holdings(
                _more(new.held, cpus),
                _more(new.core_exclusive, cpus if exclusive is _CORE else 0),
                _more(new.node_exclusive, cpus if exclusive is _NODE else 0),
            )
        return new

    def removing(
        self, cpus: int, exclusive: ExclusivePolicy = ExclusivePolicy.NONE, times: int = 1
    ) -> Holdings:
        """The reverse of `adding`; ValueError where a CPU is not held so."""
        new = self
        for _ in range(times):
            new = Holdings(
                _fewer(new.held, cpus),
                _fewer(new.core_exclusive, cpus if exclusive is _CORE else 0),
                _fewer(new.node_exclusive, cpus if exclusive is _NODE else 0),
            )
        return new

    def full(self, max_ref: int) -> int:
        """The CPUs that no further pod may take where `max_ref` may share one (at least 1)."""
        if max_ref < 1:
            raise ValueError(f"max_ref: {max_ref} pods cannot share a CPU")
        return self.held[max_ref - 1] if len(self.held) >= max_ref else 0


NOTHING_HELD: Final = Holdings()
_CORE: Final = ExclusivePolicy.PCPU_LEVEL
_NODE: Final = ExclusivePolicy.NUMA_NODE_LEVEL


def _more(levels: tuple[int, ...], cpus: int) -> tuple[int, ...]:
    if not cpus:
        return levels
    raised = []
    for level in levels:
        raised.append(level | cpus)
        cpus &= level
    return (*raised, cpus) if cpus else tuple(raised)


def _fewer(levels: tuple[int, ...], cpus: int) -> tuple[int, ...]:
    lowered = []
    for level in reversed(levels):
        lowered.append(level & ~cpus)
        cpus &= ~level
    if cpus:
        raise ValueError(f"CPU mask {cpus:#x} is not held")
    return tuple(level for level in reversed(lowered) if level)
