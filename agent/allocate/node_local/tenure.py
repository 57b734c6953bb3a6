"""The present owners of CPUs: by the last decision, otherwise by cgroups.

A container owns its CPUs when no other container runs on them. So does one that runs on exactly as
many CPUs as it requests, unless these are the CPUs that all others share: then a decision was
applied in part, and no container has to move. When nothing is left to share, a container that runs
alone may run on the rest as a sharing one: then its CPUs are its own only if their number is its
request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from agent.allocate.node_local.claim import LocalRequest
from agent.model.cpuset import EMPTY


class Tenure(msgspec.Struct, frozen=True):
    """`cpus`: the mask of the claim's CPUs, to check against those before it. `certain`: by the
    last decision, so that a part of it is kept too."""

    claim: LocalRequest
    cpus: int
    certain: bool


class Occupancy:
    """The CPUs in cgroups: which of them have more than one container that runs."""

    def __init__(self, claims: Sequence[LocalRequest], sharing: int) -> None:
        self._by_pod: dict[str, int] = {}
        self._any = sharing
        self._many = 0
        self._shared = sharing
        for claim in claims:
            if not claim.ended and claim.held:
                mask = claim.held.mask
                self._many |= self._any & mask
                self._any |= mask
                self._by_pod[claim.uid] = self._by_pod.get(claim.uid, 0) | mask

    def alone(self, claim: LocalRequest) -> bool:
        """Whether no other container runs on its CPUs; for an ended one others of its pod may."""
        held = (claim.held or EMPTY).mask
        others = self._many | self._shared
        if claim.ended:
            others |= self._any & ~self._by_pod.get(claim.uid, 0)
        return not held & others


def tenures(
    claims: Sequence[LocalRequest],
    occupancy: Occupancy,
    assignable: int,
    shared: int,
    sharing: int,
    fits: Callable[[int, int], bool],
) -> list[Tenure]:
    """In the order of admission; `claims` are sorted. Masks: `assignable` CPUs may be owned,
    `shared` are all that are owned or shared, `sharing` those of sharing containers. `fits`:
    whether so many CPUs could be given to a claim."""
    certain = [each for each in claims if each.owned]
    unknown = [
        (each, each.held.mask)
        for each in claims
        if each.owned is None and each.held and not each.held.mask & ~assignable
    ]
    alone = [each for each in unknown if occupancy.alone(each[0])]
    rest = shared
    for claim in certain:
        rest &= ~(claim.owned or EMPTY).mask
    for _, held in alone:
        rest &= ~held
    pool_known = bool(rest or sharing)
    proven = [
        (claim, held)
        for claim, held in alone
        if fits(held, claim.cpus) or (pool_known and not claim.ended)
    ]
    likely = [
        (claim, held)
        for claim, held in unknown
        if not claim.ended
        and held not in (rest, sharing)
        and fits(held, claim.cpus)
        and not occupancy.alone(claim)
    ]
    return [
        *(Tenure(each, (each.owned or EMPTY).mask, True) for each in certain if not each.ended),
        *(Tenure(each, (each.owned or EMPTY).mask, True) for each in certain if each.ended),
        *(Tenure(each, held, False) for each, held in proven if not each.ended),
        *(Tenure(each, held, False) for each, held in likely),
        *(Tenure(each, held, False) for each, held in proven if each.ended),
    ]
