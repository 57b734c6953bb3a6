"""How Koordinator's plugin keeps account of a node and tries its NUMA nodes, where ours differs on
purpose."""

from __future__ import annotations

from collections.abc import Collection

from agent.allocate.node_allocation import Amounts, NodeAllocation, TopologyOptions
from agent.allocate.policies_in_force import InForce
from agent.allocate.reasons import Rejection
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.trials import Trials
from agent.model.policies import BindPolicy


class RecordedAccount(NodeAllocation):
    """CPUs that a pod owns without recorded amounts are still their NUMA node's to give."""

    def available(self) -> Amounts:
        return self.recorded()


class TheirTrials(Trials):
    """`loose`: a NUMA node has all that its amounts tell, whatever CPUs are free and what they cost
    amplified, unless a bind policy is required. `by_position`: an amount is split in the order of
    what the NUMA nodes 0, 1, ... have, whichever nodes these are. `unbound`: for a pod without CPU
    a NUMA node has no more CPU than suits the policy by which the node binds others."""

    def __init__(
        self,
        facts: TopologyOptions,
        account: NodeAllocation,
        ask: ResourceRequest,
        policies: InForce,
        *,
        loose: bool,
        by_position: bool,
        unbound: bool,
    ) -> None:
        self._loose = loose
        self._by_position = by_position
        super().__init__(facts, account, ask, policies)
        said = facts.policies
        forced = BindPolicy.FULL_PCPUS if said.full_pcpus_only else said.bind_label
        if unbound and policies.bind is None and forced is not None:
            self._keep_fitting(forced)

    def trim(self) -> None:
        if not self._loose:
            super().trim()
            return
        bind = self._policies.bind
        if bind is not None and bind.required:
            self._keep_fitting(bind.policy)

    def _keep_fitting(self, policy: BindPolicy) -> None:
        layout = self._facts.layout
        if layout is None:
            return
        for area in layout.nodes:
            free = self._free & area.cpus
            whole = policy is BindPolicy.FULL_PCPUS
            fitting = layout.expand(layout.whole(free)) if whole else layout.touched(free)
            for amounts in (self.available, self._recorded):
                if "cpu" in (held := amounts.get(area.id, {})):
                    held["cpu"] = min(held["cpu"], 1000 * fitting.bit_count())

    def lacks(self, nodes: Collection[int]) -> Rejection | None:
        found = self.on_nodes(nodes)
        return found if isinstance(found, Rejection) else None

    def split(self, name: str, asked: int, room: dict[int, int]) -> dict[int, int]:
        order = sorted(room, key=lambda node: (room[node], node))
        if self._by_position:
            order = _insertion_sorted(sorted(room), self.available, name)
        unit, shares = self.unit(name), {}
        for index, node in enumerate(order):
            share = min(room[node], asked // unit // (len(order) - index) * unit)
            if share > 0:
                shares[node] = share
                asked -= share
        return shares


def _insertion_sorted(nodes: list[int], available: Amounts, name: str) -> list[int]:
    """By comparing places instead of what stands there."""
    have = [available.get(place, {}).get(name, 0) for place in range(len(nodes))]
    for end in range(1, len(nodes)):
        place = end
        while place and have[place] < have[place - 1]:
            nodes[place], nodes[place - 1] = nodes[place - 1], nodes[place]
            place -= 1
    return nodes
