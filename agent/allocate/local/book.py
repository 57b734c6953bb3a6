"""Who owns what while one decision is made."""

from __future__ import annotations

from agent.allocate.local.claim import Claim


class Book:
    """Masks. `assignable` CPUs may be owned; `shared` are all that are owned or shared.

    CPUs of ended containers stay with their pod. `withheld`: CPUs that some container still runs
    on and is about to leave: nobody gets them before it has.
    """

    def __init__(self, assignable: int, shared: int) -> None:
        self.withheld = 0
        self.assignable = assignable
        self._shared = shared
        self._own: dict[tuple[str, str], int] = {}
        self._live = 0
        self._live_by_pod: dict[str, int] = {}
        self._ended = 0
        self._ended_by_pod: dict[str, int] = {}

    def own(self, claim: Claim) -> int:
        """What it owns, 0 for nothing."""
        return self._own.get(claim.key, 0)

    def give(self, claim: Claim, cpus: int) -> None:
        """The claim owns these CPUs and no others from now on."""
        before = self._own.get(claim.key, 0)
        self._own[claim.key] = cpus
        uid = claim.uid
        if claim.ended:
            self._ended |= cpus
            self._ended_by_pod[uid] = self._ended_by_pod.get(uid, 0) | cpus
        else:
            self._live = self._live & ~before | cpus
            self._live_by_pod[uid] = self._live_by_pod.get(uid, 0) & ~before | cpus

    def untaken(self, claim: Claim) -> int:
        """CPUs that are no other's who may not meet the claim's container there."""
        live = self._live & ~self._live_by_pod.get(claim.uid, 0) if claim.ended else self._live
        return self.assignable & ~live & ~self.ended_of_others(claim.uid)

    def free(self, claim: Claim) -> int:
        """CPUs that the claim may be given, beside what it owns."""
        taken = self._live | self.ended_of_others(claim.uid) | self.withheld
        return self.assignable & ~taken

    def reusable(self, claim: Claim) -> int:
        """Those of ended containers of its pod."""
        return self.free(claim) & self._ended_by_pod.get(claim.uid, 0)

    @property
    def pool(self) -> int:
        """What is shared."""
        return self._shared & ~(self._live | self._ended)

    def empties(self, *changes: tuple[Claim, int]) -> bool:
        """Whether the last shared CPUs would go if these claims owned these CPUs instead."""
        live = self._live
        for claim, _ in changes:
            live &= ~self.own(claim)
        for _, cpus in changes:
            live |= cpus
        return bool(self.pool) and not self._shared & ~(live | self._ended)

    def ended_of_others(self, uid: str) -> int:
        """What ended containers of other pods keep for those pods."""
        return self._ended & ~self._ended_by_pod.get(uid, 0)
