"""The devices of one node for one pod, of all types that it requests: an allocation, the node's
score, and the NUMA hints that it gives (Koordinator: pkg/scheduler/plugins/deviceshare,
device_allocator.go, AutopilotAllocator.Allocate, and topology_hint.go).

If several types belong together, such as GPUs and their NICs, the leading type is chosen first and
the others near it. If that fails and the pod requires common sites (PCIe switches or NUMA nodes),
sets of sites that have every type are tried, smaller sets first.

An allocation is an offer: nothing of the node's state changes, and `unavailable` checks whether the
node still has the offered devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.devices.choice import ChosenDevice, choose
from agent.allocate.devices.inventory import NodeDevices, device_score, summed
from agent.allocate.devices.need import Need, allowed_devices, candidates_of, need_of, steps_of_need
from agent.allocate.numa.hint import Provider, TopologyHint, fewest_nodes, of_nodes, subsets
from agent.allocate.placement.demand import CardOrder
from agent.allocate.refusal import Reason, Refusal, combined
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_allocation import (
    DeviceAllocateStrategy,
    DeviceHint,
    Joint,
    JointScope,
)
from agent.model.devices.device_object import DeviceType
from agent.model.devices.device_request import DeviceRequest

_Site = str | int
"""A PCIe switch, or a NUMA node."""


class Allocation(msgspec.Struct, frozen=True):
    """The chosen devices by type, in the order in which types were chosen."""

    devices: dict[str, tuple[ChosenDevice, ...]]


_Found = dict[str, list[ChosenDevice]]


def allocate(
    node: NodeDevices,
    request: DeviceRequest,
    *,
    numa: int | None = None,
    strategy: Strategy | CardOrder | None = None,
    steps: Steps = UNCOUNTED,
) -> Allocation | Refusal:
    """`numa`: the NUMA nodes that devices may come from, as a mask; None for any. `strategy`: which
    devices are preferred; None: the lowest minors. Raises TooComplexError."""
    wanted = request.preferences
    needs: dict[str, Need] = {}
    for kind, type_request in request.requests.items():
        hint = wanted.hints.get(kind)
        steps.take(steps_of_need(node, kind, hint))
        found = need_of(node, kind, type_request, hint, wanted.partition, numa, strategy)
        if isinstance(found, Reason):
            return Refusal(found, kind)
        needs[kind] = found
    chosen: dict[str, list[ChosenDevice]] = {}
    if wanted.joint is not None and len(needs) > 1:
        kinds = partners(wanted.joint, wanted.hints, needs)
        if kinds:
            joint = _choose_jointly([needs[kind] for kind in kinds], wanted.joint.scope, steps)
            if isinstance(joint, Refusal):
                return joint
            chosen = joint
    for kind, of_kind in needs.items():
        if kind not in chosen:
            alone = choose(of_kind, steps=steps)
            if isinstance(alone, Reason):
                return Refusal(alone, kind)
            chosen[kind] = alone
    return Allocation({kind: tuple(each) for kind, each in chosen.items()})


def partners(joint: Joint, hints: Mapping[str, DeviceHint], needs: Mapping[str, Need]) -> list[str]:
    """The types that belong together, the leading one first: the requested types. A type is left
    out if the pod requests all its devices."""
    return [
        kind
        for kind in dict.fromkeys(joint.types)
        if kind in needs
        and not (kind in hints and hints[kind].strategy is DeviceAllocateStrategy.APPLY_FOR_ALL)
    ]


def _choose_jointly(needs: Sequence[Need], scope: JointScope, steps: Steps) -> _Found | Refusal:
    """`needs`: the leading one first."""
    steps.take(_steps_of_sites(needs, scope))
    chosen = choose(needs[0], joint_groups=_with_all(needs, scope), steps=steps)
    if isinstance(chosen, Reason):
        return Refusal(chosen, needs[0].kind)
    if scope is JointScope.PREFERRED:
        return _near(needs, chosen, steps)
    same = _same_sites(needs, scope, chosen, steps)
    if not isinstance(same, Refusal):
        return same
    for sites in _common(needs, scope, steps):
        at = _at(needs[0], scope, sites)
        chosen = choose(needs[0].within(sum(at)), at, every=True, steps=steps)
        if not isinstance(chosen, Reason) and _sites_of(needs[0], scope, chosen) == sites:
            elsewhere = _same_sites(needs, scope, chosen, steps)
            if not isinstance(elsewhere, Refusal):
                return elsewhere
    return same


def _near(needs: Sequence[Need], chosen: list[ChosenDevice], steps: Steps) -> _Found | Refusal:
    """Chooses under the leading devices' switches if those have enough devices."""
    found: _Found = {needs[0].kind: chosen}
    switches = _sites_of(needs[0], JointScope.SAME_PCIE, chosen)
    for need in needs[1:]:
        at = _at(need, JointScope.SAME_PCIE, switches)
        others: list[ChosenDevice] | Reason = Reason.DEVICE_INSUFFICIENT
        if need.of_gpus:
            others = choose(need.within(sum(at)), steps=steps)
        if isinstance(others, Reason):
            others = choose(need, at, steps=steps)
        if isinstance(others, Reason):
            return Refusal(others, need.kind)
        found[need.kind] = others
    return found


