"""The resources that pods hold of each NUMA node, by the kubelet's PodResources API.

`holdings` and `device_portions` correct known errors in the API's responses. Each rule cites its
source; file names are those of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Portion
from agent.model.pod.pod_resources import (
    Allocatable,
    MemoryBlock,
    PluginDevice,
    PodName,
    PodResources,
)
from agent.node.node_resource_topology import Allocated, Reserved, zones

Amounts = dict[int, dict[str, int]]


class Holdings(msgspec.Struct, frozen=True):
    """What pods hold."""

    pods: Mapping[PodName, Allocated] = {}
    """Without pods that hold nothing."""
    problems: tuple[str, ...] = ()
    """What was left out, and why."""


def holdings(
    pods: Iterable[PodResources],
    topology: Topology,
    allocatable: Allocatable | None = None,
    ended: Collection[PodName] = (),
) -> Holdings:
    """The CPUs, bytes of memory and numbers of devices that pods hold. Two pods with one name are
    one entry, with the resources of both. A device counts on each NUMA node that it is near to.

    `ended`: ended pods that the runtime has removed. Kubelets before 1.34 list them until they are
        deleted (Kubernetes issue 119423; later kubelets have the feature gate
        KubeletPodResourcesListUseActivePods)."""
    alive = [pod for pod in pods if pod.key not in ended]
    problems: list[str] = []
    cpus: dict[PodName, CpuSet] = {}
    amounts: dict[PodName, Amounts] = {}
    machine = topology.online | topology.offline
    for key, own in _own_cpus(alive, allocatable):
        if unknown := own - machine:
            problems.append(f"{_title(key)}: this machine has no CPUs {unknown}")
        if own & machine:
            cpus[key] = cpus.get(key, EMPTY) | own & machine
    room = _room(topology, allocatable)
    for key, device in _held_devices(alive):
        for node in _known(device.nodes, room, f"{_title(key)}: {device.resource}", problems):
            _add(amounts, key, node, device.resource, 1)
    # Blocks on one NUMA node first; blocks on several nodes then fill the remaining room.
    blocks = [(pod.key, block) for pod in alive for block in _blocks(pod)]
    for key, block in sorted(blocks, key=lambda entry: (len(entry[1].nodes), entry[0])):
        field = f"{_title(key)}: {block.kind}"
        if not block.nodes:
            problems.append(f"{field}: on no NUMA node")
        for node, size_bytes in _placed(block, _known(block.nodes, room, field, problems), room):
            _add(amounts, key, node, block.kind, size_bytes)
    return Holdings(
        {key: Allocated(cpus.get(key, EMPTY), amounts.get(key, {})) for key in cpus | amounts},
        tuple(problems),
    )


def with_running(
    before: Mapping[PodName, Allocated],
    now: Mapping[PodName, Allocated],
    running: Collection[PodName],
) -> dict[PodName, Allocated]:
    """`now`, and the resources that running pods had before. The kubelet no longer lists a pod that
    is deleted by force, although the runtime still runs it (kubernetes#104824)."""
    return {key: held for key, held in before.items() if key in running} | dict(now)


def by_uid(held: Mapping[PodName, Allocated], names: Mapping[str, PodName]) -> dict[str, Allocated]:
    """The resources by pod uid. If several pods have one name, none of them is included, because
    the API does not identify the pod.

    `names`: the names of the node's pods by uid."""
    uids: dict[PodName, list[str]] = {}
    for uid, name in names.items():
        uids.setdefault(name, []).append(uid)
    return {
        of_name[0]: held[name]
        for name, of_name in uids.items()
        if name in held and len(of_name) == 1
    }


def reserved(topology: Topology, allocatable: Allocatable) -> Reserved:
    """The resources that the kubelet never assigns exclusively. CPUs or memory are empty if their
    manager has no static policy: the kubelet then lists none (cpumanager/policy_none.go)."""
    memory_bytes: dict[int, int] = {}
    reported = _reported_room(allocatable)
    for zone in zones(topology):
        if "memory" in reported.get(zone.node, {}):
            left = zone.resources["memory"].capacity - reported[zone.node]["memory"]
            memory_bytes[zone.node] = max(0, left)
    return Reserved(topology.online - allocatable.cpus if allocatable.cpus else EMPTY, memory_bytes)


def device_portions(
    pods: Iterable[PodResources], allocatable: Allocatable, ended: Collection[PodName] = ()
) -> tuple[Portion, ...]:
    """One portion for each device of a device plugin and each NUMA node that it is near to.

    A device that a pod holds and that the kubelet does not list as allocatable is unhealthy
    (devicemanager/manager.go, GetAllocatableDevices): it has capacity, but nothing allocatable.
    `ended` as above: a device that is still listed for an ended pod may already be assigned to
    another pod, and counts once."""
    healthy = {(each.resource, each.id): each for each in allocatable.devices}
    held: dict[tuple[str, str], PluginDevice] = {
        (device.resource, device.id): device
        for pod in pods
        if pod.key not in ended
        for device in _devices(pod)
    }
    return tuple(
        Portion(device.resource, node, 1, int(key in healthy), int(key in held))
        for key, device in sorted((held | healthy).items())
        for node in device.nodes
    )


def _own_cpus(
    pods: Iterable[PodResources], allocatable: Allocatable | None
) -> Iterator[tuple[PodName, CpuSet]]:
    """The exclusive CPUs of each pod. Kubelets of 1.20 list the shared pool for containers without
    exclusive CPUs (kubernetes#100211). The pool is recognised by the reserved CPUs in it, which no
    container gets exclusively. If the reserved CPUs are unknown, overlapping sets of containers are
    taken for the pool; a single container in the pool is then not recognised."""
    pods = tuple(pods)
    # Containers of a pod with pod-level CPUs share those that no container has exclusively.
    seen = pool = EMPTY
    for cpus in (container.cpus for pod in pods if not pod.cpus for container in pod.containers):
        seen, pool = seen | cpus, pool | cpus & seen
    for pod in pods:
        sets = (pod.cpus, *(container.cpus for container in pod.containers))
        if allocatable is not None:
            yield pod.key, union(cpus for cpus in sets if cpus <= allocatable.cpus)
        else:
            yield pod.key, union(cpus for cpus in sets if pod.cpus or not cpus & pool)


def _held_devices(pods: Iterable[PodResources]) -> list[tuple[PodName, PluginDevice]]:
    """The devices of each pod name, each device once: containers may share a device."""
    held = {(pod.key, each.resource, each.id): each for pod in pods for each in _devices(pod)}
    return [(key, device) for (key, _, _), device in sorted(held.items(), key=lambda each: each[0])]


def _devices(pod: PodResources) -> Iterator[PluginDevice]:
    for container in pod.containers:
        yield from container.devices


def _blocks(pod: PodResources) -> Iterator[MemoryBlock]:
    """The pod-level blocks or those of the containers, for each kind of memory whichever are
    larger: the containers' blocks are part of the pod-level ones (KEP-5526, pod-level resource
    managers)."""
    containers = [block for container in pod.containers for block in container.memory]
    for kind in sorted({block.kind for block in (*pod.memory, *containers)}):
        whole = [block for block in pod.memory if block.kind == kind]
        parts = [block for block in containers if block.kind == kind]
        yield from max(whole, parts, key=lambda blocks: sum(each.size_bytes for each in blocks))


def _room(topology: Topology, allocatable: Allocatable | None) -> Amounts:
    """The memory that the kubelet can assign, else all memory, by NUMA node and kind."""
    reported = _reported_room(allocatable or Allocatable())
    return {
        zone.node: {name: each.capacity for name, each in zone.resources.items()}
        | reported.get(zone.node, {})
        for zone in zones(topology)
    }


def _reported_room(allocatable: Allocatable) -> Amounts:
    room: Amounts = {}
    for block in allocatable.memory:
        if len(block.nodes) == 1:
            room.setdefault(block.nodes[0], {})[block.kind] = block.size_bytes
    return room


def _known(nodes: tuple[int, ...], room: Amounts, field: str, problems: list[str]) -> list[int]:
    """The NUMA nodes that this machine has; others are added to `problems`."""
    if unknown := CpuSet(set(nodes) - room.keys()):
        problems.append(f"{field}: this machine has no NUMA node {unknown}")
    return [node for node in nodes if node in room]


def _placed(block: MemoryBlock, nodes: list[int], room: Amounts) -> Iterator[tuple[int, int]]:
    """A block's bytes by NUMA node: the kubelet fills the nodes of a block in ascending order
    (kubelet: pkg/kubelet/cm/memorymanager/policy_static.go, updateMachineState). Bytes that fit
    nowhere count on the last node."""
    left = block.size_bytes
    for node in nodes:
        free = room[node].get(block.kind, 0)
        part = left if node == nodes[-1] else min(left, free)
        room[node][block.kind] = max(0, free - part)
        left -= part
        if part:
            yield node, part


def _title(key: PodName) -> str:
    return f"pod {key[0]}/{key[1]}"


def _add(amounts: dict[PodName, Amounts], key: PodName, node: int, name: str, amount: int) -> None:
    of_node = amounts.setdefault(key, {}).setdefault(node, {})
    of_node[name] = of_node.get(name, 0) + amount
