"""An account of a node as Koordinator keeps it, where ours differs on purpose."""

from __future__ import annotations

from collections.abc import Iterable

from agent.allocate.account import Account
from agent.allocate.claims import Claim
from agent.allocate.node import Amounts, NodeFacts


class TheirAccount(Account):
    """`recorded_only`: CPUs that a pod owns without recorded amounts are still their NUMA node's to
    give. `unpaid`: what a NUMA node has left of amplified CPU may all be bound."""

    def __init__(
        self, facts: NodeFacts, claims: Iterable[Claim], *, recorded_only: bool, unpaid: bool
    ) -> None:
        super().__init__(facts)
        self._amplified = facts.amplified
        self._recorded_only = recorded_only
        self._unpaid = unpaid
        for claim in claims:
            self.add(claim)

    def available(self) -> Amounts:
        left = self.recorded() if self._recorded_only else super().available()
        if self._unpaid:
            for amounts in left.values():
                if "cpu" in amounts:
                    amounts["cpu"] = self._amplified(amounts["cpu"])
        return left
