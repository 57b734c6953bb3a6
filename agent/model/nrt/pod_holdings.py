"""What pods hold of each NUMA node, and what is free there, by the kubelet's PodResources API.

`holdings` and `device_portions` correct known gaps of its answers. Each rule cites its source:
`server_v1.go` and other files are those of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Portion
from agent.model.nrt.report import Held, Reserved, zones
from agent.model.pod.pod_resources import (
    Allocatable,
    GivenDevice,
    MemoryBlock,
    PodName,
    PodResources,
)

Amounts = dict[int, dict[str, int]]


class Holdings(msgspec.Struct, frozen=True):
    """By pod; one that holds nothing is not in it. `problems` name what was left out."""

    pods: Mapping[PodName, Held] = {}
    problems: tuple[str, ...] = ()


def holdings(
    pods: Iterable[PodResources],
    topology: Topology,
    allocatable: Allocatable | None = None,
    over: Collection[PodName] = (),
) -> Holdings:
    """CPUs, bytes of memory and numbers of devices that pods hold.

    `over`: ended pods without anything left in the runtime: kubelets before 1.34 list them until
    they are deleted (Kubernetes issue 119423; later ones have the feature gate
    KubeletPodResourcesListUseActivePods). Two pods of one name are one entry, with what both hold.
    A device counts on each NUMA node that it is near to."""
    alive = [pod for pod in pods if pod.key not in over]
    problems: list[str] = []
    cpus: dict[PodName, CpuSet] = {}
    amounts: dict[PodName, Amounts] = {}
    known = topology.online | topology.offline
    for key, own in _own_cpus(alive, allocatable):
        if strange := own - known:
            problems.append(f"{_title(key)}: this machine has no CPUs {strange}")
        if own & known:
            cpus[key] = cpus.get(key, EMPTY) | own & known
    room = _room(topology, allocatable)
    for key, device in _held_devices(alive):
        for node in _here(device.nodes, room, f"{_title(key)}: {device.resource}", problems):
            _add(amounts, key, node, device.resource, 1)
    # Blocks of one NUMA node first: what several nodes give is then where there is room.
    blocks = [(pod.key, block) for pod in alive for block in _blocks(pod)]
    for key, block in sorted(blocks, key=lambda each: (len(each[1].nodes), each[0])):
        field = f"{_title(key)}: {block.kind}"
        if not block.nodes:
            problems.append(f"{field}: of no NUMA node")
        for node, size_bytes in _drained(block, _here(block.nodes, room, field, problems), room):
            _add(amounts, key, node, block.kind, size_bytes)
    return Holdings(
        {key: Held(cpus.get(key, EMPTY), amounts.get(key, {})) for key in cpus | amounts},
        tuple(problems),
    )


def kept(
    before: Mapping[PodName, Held], now: Mapping[PodName, Held], running: Collection[PodName]
) -> dict[PodName, Held]:
    """`now`, and what pods had before that the kubelet lists no more while the runtime still runs
    them: it forgets pods that are deleted by force at once (kubernetes#104824)."""
    return {key: held for key, held in before.items() if key in running} | dict(now)


def by_uid(held: Mapping[PodName, Held], names: Mapping[str, PodName]) -> dict[str, Held]:
    """`names`: of the node's pods by uid. Where several pods have one name, none of them gets what
    is held under it: the API does not show whose it is."""
    uids: dict[PodName, list[str]] = {}
    for uid, name in names.items():
        uids.setdefault(name, []).append(uid)
    return {
        of_name[0]: held[name]
        for name, of_name in uids.items()
        if name in held and len(of_name) == 1
    }


def reserved(topology: Topology, allocatable: Allocatable) -> Reserved:
    """What the kubelet never gives to a pod as its own. Empty of CPUs or memory where the manager
    of these has no static policy, as the kubelet then names none (cpumanager/policy_none.go)."""
    memory_bytes: dict[int, int] = {}
    told = _told_room(allocatable)
    for zone in zones(topology):
        if "memory" in told.get(zone.node, {}):
            left = zone.resources["memory"].capacity - told[zone.node]["memory"]
            memory_bytes[zone.node] = max(0, left)
    return Reserved(topology.online - allocatable.cpus if allocatable.cpus else EMPTY, memory_bytes)


def device_portions(
    pods: Iterable[PodResources], allocatable: Allocatable, over: Collection[PodName] = ()
) -> tuple[Portion, ...]:
    """One for each device of a device plugin and NUMA node it is near to.

    A device that a pod holds and that the kubelet does not list as allocatable is unhealthy
    (devicemanager/manager.go, GetAllocatableDevices): it exists, with nothing allocatable. `over`
    as above: a device that is still listed for an ended pod may belong to another one already, and
    counts once."""
    healthy = {(each.resource, each.id): each for each in allocatable.devices}
    held: dict[tuple[str, str], GivenDevice] = {
        (device.resource, device.id): device
        for pod in pods
        if pod.key not in over
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
    """Kubelets of 1.20 list the shared pool with containers that have no CPUs of their own
    (kubernetes#100211). It has the reserved CPUs, which no container gets as its own; while these
    are unknown, sets of containers that overlap are the pool, and a single container in the pool is
    not recognised."""
    pods = tuple(pods)
    # Containers of a pod with CPUs as a whole share what of them is no container's own.
    seen = pool = EMPTY
    for cpus in (each.cpus for pod in pods if not pod.cpus for each in pod.containers):
        seen, pool = seen | cpus, pool | cpus & seen
    for pod in pods:
        sets = (pod.cpus, *(container.cpus for container in pod.containers))
        if allocatable is not None:
            yield pod.key, union(cpus for cpus in sets if cpus <= allocatable.cpus)
        else:
            yield pod.key, union(cpus for cpus in sets if pod.cpus or not cpus & pool)


def _held_devices(pods: Iterable[PodResources]) -> list[tuple[PodName, GivenDevice]]:
    """Once for each name of pods, as containers may share a device."""
    held = {(pod.key, each.resource, each.id): each for pod in pods for each in _devices(pod)}
    return [(key, device) for (key, _, _), device in sorted(held.items(), key=lambda each: each[0])]


def _devices(pod: PodResources) -> Iterator[GivenDevice]:
    for container in pod.containers:
        yield from container.devices


def _blocks(pod: PodResources) -> Iterator[MemoryBlock]:
    """The pod's as a whole or its containers', by kind whichever is more: the containers' are part
    of the pod's (KEP-5526, pod-level resource managers)."""
    containers = [block for container in pod.containers for block in container.memory]
    for kind in sorted({block.kind for block in (*pod.memory, *containers)}):
        whole = [block for block in pod.memory if block.kind == kind]
        parts = [block for block in containers if block.kind == kind]
        yield from max(whole, parts, key=lambda blocks: sum(each.size_bytes for each in blocks))


def _room(topology: Topology, allocatable: Allocatable | None) -> Amounts:
    """By NUMA node of this machine and kind of memory: what the kubelet gives, else all."""
    told = _told_room(allocatable or Allocatable())
    return {
        zone.node: {name: each.capacity for name, each in zone.resources.items()}
        | told.get(zone.node, {})
        for zone in zones(topology)
    }


def _told_room(allocatable: Allocatable) -> Amounts:
    room: Amounts = {}
    for block in allocatable.memory:
        if len(block.nodes) == 1:
            room.setdefault(block.nodes[0], {})[block.kind] = block.size_bytes
    return room


def _here(nodes: tuple[int, ...], room: Amounts, field: str, problems: list[str]) -> list[int]:
    """Those that this machine has; the others are a problem."""
    if strange := CpuSet(set(nodes) - room.keys()):
        problems.append(f"{field}: this machine has no NUMA node {strange}")
    return [node for node in nodes if node in room]


def _drained(block: MemoryBlock, nodes: list[int], room: Amounts) -> Iterator[tuple[int, int]]:
    """Where the bytes of a block are: the kubelet fills its NUMA nodes in ascending order (kubelet:
    pkg/kubelet/cm/memorymanager/policy_static.go, updateMachineState). What fits nowhere is on the
    last one."""
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
