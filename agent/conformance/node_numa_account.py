"""An account of a node as Koordinator keeps it, where ours differs on purpose."""

from __future__ import annotations

from collections.abc import Iterable

from agent.allocate.account import Account
from agent.allocate.claims import Claim
from agent.allocate.node import Amounts, NodeFacts


class TheirAccount(Account):
    """`recorded_only`: CPUs that a pod owns without recorded amounts are still their NUMA node's to
    give; but where any pod recorded something of the node, what amplification adds to them is gone.
    `unpaid`: what a NUMA node has left of amplified CPU may all be bound."""

    def __init__(
        self, facts: NodeFacts, claims: Iterable[Claim], *, recorded_only: bool, unpaid: bool
    ) -> None:
        super().__init__(facts)
        self._recorded_only = recorded_only
        self._unpaid = unpaid
        areas = facts.layout.nodes if facts.layout else ()
        self._cpus_of = {area.id: area.cpus for area in areas}
        self._node_facts = facts
        self._claims = tuple(claims)
        for claim in self._claims:
            self.add(claim)

    def recorded_used(self, node: int, name: str) -> int:
        if not self._recorded_only:
            return super().recorded_used(node, name)
        parts = [claim.amounts[node] for claim in self._claims if node in claim.amounts]
        amount = sum(part.get(name, 0) for part in parts)
        if name == "cpu" and parts:
            owned = 1000 * (self._cpus_of.get(node, 0) & self.holdings.full(1)).bit_count()
            amount += self._node_facts.amplified(owned) - owned
        return amount

    def recorded(self) -> Amounts:
        return {
            node: {
                name: max(0, total - self.recorded_used(node, name))
                for name, total in amounts.items()
            }
            for node, amounts in self.totals().items()
        }

    def available(self) -> Amounts:
        left = self.recorded() if self._recorded_only else super().available()
        if self._unpaid:
            for amounts in left.values():
                if "cpu" in amounts:
                    amounts["cpu"] = self._node_facts.amplified(amounts["cpu"])
        return left
