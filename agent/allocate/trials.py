"""What a pod would get of given NUMA nodes: its amounts split over them, and its CPUs in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate import accumulator, burst, split
from agent.allocate.accumulator import Shortage
from agent.allocate.node_allocation import NodeAllocation
from agent.allocate.numa.resource_hints import MaskScores
from agent.allocate.offer import Price
from agent.allocate.packing import AllocationStep, CpuRequest
from agent.allocate.policies_in_force import InForce
from agent.allocate.reasons import Reason, Rejection
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.topology_options import Amounts, TopologyOptions
from agent.model.policies import BindPolicy

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_WEIGHTS: Final = {"cpu": 1, "memory": 1}


class Allotment(msgspec.Struct, frozen=True):
    """`cpus`: a mask, 0 for a pod that shares; `amounts`: by NUMA node, empty where the pod is not
    held to any; `steps`: how the CPUs were found."""

    cpus: int
    amounts: Amounts
    steps: tuple[AllocationStep, ...] = ()


class Trials:
    """Trials for one pod on one node as it stands."""

    def __init__(
        self,
        facts: TopologyOptions,
        account: NodeAllocation,
        ask: ResourceRequest,
        policies: InForce,
    ) -> None:
        self._facts = facts
        self._account = account
        self._ask = ask
        self._policies = policies
        self._free = account.free_cpus()
        self.totals = account.totals()
        self._known = {name for amounts in self.totals.values() for name in amounts}
        self.available = account.available()
        self._recorded = account.recorded()
        if policies.bind:
            self.trim()

    @cached_property
    def pools(self) -> dict[int, int]:
        """See `burst`."""
        return burst.pools(self._facts, self._account)

    def anywhere(self) -> Allotment | Rejection:
        """CPUs from the whole machine, for a pod that no NUMA policy concerns."""
        layout, request = self._facts.layout, self._request
        if layout is None or request is None:
            return Allotment(0, {})
        taken = accumulator.take(
            layout, self._free, self._account.holdings, request, self._facts.max_ref
        )
        if isinstance(taken, Shortage):
            return _rejection(taken)
        return Allotment(taken.cpus, {}, taken.steps)

    def lacks(self, nodes: Collection[int]) -> Rejection | None:
        """Why these NUMA nodes do not do, None where `on_nodes` finds all that is asked."""
        if self._have_enough(nodes):
            return None
        amounts = self._amounts(nodes)
        if isinstance(amounts, Rejection):
            return amounts
        shares = self._shares(amounts, nodes)
        if isinstance(shares, Rejection):
            return shares
        layout = self._facts.layout
        if layout is None or len(layout.sizes) <= 1:
            # The room was trimmed to what suits the bind policy, and equal cores add up to it.
            return None
        found = self._bound(amounts, shares)
        return found if isinstance(found, Rejection) else None

    def on_nodes(self, nodes: Collection[int]) -> Allotment | Rejection:
        """All that is asked from these NUMA nodes. Resources that no NUMA node has are not theirs
        to give; a pod that bursts fits its limit into the pools of those that it is held to."""
        amounts = self._amounts(nodes)
        if isinstance(amounts, Rejection):
            return amounts
        shares = self._shares(amounts, nodes)
        return shares if isinstance(shares, Rejection) else self._bound(amounts, shares)

    def score(self, mask: int) -> int:
        """0-100: how good these NUMA nodes are by the profile's strategy, with the pod on them."""
        return self._scores.of(mask)

    def price(self, found: Allotment) -> Price:
        """Of what was found, before it is given."""
        layout = self._facts.layout
        used = set(found.amounts)
        split_cores = 0
        if layout:
            used.update(layout.node_ids(found.cpus))
            touched = layout.touched(found.cpus) & layout.whole(self._free)
            split_cores = (touched & ~layout.whole(found.cpus)).bit_count()
        mask = sum(1 << node for node in used or self.totals)
        return Price(self.score(mask), len(used), split_cores)

    @property
    def policies(self) -> InForce:
        """Those that hold for the pod."""
        return self._policies

    def numa_knows(self, name: str) -> bool:
        """Whether any NUMA node has this resource."""
        return name in self._known

    def left(self, name: str, *, together: bool) -> int:
        """What the NUMA nodes have left of a resource, all together or the one that has most."""
        amounts = [held.get(name, 0) for held in self.available.values()]
        return sum(amounts) if together else max(amounts, default=0)

    def split(self, name: str, asked: int, room: dict[int, int]) -> dict[int, int]:
        """An amount over NUMA nodes that have so much left."""
        way = split.packed if self._facts.profile.packed else split.evenly
        return way(asked, room, self.unit(name))

    def _have_enough(self, nodes: Collection[int]) -> bool:
        """By sums alone, where these decide."""
        if self._units is None:
            return False
        for name, missing, unit in self._units:
            for node in nodes:
                missing -= self.available[node].get(name, 0) // unit
            if missing > 0:
                return False
        return True

    @cached_property
    def _units(self) -> list[tuple[str, int, int]] | None:
        """Where NUMA nodes can give what they have enough of together, in whole units: the name of
        each resource, how many units are asked, the size of one. None where that does not follow.
        """
        bind, layout = self._policies.bind, self._facts.layout
        if bind is None:
            if self._ask.burst_milli:
                return None
        elif (
            layout is None
            or not self.totals.keys() <= self._areas.keys()
            or (bind.required and len(layout.sizes) > 1)
        ):
            return None
        known = [name for name in self._ask.requests if name in self._known]
        asked = [(name, self._ask.requests[name], self.unit(name)) for name in known]
        if any(amount % unit for _, amount, unit in asked):
            return None
        return [(name, amount // unit, unit) for name, amount, unit in asked]

    @cached_property
    def _scores(self) -> MaskScores:
        profile, requests = self._facts.profile, self._ask.requests
        if self._policies.bind:
            requests = {**requests, "cpu": self._facts.amplified(requests["cpu"])}
        return MaskScores(
            requests,
            self._recorded,
            self.totals,
            profile.scoring or profile.strategy,
            profile.weights or _WEIGHTS,
        )

    def _amounts(self, nodes: Collection[int]) -> Amounts | Rejection:
        """What each node gives of the resources that NUMA nodes have."""
        limit = 0 if self._policies.bind else self._ask.burst_milli
        amounts: Amounts = {}
        for name, asked in self._ask.requests.items():
            if name not in self._known:
                continue
            room = {node: self.available.get(node, _NOTHING).get(name, 0) for node in nodes}
            if limit and name == "cpu":
                chosen = tuple(node for node in nodes if room[node] > 0)
                pool = sum(self.pools.get(node, 0) for node in chosen)
                if pool < limit:
                    return Rejection(Reason.NO_POOL_FITS, name, limit, pool, tuple(sorted(nodes)))
                shares = burst.amounts(asked, chosen, room)
            else:
                shares = self.split(name, asked, room)
            if (given := sum(shares.values())) < asked:
                return Rejection(Reason.NUMA_INSUFFICIENT, name, asked, given, tuple(sorted(nodes)))
            for node, share in shares.items():
                amounts.setdefault(node, {})[name] = share
        return amounts

    def _shares(self, amounts: Amounts, nodes: Collection[int]) -> dict[int, int] | Rejection:
        """How many CPUs each node gives; nothing of a pod that shares."""
        request, areas = self._request, self._areas
        if request is None:
            return {}
        shares: dict[int, int] = {}
        for node in nodes:
            if node in areas:
                free = (self._free & areas[node]).bit_count()
                share = min(free, amounts.get(node, _NOTHING).get("cpu", 0) // 1000)
                if share:
                    shares[node] = share
        if (given := sum(shares.values())) < request.count:
            asked, where = 1000 * request.count, tuple(sorted(nodes))
            return Rejection(Reason.NOT_ENOUGH_CPUS, "cpu", asked, 1000 * given, where)
        return shares

    def _bound(self, amounts: Amounts, shares: dict[int, int]) -> Allotment | Rejection:
        layout, request = self._facts.layout, self._request
        if layout is None or request is None:
            return Allotment(0, amounts)
        taken = accumulator.take_on_nodes(
            layout, self._free, self._account.holdings, request, shares, self._facts.max_ref
        )
        if isinstance(taken, Shortage):
            return _rejection(taken)
        return Allotment(taken.cpus, amounts, taken.steps)

    @cached_property
    def _request(self) -> CpuRequest | None:
        """None for a pod that shares, and without reported CPUs."""
        bind = self._policies.bind
        if bind is None or self._facts.layout is None:
            return None
        return CpuRequest(
            self._ask.requests["cpu"] // 1000,
            bind.policy,
            self._policies.exclusive,
            self._policies.strategy,
            required=bind.required,
            prefer_l3=self._facts.profile.prefer_l3,
        )

    @cached_property
    def _areas(self) -> dict[int, int]:
        """The CPUs of each NUMA node."""
        layout = self._facts.layout
        return {area.id: area.cpus for area in layout.nodes} if layout else {}

    def unit(self, name: str) -> int:
        """What an amount of a resource is a multiple of."""
        bind = self._policies.bind
        if name != "cpu" or bind is None:
            return 1
        whole_cores = bind.required and bind.policy is BindPolicy.FULL_PCPUS
        return 1000 * (self._facts.layout.threads if whole_cores and self._facts.layout else 1)

    def trim(self) -> None:
        """A node has no more CPU for an owner than it has free CPUs that suit a required policy,
        nor more than it can be paid for there."""
        layout, bind = self._facts.layout, self._policies.bind
        if layout is None or bind is None:
            return
        for area in layout.nodes:
            free = self._free & area.cpus
            if bind.required and bind.policy is BindPolicy.FULL_PCPUS:
                free = layout.expand(layout.whole(free))
            elif bind.required:
                free = layout.touched(free)
            most = 1000 * free.bit_count()
            room = self.available.get(area.id, {})
            if "cpu" in room:
                paid = min(room["cpu"], self._facts.amplified(most))
                room["cpu"] = self._facts.unamplified(paid)
            recorded = self._recorded.get(area.id, {})
            if bind.required and "cpu" in recorded:
                recorded["cpu"] = min(recorded["cpu"], most)


def _rejection(shortage: Shortage) -> Rejection:
    nodes = () if shortage.node is None else (shortage.node,)
    unmet = shortage.reason is Reason.BIND_POLICY_UNMET
    have = shortage.fitting if unmet else shortage.free
    return Rejection(shortage.reason, "cpu", 1000 * shortage.asked, 1000 * have, nodes)
