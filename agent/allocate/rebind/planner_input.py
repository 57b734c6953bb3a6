"""Makes the input of a plan from a node allocator and the pods' requests, and the allocation of a
moved pod."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.node_allocation import (
    Amounts,
    NodeAllocation,
    PodAllocation,
    TopologyOptions,
)
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.policies_in_force import InForce, in_force
from agent.allocate.rebind.arrangement import PlacedNode, PlacedPod
from agent.allocate.rebind.planner import NoPlan, PodPlace
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy
from agent.model.pod.resource_request import ResourceRequest

_CPU = "cpu"


def placed_node(
    allocator: NodeAllocator,
    requests: Mapping[str, ResourceRequest],
    fixed: Mapping[str, str],
) -> PlacedNode | NoPlan:
    """The node as the planner sees it, or why no plan is possible.

    `requests`: the requests of the node's pods by uid; a pod without one is not moved.
    `fixed`: why pods must not be moved, by uid."""
    options, name = allocator.properties.cpus, allocator.properties.name
    if options is None or options.layout is None:
        return NoPlan((f"node {name} has no usable NodeResourceTopology",))
    if options.kubelet_static:
        return NoPlan((f"the kubelet of node {name} assigns CPUs (static CPU policy)",))
    layout = options.layout
    node_allocation = NodeAllocation(options)
    for holding in allocator.holdings.values():
        node_allocation.add(holding.allocation)
    placed = []
    most_owned = {}
    for uid in sorted(allocator.holdings):
        request = requests.get(uid)
        if request is not None:
            request = msgspec.structs.replace(request, default_bind=options.profile.bind)
        pod = _placed_pod(
            options, node_allocation, allocator.holdings[uid], request, fixed.get(uid, "")
        )
        if pod is None:
            continue
        placed.append(pod)
        if request is not None and request.burst_milli and not pod.owner:
            # The pool of a pod that bursts must not shrink, since its limit must fit into the pool.
            for area in layout.nodes:
                if pod.place >> area.id & 1:
                    held = node_allocation.holdings.full(1)
                    most_owned[area.id] = (area.cpus & held).bit_count()
    return PlacedNode(
        layout,
        layout.cpus & ~options.kept.mask,
        tuple(placed),
        _rooms(node_allocation, placed),
        options.amplified(1000),
        most_owned,
    )


def moved_allocation(
    options: TopologyOptions, before: PodAllocation, place: PodPlace
) -> PodAllocation:
    """The allocation of the pod in this place. A pod that had no amounts by NUMA node gets none."""
    if not before.cpus:
        amounts = {node: {_CPU: milli} for node, milli in place.cpu_milli.items()}
        return msgspec.structs.replace(before, amounts=_with(amounts, place.memory))
    if not before.amounts:
        return msgspec.structs.replace(before, cpus=place.cpus)
    areas = options.layout.nodes if options.layout else ()
    counts = {area.id: (area.cpus & place.cpus.mask).bit_count() for area in areas}
    amounts = {node: {_CPU: 1000 * count} for node, count in counts.items() if count}
    if not any(_CPU in of for of in before.amounts.values()):
        amounts = {}
    return msgspec.structs.replace(before, cpus=place.cpus, amounts=_with(amounts, place.memory))


def _with(amounts: Amounts, memory: Mapping[int, Mapping[str, int]]) -> Amounts:
    for node, of_node in memory.items():
        amounts.setdefault(node, {}).update(of_node)
    return amounts


def _placed_pod(
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    assigned: AssignedPod,
    request: ResourceRequest | None,
    fixed: str,
) -> PlacedPod | None:
    """The pod, None if it has no CPUs of its own and is not bound to NUMA nodes."""
    allocation = assigned.allocation
    if not allocation.cpus and not allocation.amounts:
        return None
    memory = {
        node: rest
        for node, amounts in allocation.amounts.items()
        if (rest := {name: amount for name, amount in amounts.items() if name != _CPU})
    }
    cpu_milli = None
    place = allocation.cpus.mask
    if not place:
        cpu_milli = {node: of.get(_CPU, 0) for node, of in allocation.amounts.items()}
        place = CpuSet(cpu_milli).mask
    layout = options.layout
    nodes = frozenset(layout.node_ids(place) if layout and cpu_milli is None else cpu_milli or ())
    policies = None
    if request is not None:
        policies = in_force(options.policies, options.profile, request)
    near = None
    if isinstance(policies, InForce):
        near = nodes if _stays(options, assigned, policies, memory) else None
    else:
        fixed = fixed or "its policies are not known or contradict those of the node"
    bind = policies.bind if isinstance(policies, InForce) else None
    return PlacedPod(
        assigned.uid,
        assigned.title,
        place,
        cpu_milli,
        bind is not None and bind.policy is BindPolicy.SPREAD_BY_PCPUS,
        allocation.exclusive,
        memory,
        near,
        _not_movable(options, node_allocation, assigned) or fixed,
    )


def _stays(
    options: TopologyOptions,
    assigned: AssignedPod,
    policies: InForce,
    memory: Mapping[int, Mapping[str, int]],
) -> bool:
    """Whether the pod has to stay on its NUMA nodes: it has devices or huge pages there, its bound
    memory is not recorded by NUMA node, or its NUMA exclusive policy restricts the choice."""
    names = {name for of_node in memory.values() for name in of_node}
    if assigned.kinds or policies.numa_exclusive is not None:
        return True
    if any(name.startswith("hugepages-") for name in (*names, *assigned.allocation.memory)):
        return True
    unrecorded = options.counts_memory and assigned.allocation.memory.keys() - names
    return bool(unrecorded)


def _not_movable(
    options: TopologyOptions, node_allocation: NodeAllocation, assigned: AssignedPod
) -> str:
    """Why the pod is never moved, "" if it may be."""
    cpus = assigned.allocation.cpus
    if assigned.reservation:
        return "it is a Reservation"
    if assigned.faults:
        return f"its allocation can't be read: {assigned.faults[0]}"
    online = CpuSet.from_int(options.layout.cpus if options.layout else 0)
    if offline := cpus - online:
        return f"its CPUs {offline} are not online"
    if shared := cpus & CpuSet.from_int(node_allocation.holdings.full(2)):
        return f"other pods hold its CPUs {shared} too"
    return ""


def _rooms(node_allocation: NodeAllocation, pods: list[PlacedPod]) -> Amounts:
    """The most that the pods of the plan may have together: the allocatable amounts, without those
    that other pods use, and without those that these pods use without a record."""
    counted: dict[tuple[int, str], int] = {}
    for pod in pods:
        for node, of_node in pod.memory.items():
            for name, amount in of_node.items():
                counted[node, name] = counted.get((node, name), 0) + amount
    return {
        node: {
            name: total
            if name == _CPU
            else total - node_allocation.used(node, name) + counted.get((node, name), 0)
            for name, total in amounts.items()
        }
        for node, amounts in node_allocation.totals().items()
    }