def _same_sites(
    needs: Sequence[Need], scope: JointScope, chosen: list[ChosenDevice], steps: Steps
) -> _Found | Refusal:
    """Every other type has devices at each site of the leading ones, and at no other."""
    found: _Found = {needs[0].kind: chosen}
    sites = _sites_of(needs[0], scope, chosen)
    for need in needs[1:]:
        at = _at(need, scope, sites)
        others = choose(need.within(sum(at)).at_least(len(sites)), at, every=True, steps=steps)
        if isinstance(others, Reason):
            return Refusal(others, need.kind)
        if _sites_of(need, scope, others) != sites:
            return Refusal(Reason.DEVICE_JOINT, need.kind)
        found[need.kind] = others
    return found


def _with_all(needs: Sequence[Need], scope: JointScope) -> tuple[int, ...]:
    """The leading devices of each site that has enough devices of every type; none if the pod does
    not require a common site."""
    if scope is JointScope.PREFERRED:
        return ()
    masks = [(need, _masks(need, scope)) for need in needs]
    return tuple(
        mask
        for site, mask in masks[0][1].items()
        if all(
            (by_site.get(site, 0) & need.candidates.fitting).bit_count() >= need.request.count
            for need, by_site in masks
        )
    )


def _common(needs: Sequence[Need], scope: JointScope, steps: Steps) -> Iterator[set[_Site]]:
    """The sets of sites that together have enough devices of every type, smaller sets first; among
    equally large ones, sets of sites with devices in use first."""
    lead = needs[0]
    of_sites = _steps_of_sites(needs, scope)
    steps.take(of_sites * (1 + len(_masks(lead, scope))))
    having = [
        site
        for site, mask in _masks(lead, scope).items()
        if mask & lead.candidates.fitting
        and all(_masks(each, scope).get(site, 0) & each.candidates.fitting for each in needs[1:])
    ]
    having.sort(key=lambda site: not _masks(lead, scope)[site] & lead.candidates.used)
    most = min(each.request.count for each in needs if each is lead or each.of_gpus)
    for chosen in subsets(range(len(having))):
        if chosen.bit_count() > most:
            return
        steps.take(of_sites)
        sites = {having[number] for number in members(chosen)}
        if all(
            (sum(_at(each, scope, sites)) & each.candidates.fitting).bit_count()
            >= each.request.count
            for each in needs
        ):
            yield sites


