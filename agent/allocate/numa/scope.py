"""What a merge is made for: each container, or the pod as a whole."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from agent.allocate.numa.hint import Merged


class TopologyManagerScope(enum.StrEnum):
    """The kubelet's `topologyManagerScope`."""

    CONTAINER = "container"
    POD = "pod"


class AdmitFailure(enum.StrEnum):
    """Where an admission ended: the merge was not aligned, or nothing could be allocated there."""

    ALIGNMENT = "alignment"
    ALLOCATION = "allocation"


class AdmitResult(msgspec.Struct, frozen=True):
    """The affinity of each container in order, and the container that was refused, with the
    reason."""

    affinities: tuple[tuple[str, Merged], ...]
    refused: tuple[str, AdmitFailure] | None = None

    @property
    def admit(self) -> bool:
        return self.refused is None


def admit(
    scope: TopologyManagerScope,
    containers: Sequence[str],
    merge: Callable[[str | None], Merged],
    allocate: Callable[[str, int | None], bool],
) -> AdmitResult:
    """Containers in their order, init containers first. `merge`: of a container's hints as they are
    after the allocations before it, or, given None, of the pod's; `allocate` takes the mask and
    returns whether it could allocate. The first refusal ends the admission; the caller releases
    what was allocated."""
    affinities: list[tuple[str, Merged]] = []
    whole = merge(None) if scope is TopologyManagerScope.POD and containers else None
    for container in containers:
        merged = merge(container) if whole is None else whole
        affinities.append((container, merged))
        refusal = None
        if not merged.admit:
            refusal = AdmitFailure.ALIGNMENT
        elif not allocate(container, merged.mask):
            refusal = AdmitFailure.ALLOCATION
        if refusal is not None:
            return AdmitResult(tuple(affinities), (container, refusal))
    return AdmitResult(tuple(affinities))
