"""A trial allocation of a pod on given NUMA nodes: its amounts split over them, and its CPUs.

An amount is split evenly (`split_evenly`) or fills one NUMA node after the other (`split_packed`);
both order the nodes by their available amounts. CPUs of a pod that prefers FullPCPUs are split by
whole cores, as far as there are any, and the rest by single CPUs. Koordinator's function
(pkg/scheduler/plugins/nodenumaresource/resource_manager.go, tryBestToDistributeEvenly) compares
available amounts by position instead, so its order is wrong unless the nodes have the ids 0, 1, ...

Where memory counts on the NUMA nodes of a pod's CPUs, the memory of an owner comes from the NUMA
nodes that give its CPUs, also without a NUMA policy: if those have too little, its CPUs come from
the fewest NUMA nodes that have the memory too (NUMA topology scheduling proposal, NUMA memory
policy).

A pod with ConstrainedBurst shares CPUs on the fewest NUMA nodes whose pools fit its limit: a single
node, else the nodes with the largest pools. It can burst to its limit on these nodes (fine-grained
CPU orchestration proposal).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate import accumulator
from agent.allocate.accumulator import Shortage, Taken
from agent.allocate.layout import Layout
from agent.allocate.node_allocation import (
    Amounts,
    NodeAllocation,
    TopologyOptions,
    memory_of,
    split_evenly,
    split_packed,
)
from agent.allocate.numa.hint import ids, subsets
from agent.allocate.packing import AllocationStep, CpuExclusivity, CpuRequest, Terms
from agent.allocate.policies_in_force import InForce
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.score import MaskScores
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.policies import BindPolicy, NumaExclusive, Strategy
from agent.model.pod.resource_request import ResourceRequest

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_NO_CPU: Final[Mapping[int, int]] = MappingProxyType({})
_WEIGHTS: Final = {"cpu": 1, "memory": 1}


class Allotment(msgspec.Struct, frozen=True):
    """`cpus`: a mask, 0 for a pod that shares; `amounts`: by NUMA node, empty if the pod is not
    bound to any; `steps`: the steps that gave the CPUs."""

    cpus: int
    amounts: Amounts
    steps: tuple[AllocationStep, ...] = ()


class Price(msgspec.Struct, frozen=True):
    """The cost of an allotment. `score`: 0-100, by the strategy in force over CPU and memory of the
    NUMA nodes that the pod would use, or of the whole node if it is not bound to NUMA nodes.
    `numa_nodes`: the number of NUMA nodes that it would use. `split_cores`: the number of free
    whole cores that it would take only in part. `avoided`: see Bind."""

    score: int
    numa_nodes: int
    split_cores: int
    avoided: bool = False


class Trials:
    """Trials of one pod on one node in its current state. `downgrade`: see CpuRequest.
    `with_devices`: the pod gets devices too, which may be on each of its NUMA nodes. Trials raise
    TooComplexError when the `steps` are used up."""

    downgrade = True
    with_devices = False

    def __init__(
        self,
        options: TopologyOptions,
        account: NodeAllocation,
        request: ResourceRequest,
        policies: InForce,
        steps: Steps = UNCOUNTED,
    ) -> None:
        self._options = options
        self._account = account
        self._pod_request = request
        self._policies = policies
        self.steps = steps
        self._free = account.free_cpus()
        self.totals = account.totals()
        self._numa_resources = {name for amounts in self.totals.values() for name in amounts}
        self.available = account.available()
        self._recorded = account.recorded()
        self.trim()

    @cached_property
    def pools(self) -> dict[int, int]:
        """See `NodeAllocation.shared_pools`."""
        return self._account.shared_pools()

    def anywhere(self) -> Allotment | Refusal:
        """Takes CPUs from the whole machine, for a pod without a NUMA policy."""
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return Allotment(0, {})
        self.steps.take(self._steps_of_node * len(layout.nodes))
        taken = accumulator.take(
            layout, self._free, self._account.holdings, request, self._options.max_ref
        )
        if isinstance(taken, Shortage):
            return _rejection(taken)
        found = self._on_cpus(layout, taken)
        return self._where_memory_is(layout, found) if isinstance(found, Refusal) else found

    def lacks(self, nodes: Collection[int]) -> Refusal | None:
        """Why the pod does not fit these NUMA nodes, None if `on_nodes` finds an allotment."""
        self.steps.take(1 + len(nodes) * len(self._pod_request.requests) // 6)
        if self._have_enough(nodes):
            return None
        amounts = self._amounts(nodes)
        if isinstance(amounts, Refusal):
            return amounts
        shares = self._shares(amounts, nodes)
        if isinstance(shares, Refusal):
            return shares
        layout = self._options.layout
        if layout is None or len(layout.sizes) <= 1:
            # `trim` left only CPUs that suit the bind policy, and equal cores add up to the need.
            return None
        found = self._bound(amounts, shares)
        return found if isinstance(found, Refusal) else None

    def on_nodes(self, nodes: Collection[int]) -> Allotment | Refusal:
        """Takes all requested amounts from these NUMA nodes. Resources that no NUMA node has are
        ignored. The limit of a pod that bursts must fit the pools of the nodes that it is bound
        to."""
        amounts = self._amounts(nodes)
        if isinstance(amounts, Refusal):
            return amounts
        shares = self._shares(amounts, nodes)
        return shares if isinstance(shares, Refusal) else self._bound(amounts, shares)

    def whole_cores(self, mask: int) -> int:
        """The number of whole cores that the pod gets on these NUMA nodes, if it prefers FullPCPUs;
        0 for other pods."""
        if not self._whole_milli:
            return 0
        missing = self._pod_request.requests["cpu"]
        for node in ids(mask):
            missing -= self._whole_milli.get(node, 0)
        return (self._pod_request.requests["cpu"] - max(0, missing)) // self._core_milli

    def score(self, mask: int) -> int:
        """The score of these NUMA nodes, 0-100, by the strategy in force, with the pod on them."""
        self.steps.take(4 + mask.bit_count())
        return self._scores.of(mask)

    def exclusivity(self, mask: int) -> CpuExclusivity:
        """What the exclusive policy of the pod gets on these NUMA nodes, by a trial."""
        terms = self._terms
        if terms is None or not (terms.nodes_off or terms.cores_off):
            return CpuExclusivity.SATISFIED
        found = self.on_nodes(ids(mask))
        if isinstance(found, Refusal):
            return CpuExclusivity.SAME_CORES
        return terms.exclusivity(found.cpus)

    def price(self, found: Allotment) -> Price:
        """The price of an allotment before it is committed."""
        layout = self._options.layout
        used = set(found.amounts)
        split_cores = 0
        if layout:
            used.update(layout.node_ids(found.cpus))
            touched = layout.touched(found.cpus) & layout.whole(self._free)
            split_cores = (touched & ~layout.whole(found.cpus)).bit_count()
        mask = sum(1 << node for node in used or self.totals)
        bind = self._policies.bind
        avoided = bind is not None and bind.avoided
        return Price(self.score(mask), len(used), split_cores, avoided)

    @property
    def policies(self) -> InForce:
        """The policies in force for the pod."""
        return self._policies

    def numa_nodes_have(self, name: str) -> bool:
        """Whether any NUMA node reports this resource."""
        return name in self._numa_resources

    def left(self, name: str, *, together: bool) -> int:
        """The available amount of a resource: of all NUMA nodes `together`, or of the one that has
        most."""
        amounts = [held.get(name, 0) for held in self.available.values()]
        return sum(amounts) if together else max(amounts, default=0)

    def split(
        self,
        name: str,
        requested: int,
        room: dict[int, int],
        cpu_shares: Mapping[int, int] = _NO_CPU,
    ) -> dict[int, int]:
        """Splits an amount over NUMA nodes with this available amount each. `cpu_shares`:
        the CPU that the pod gets there."""
        unit = self.unit(name)
        if name != "cpu":
            return _in_order(requested, room, unit, cpu_shares, packed=self._packed)
        for packed in (True, False) if self._packed else (False,):
            if self._whole_milli:
                shares = self._by_cores(requested, room, packed=packed)
            else:
                shares = _in_order(requested, room, unit, packed=packed)
            if len(shares) == len(room) or not self._on_all_nodes:
                return shares
        return split_evenly(requested, room, unit)

    def _by_cores(self, requested: int, room: Mapping[int, int], *, packed: bool) -> dict[int, int]:
        whole = {node: min(left, self._whole_milli.get(node, 0)) for node, left in room.items()}
        shares = _in_order(requested, whole, self._core_milli, packed=packed)
        missing = requested - sum(shares.values())
        if missing:
            rest = {node: left - shares.get(node, 0) for node, left in room.items()}
            more = _in_order(missing, rest, self.unit("cpu"), shares, packed=packed)
            for node, share in more.items():
                shares[node] = shares.get(node, 0) + share
        return shares

    @cached_property
    def _packed(self) -> bool:
        """Whether amounts fill one NUMA node after the other. A pod with devices gets even parts,
        so that each device has CPUs nearby, unless the configuration says otherwise."""
        strategy, configured = self._policies.strategy, self._options.profile.packed
        if configured is None:
            return strategy is Strategy.MOST_ALLOCATED and not self.with_devices
        return configured and strategy is not Strategy.DISTRIBUTE_EVENLY

    @cached_property
    def _on_all_nodes(self) -> bool:
        """Whether the pod needs CPUs of all NUMA nodes that were chosen for it: for their memory,
        or to be a pod of several NUMA nodes for the NUMA exclusive policy."""
        required = self._policies.numa_exclusive is NumaExclusive.REQUIRED
        return required or bool(self.counted_memory)

    @cached_property
    def counted_memory(self) -> dict[str, int]:
        """The requested memory and hugepages that count on the NUMA nodes which report them."""
        if not self._options.counts_memory:
            return {}
        requested = memory_of(self._pod_request.requests)
        return {name: amount for name, amount in requested.items() if name in self._numa_resources}

    def left_of(self, name: str, nodes: Collection[int]) -> dict[int, int]:
        """The available amounts of a resource on these NUMA nodes."""
        return {node: self.available.get(node, _NOTHING).get(name, 0) for node in nodes}

    def with_memory(
        self, nodes: Collection[int], cpu_shares: Mapping[int, int] = _NO_CPU
    ) -> Amounts | Refusal:
        """The memory that counts on these NUMA nodes, on which the pod has CPUs;
        `cpu_shares`: see `split`."""
        amounts: Amounts = {}
        for name, requested in self.counted_memory.items():
            shares = self.split(name, requested, self.left_of(name, nodes), cpu_shares)
            if (given := sum(shares.values())) < requested:
                return Refusal(Reason.NUMA_INSUFFICIENT, name, requested, given, tuple(nodes))
            for node, share in shares.items():
                amounts.setdefault(node, {})[name] = share
        return amounts

    def _on_cpus(self, layout: Layout, taken: Taken) -> Allotment | Refusal:
        nodes = layout.node_ids(taken.cpus)
        cpu_shares = {node: (taken.cpus & self._areas[node]).bit_count() for node in nodes}
        amounts = (
            self.with_memory(nodes, cpu_shares) if self._account.counts_memory_of(nodes) else {}
        )
        if isinstance(amounts, Refusal):
            return amounts
        return Allotment(taken.cpus, amounts, taken.steps)

    def _where_memory_is(self, layout: Layout, lacking: Refusal) -> Allotment | Refusal:
        """CPUs of the fewest NUMA nodes that have the CPUs and the memory. Among sets of equally
        many NUMA nodes the exclusive policy decides, then the whole cores that a preferred
        FullPCPUs gets, then the strategy by their free CPUs, then their ids. `lacking`: the result
        if there are none: why the memory of the CPUs that were chosen without regard to memory is
        not enough."""
        request, terms = self._cpu_request, self._terms
        free = {area.id: (area.cpus & self._free).bit_count() for area in layout.nodes}
        holders = [node for node, count in free.items() if count]
        everywhere = self.with_memory(holders)
        if request is None or terms is None or isinstance(everywhere, Refusal):
            return everywhere if isinstance(everywhere, Refusal) else lacking
        sign = -1 if request.strategy is Strategy.MOST_ALLOCATED else 1
        for _, masks in groupby(subsets(holders), key=int.bit_count):
            fitting: list[tuple[tuple[int, int, int, int], Allotment]] = []
            for mask in masks:
                self.steps.take(self._steps_of_node * mask.bit_count())
                count = sum(free[node] for node in ids(mask))
                if count < request.count or isinstance(self.with_memory(ids(mask)), Refusal):
                    continue
                on_each = msgspec.structs.replace(
                    request, strategy=Strategy.DISTRIBUTE_EVENLY, nodes=mask
                )
                taken = accumulator.take(
                    layout, self._free, self._account.holdings, on_each, self._options.max_ref
                )
                if isinstance(taken, Shortage):
                    continue
                found = self._on_cpus(layout, taken)
                if isinstance(found, Allotment):
                    whole_cores = self.whole_cores(mask)
                    rank = terms.exclusivity(found.cpus), whole_cores, sign * count, -mask
                    fitting.append((rank, found))
            if fitting:
                return max(fitting, key=lambda each: each[0])[1]
        return lacking

    def _have_enough(self, nodes: Collection[int]) -> bool:
        """Whether the sums of the nodes' amounts show that the pod fits."""
        if self._units is None:
            return False
        for name, missing, unit in self._units:
            for node in nodes:
                missing -= self.available[node].get(name, 0) // unit
            if missing > 0:
                return False
        return True

    @cached_property
    def _steps_of_node(self) -> int:
        """The steps of a trial for each of its NUMA nodes."""
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return 1
        caches = len(layout.caches) ** 2 // len(layout.nodes) if request.prefer_l3 else 0
        return (
            10
            + 2 * layout.forms
            + (len(layout.nodes) + len(layout.sockets) + len(layout.cells) + caches) // 4
        )

    @cached_property
    def _units(self) -> list[tuple[str, int, int]] | None:
        """The name, the requested number of units and the size of a unit of each requested
        resource. None if the sums of the nodes' whole units do not decide whether the pod fits."""
        bind, layout = self._policies.bind, self._options.layout
        if bind is None:
            if self._pod_request.burst_milli:
                return None
        elif (
            layout is None
            or not self.totals.keys() <= self._areas.keys()
            or (bind.required and len(layout.sizes) > 1)
            or self.counted_memory
        ):
            return None
        known = [name for name in self._pod_request.requests if name in self._numa_resources]
        requested = [(name, self._pod_request.requests[name], self.unit(name)) for name in known]
        if any(amount % unit for _, amount, unit in requested):
            return None
        return [(name, amount // unit, unit) for name, amount, unit in requested]

    @cached_property
    def _scores(self) -> MaskScores:
        requests = self._pod_request.requests
        if self._policies.bind:
            requests = {**requests, "cpu": self._options.amplified(requests["cpu"])}
        return MaskScores(
            requests,
            self._recorded,
            self.totals,
            self._policies.strategy,
            self._options.profile.weights or _WEIGHTS,
        )

    def _amounts(self, nodes: Collection[int]) -> Amounts | Refusal:
        """The amounts of each node, for the resources that NUMA nodes have."""
        self.steps.take(5 + 2 * len(nodes) * len(self._pod_request.requests))
        limit = 0 if self._policies.bind else self._pod_request.burst_milli
        amounts: Amounts = {}
        # CPU comes first: memory that counts by NUMA node follows it.
        for name, requested in sorted(
            self._pod_request.requests.items(), key=lambda each: each[0] != "cpu"
        ):
            if name not in self._numa_resources:
                continue
            room = self.left_of(name, nodes)
            if name in self.counted_memory and self._cpu_request is not None:
                giving = [node for node, given in amounts.items() if "cpu" in given]
                if self._account.counts_memory_of(giving):
                    room = self.left_of(name, giving)
            if limit and name == "cpu":
                chosen = tuple(node for node in nodes if room[node] > 0)
                pool = sum(self.pools.get(node, 0) for node in chosen)
                if pool < limit:
                    return Refusal(Reason.NO_POOL_FITS, name, limit, pool, tuple(sorted(nodes)))
                shares = burst_amounts(requested, chosen, room)
            else:
                cpu_shares = {node: held.get("cpu", 0) for node, held in amounts.items()}
                shares = self.split(name, requested, room, cpu_shares)
            if (given := sum(shares.values())) < requested:
                return Refusal(
                    Reason.NUMA_INSUFFICIENT, name, requested, given, tuple(sorted(nodes))
                )
            for node, share in shares.items():
                amounts.setdefault(node, {})[name] = share
        return amounts

    def _shares(self, amounts: Amounts, nodes: Collection[int]) -> dict[int, int] | Refusal:
        """The number of CPUs that each node gives; empty for a pod that shares."""
        request, areas = self._cpu_request, self._areas
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
            requested, where = 1000 * request.count, tuple(sorted(nodes))
            return Refusal(Reason.NOT_ENOUGH_CPUS, "cpu", requested, 1000 * given, where)
        return shares

    def _bound(self, amounts: Amounts, shares: dict[int, int]) -> Allotment | Refusal:
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return Allotment(0, amounts)
        self.steps.take(self._steps_of_node * len(shares))
        taken = accumulator.take_on_nodes(
            layout, self._free, self._account.holdings, request, shares, self._options.max_ref
        )
        if isinstance(taken, Shortage):
            return _rejection(taken)
        return Allotment(taken.cpus, amounts, taken.steps)

    @cached_property
    def _cpu_request(self) -> CpuRequest | None:
        """None for a pod that shares, and on a node that does not report its CPUs."""
        bind = self._policies.bind
        if bind is None or self._options.layout is None:
            return None
        return CpuRequest(
            self._pod_request.requests["cpu"] // 1000,
            bind.policy,
            self._policies.exclusive,
            self._policies.strategy,
            required=bind.required,
            prefer_l3=self._options.profile.prefer_l3,
            downgrade=self.downgrade,
        )

    @cached_property
    def _terms(self) -> Terms | None:
        layout, request = self._options.layout, self._cpu_request
        if layout is None or request is None:
            return None
        return Terms.of(layout, self._account.holdings, request, self._options.max_ref)

    @cached_property
    def _areas(self) -> dict[int, int]:
        """The CPUs of each NUMA node."""
        layout = self._options.layout
        return {area.id: area.cpus for area in layout.nodes} if layout else {}

    @cached_property
    def _whole_milli(self) -> dict[int, int]:
        """The milli-CPU of the whole cores that each NUMA node has available, for a pod that
        prefers FullPCPUs; empty for other pods, and if every core has one thread."""
        bind, layout = self._policies.bind, self._options.layout
        if bind is None or bind.required or bind.policy is not BindPolicy.FULL_PCPUS:
            return {}
        if layout is None or layout.threads == 1:
            return {}
        whole, core_milli = layout.expand(layout.whole(self._free)), self._core_milli
        found = {}
        for node, cpus in self._areas.items():
            left = self.available.get(node, _NOTHING).get("cpu", 0)
            found[node] = min(left, 1000 * (whole & cpus).bit_count()) // core_milli * core_milli
        return found

    @cached_property
    def _core_milli(self) -> int:
        """The milli-CPU of a core."""
        return 1000 * (self._options.layout.threads if self._options.layout else 1)

    def unit(self, name: str) -> int:
        """The unit of a resource: amounts are multiples of it."""
        bind = self._policies.bind
        if name != "cpu" or bind is None:
            return 1
        whole_cores = bind.required and bind.policy is BindPolicy.FULL_PCPUS
        return self._core_milli if whole_cores else 1000

    def trim(self) -> None:
        """Limits the available CPU of each NUMA node for an owner to its free CPUs that suit a
        required policy, and to the bound CPU that its amplified amount covers."""
        layout, bind = self._options.layout, self._policies.bind
        if layout is None or bind is None:
            return
        if bind.required:
            self.steps.take(2 * layout.forms * len(layout.nodes))
        for area in layout.nodes:
            free = self._free & area.cpus
            if bind.required and bind.policy is BindPolicy.FULL_PCPUS:
                free = layout.expand(layout.whole(free))
            elif bind.required:
                free = layout.touched(free)
            most = 1000 * free.bit_count()
            room = self.available.get(area.id, {})
            if "cpu" in room:
                paid = min(room["cpu"], self._options.amplified(most))
                room["cpu"] = self._options.unamplified(paid)
            recorded = self._recorded.get(area.id, {})
            if bind.required and "cpu" in recorded:
                recorded["cpu"] = min(recorded["cpu"], most)


def _in_order(
    requested: int,
    room: Mapping[int, int],
    unit: int,
    first: Mapping[int, int] = _NO_CPU,
    *,
    packed: bool,
) -> dict[int, int]:
    """`first`: see `split_packed`."""
    if packed:
        return split_packed(requested, room, unit, first)
    return split_evenly(requested, room, unit)


def _rejection(shortage: Shortage) -> Refusal:
    nodes = () if shortage.node is None else (shortage.node,)
    unmet = shortage.reason is Reason.BIND_POLICY_UNMET
    have = shortage.fitting if unmet else shortage.free
    return Refusal(shortage.reason, "cpu", 1000 * shortage.requested, 1000 * have, nodes)


def burst_amounts(
    request_milli: int, chosen: tuple[int, ...], available: Mapping[int, int]
) -> dict[int, int]:
    """Splits the request over the chosen nodes, which have CPU available. Each gets an amount above
    0, because that binds the pod to it."""
    shares = split_evenly(request_milli, {node: available[node] for node in chosen})
    return {node: max(1, shares.get(node, 0)) for node in chosen}