def _steps_of_sites(needs: Sequence[Need], scope: JointScope) -> int:
    """The steps of one look at the sites of each device type."""
    return sum(2 + len(_masks(each, scope)) // 4 for each in needs)


def _at(need: Need, scope: JointScope, sites: set[_Site]) -> tuple[int, ...]:
    """The devices at each site that has any."""
    return tuple(mask for site, mask in _masks(need, scope).items() if site in sites)


def _masks(need: Need, scope: JointScope) -> Mapping[Any, int]:
    """The devices of each site; a device without a NUMA node is at no site."""
    fleet = need.candidates.fleet
    if scope is JointScope.SAME_NUMA_NODE:
        return {node: mask for node, mask in fleet.numa.items() if node >= 0}
    return fleet.pcies


def _sites_of(need: Need, scope: JointScope, chosen: Sequence[ChosenDevice]) -> set[_Site]:
    topologies = (need.candidates.fleet.devices[each.minor].topology for each in chosen)
    if scope is JointScope.SAME_NUMA_NODE:
        return {site.node for site in topologies if site is not None}
    return {site.pcie for site in topologies if site is not None}


def node_score(
    node: NodeDevices,
    request: DeviceRequest,
    allocation: Allocation,
    strategy: Strategy,
    *,
    numa: int | None = None,
) -> int:
    """The sum of the types' scores, 0 to 100 each, over the devices that labels and NUMA nodes
    admit for the pod, with the allocation applied."""
    points = 0
    for kind, chosen in allocation.devices.items():
        fleet, stock = node.inventory.fleets[kind], node.stocks[kind]
        total, free = fleet.sums, stock.sums
        mask = allowed_devices(fleet, request.preferences.hints.get(kind), numa)
        if mask != fleet.all_minors:
            allowed = list(members(mask))
            total = summed(fleet.weighed, (fleet.totals[minor] for minor in allowed))
            free = summed(fleet.weighed, (stock.free[minor] for minor in allowed))
        requested = summed(fleet.weighed, (each.resources for each in chosen))
        points += device_score(fleet.weighed, requested, total, free, strategy)
    return points


def device_allocated(allocation: Allocation) -> str:
    """The content of `device-allocated`, as `model.devices.device_allocation` reads it back."""
    body = {
        kind: [_device(each) for each in chosen]
        for kind, chosen in sorted(allocation.devices.items())
    }
    return msgspec.json.encode(body).decode()


def _device(chosen: ChosenDevice) -> dict[str, Any]:
    device: dict[str, Any] = {
        "minor": chosen.minor,
        "resources": {name: str(amount) for name, amount in sorted(chosen.resources.items())},
    }
    if chosen.uuid:
        device["id"] = chosen.uuid
    if chosen.functions:
        device["extension"] = {"vfs": list(chosen.functions)}
    return device


def unavailable(node: NodeDevices, request: DeviceRequest, allocation: Allocation) -> str:
    """The first part of the allocation that the node no longer has; "" if it has all of it."""
    for kind, chosen in allocation.devices.items():
        for each in chosen:
            if missing := _gone(node, request, kind, each):
                return missing
    return ""


def _gone(node: NodeDevices, request: DeviceRequest, kind: str, chosen: ChosenDevice) -> str:
    fleet = node.inventory.fleets.get(kind)
    minor = chosen.minor
    device = fleet.devices.get(minor) if fleet else None
    title = f"{kind} {minor}"
    if fleet is None or device is None or device.uuid != chosen.uuid:
        return f"{title} ({chosen.uuid}) no longer exists"
    if not fleet.healthy >> minor & 1:
        return f"{title} is unhealthy"
    stock = node.stocks[kind]
    free = stock.free[minor]
    for name, amount in chosen.resources.items():
        if name in free and free[name] < amount:
            return f"{title} has {free[name]} of {amount} {name} left"
    hint = request.preferences.hints.get(kind)
    if not candidates_of(fleet, stock, {}, hint, None, None).fitting >> minor & 1:
        return f"{title} no longer matches the pod's hint"
    there = {each.bus for group in device.vf_groups for each in group.vfs}
    taken = node.taken.get((kind, minor), frozenset())
    for function in chosen.functions:
        if function.bus not in there or function.bus in taken:
            return f"virtual function {function.bus} of {title} is no longer free"
    return ""


SAME_CARDS: Final = 1 << 40
"""The score of NUMA nodes that give the GPUs which would be chosen from all of them: more than all
other resources score together."""


class DeviceHintProvider:
    """The hint provider for the devices of one pod on one node; it keeps its last allocation, or
    the reason why it failed."""

    def __init__(
        self,
        node: NodeDevices,
        request: DeviceRequest,
        strategy: Strategy | CardOrder,
        steps: Steps = UNCOUNTED,
    ) -> None:
        self._node = node
        self._request = request
        self._strategy = strategy
        self._steps = steps
        self._numa: int | None = None
        self.found: Allocation | Refusal | None = None

    def hints(self, nodes: Collection[int], *, narrowest: bool = False) -> Provider:
        hints = device_hints(
            self._node, self._request, nodes, self._strategy, self._steps, narrowest=narrowest
        )
        if isinstance(hints, Refusal):
            self.found = hints
            return dict.fromkeys(self._request.requests, ())
        return hints

    def fits(self, mask: int | None) -> bool:
        return isinstance(self.find(mask), Allocation)

    def explain(self, refusal: Refusal) -> Refusal:
        if not isinstance(self.found, Refusal):
            return refusal
        others = [
            other
            for other in refusal.reasons
            if other.reason is not Reason.NUMA_COMPANION
            and other.resource not in self._request.requests
        ]
        return combined([self.found, *others])

    def find(self, mask: int | None) -> Allocation | Refusal:
        """Allocates devices on these NUMA nodes; None: on any."""
        self._numa = mask
        self.found = allocation = allocate(
            self._node, self._request, numa=mask, strategy=self._strategy, steps=self._steps
        )
        return allocation

    def score(self, allocation: Allocation) -> int:
        """0-100, the mean over the types; 0 under a placement, which has scores of its own."""
        if isinstance(self._strategy, CardOrder):
            return 0
        points = node_score(self._node, self._request, allocation, self._strategy, numa=self._numa)
        return points // max(1, len(allocation.devices))

    def opened(self, allocation: Allocation) -> int:
        """The number of devices that no other pod uses yet."""
        return sum(
            1
            for kind, chosen in allocation.devices.items()
            for each in chosen
            if self._node.stocks[kind].idle >> each.minor & 1
        )


def device_hints(
    node: NodeDevices,
    request: DeviceRequest,
    numa_nodes: Iterable[int],
    strategy: Strategy | CardOrder | None = None,
    steps: Steps = UNCOUNTED,
    *,
    narrowest: bool = False,
) -> dict[str, tuple[TopologyHint, ...]] | Refusal:
    """By device type; all types have the same hints, as they are chosen together: the sets of these
    NUMA nodes (all of the machine's) that an allocation fits on; the smallest sets are preferred. A
    Refusal if the devices of all NUMA nodes together are not enough. `narrowest`: only the
    preferred sets. Raises TooComplexError."""
    nodes = set(numa_nodes)
    everywhere = of_nodes(nodes)
    widest = allocate(node, request, numa=everywhere, strategy=strategy, steps=steps)
    if isinstance(widest, Refusal):
        return widest
    cards = _cards(widest)
    found: list[tuple[int, bool]] = []
    rooms: list[_Room] = []
    if len(nodes) > _FEW_NODES:
        rooms = [_room(node, kind, request, everywhere, strategy) for kind in request.requests]
    for mask in subsets(nodes, max(map(fewest_nodes, rooms), default=1)):
        if narrowest and found and mask.bit_count() > found[0][0].bit_count():
            break
        steps.take(1 + mask.bit_count() // 4 + len(rooms))
        if not all(_has_room(mask, room) for room in rooms):
            continue
        allocation: Allocation | Refusal = widest
        if mask != everywhere:
            allocation = allocate(node, request, numa=mask, strategy=strategy, steps=steps)
        if isinstance(allocation, Allocation):
            found.append((mask, _cards(allocation) == cards))
    fewest = min(mask.bit_count() for mask, _ in found)
    hints = tuple(
        TopologyHint(mask, mask.bit_count() == fewest, SAME_CARDS if same else 0)
        for mask, same in found
    )
    return dict.fromkeys(request.requests, hints)


_FEW_NODES: Final = 2
"""On so few NUMA nodes each set is tried: to count the devices of each node takes longer."""

_Room = tuple[int, list[tuple[int, int]]]
"""The number of devices that NUMA nodes have to give, and how many each node, as a bit, could."""


def _room(
    node: NodeDevices,
    kind: str,
    request: DeviceRequest,
    numa: int,
    strategy: Strategy | CardOrder | None,
) -> _Room:
    wanted = request.preferences
    need = need_of(
        node, kind, request.requests[kind], wanted.hints.get(kind), wanted.partition, numa, strategy
    )
    if isinstance(need, Reason):
        return 0, []
    fitting, numa_nodes = need.candidates.fitting, need.candidates.fleet.numa
    anywhere = sum((mask & fitting).bit_count() for at, mask in numa_nodes.items() if at < 0)
    return need.request.count - anywhere, [
        (1 << at, (mask & fitting).bit_count()) for at, mask in numa_nodes.items() if at >= 0
    ]


def _has_room(mask: int, room: _Room) -> bool:
    missing, by_node = room
    return sum(count for at, count in by_node if mask & at) >= missing


def _cards(allocation: Allocation) -> frozenset[int]:
    return frozenset(each.minor for each in allocation.devices.get(DeviceType.GPU, ()))
