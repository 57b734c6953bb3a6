"""A node at one moment as one value with a JSON form: the machine, its pools, devices and pods, and
what needs attention. The page and `topolet top` draw it.

Changes come from the audit trail (`agent.view.history`), loads from the kernel. Both are separate
values, because they change at other times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.pod.qos import POOLS, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.view import nesting
from agent.view.devices import ShownDevice
from agent.view.history import Recent
from agent.view.nesting import Part

SCHEMA_VERSION: Final = 1


class LiveCpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """An online CPU. The fields are those of `Cpu` in the topology."""

    id: int
    core: int
    node: int
    socket: int
    l3: int | None = None
    kind: str | None = None


class LivePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A socket, NUMA node, die or cache."""

    noun: str
    title: str
    cpus: str
    """A list in the kernel's form."""
    node: int | None = None
    """The NUMA node whose devices are drawn in this part, which is the outermost part with CPUs of
    only that node; None for other parts."""
    parts: tuple[LivePart, ...] = ()
    notes: tuple[str, ...] = ()


class LivePool(msgspec.Struct, frozen=True):
    """The shared CPUs of one NUMA node."""

    kind: str
    """The title of the pool, for example LS."""
    node: int
    cpus: str


class LiveContainer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container whose CPUs differ from those of the other containers of its pod."""

    name: str
    cpus: str
    state: str


class LivePod(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod."""

    uid: str
    title: str
    qos: str
    cpus: str
    """The CPUs on which its containers run."""
    nodes: str
    """The NUMA nodes of these CPUs."""
    state: str
    """Whether the pod owns its CPUs or shares them."""
    reason: str
    """Who decided the state."""
    own: str = ""
    """The CPUs that it owns, with those that are offline."""
    offline: str = ""
    refused: str = ""
    """Why its CPU claim is not honoured."""
    waits: str = ""
    """Why its containers are not created yet."""
    containers: tuple[LiveContainer, ...] = ()


class Attention(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem that a person should see."""

    kind: str
    text: str
    pod: str = ""
    """The title of the pod."""
    device: str = ""
    """The address of the device."""
    time: str = ""
    """The time of the change, as in the audit trail."""


class LiveNode(msgspec.Struct, frozen=True):
    """A node at one moment. CPU sets are lists in the kernel's form."""

    schema_version: int
    node: str
    hardware: tuple[str, ...]
    """CPU models, caches and kinds of memory, as text."""
    generation: int
    """The number of the agent's decision, 0 before the first."""
    cpus: tuple[LiveCpu, ...]
    parts: tuple[LivePart, ...]
    memory_bytes: int
    offline: str
    isolated: str
    pool_kinds: tuple[str, ...]
    """The titles of the pools that are not dedicated."""
    pools: tuple[LivePool, ...]
    pods: tuple[LivePod, ...]
    devices: tuple[ShownDevice, ...]
    attention: tuple[Attention, ...]


def live(
    node: str,
    topology: Topology,
    snapshot: Snapshot | None,
    devices: Sequence[ShownDevice] = (),
    further: Iterable[Attention] = (),
    hardware: Iterable[str] = (),
) -> LiveNode:
    """The node as one value.

    `snapshot`: None if the agent has decided nothing yet.
    `further`: problems in addition to those of pods and devices."""
    pods = _pods(topology, snapshot) if snapshot else ()
    return LiveNode(
        SCHEMA_VERSION,
        node,
        tuple(hardware),
        snapshot.generation if snapshot else 0,
        tuple(
            LiveCpu(cpu.id, cpu.core, cpu.node, cpu.socket, cpu.l3, cpu.kind)
            for cpu in topology.cpus
        ),
        _parts(topology),
        sum(numa_node.memory_bytes for numa_node in topology.numa_nodes),
        str(topology.offline),
        str(topology.isolated),
        tuple(kind.title for kind in POOLS.values() if not kind.dedicated),
        _pools(snapshot) if snapshot else (),
        pods,
        tuple(devices),
        (*further, *_of_pods(pods), *_of_devices(devices)),
    )


def drift(recent: Recent, begin: str) -> tuple[Attention, ...]:
    """What other processes changed, and what could not be written, since `begin`; the newest
    first."""
    drifts = (each for each in recent.changes if each.kind == "drift" and each.time >= begin)
    return tuple(
        Attention("Drift", each.text, pod=each.pod, time=each.time)
        for each in islice(drifts, _MOST_DRIFT)
    )


_MOST_DRIFT: Final = 8


def loads(
    before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]], cpus: Iterable[int]
) -> bytes:
    """One byte for each CPU: its load in percent, 255 if unknown.

    `before`, `after`: by CPU, the time that it was not idle, and all time, both in one unit."""
    percents = bytearray()
    for cpu in cpus:
        busy, total = (
            after[cpu][index] - before[cpu][index] if cpu in before and cpu in after else 0
            for index in (0, 1)
        )
        percents.append(min(max(round(100 * busy / total), 0), 100) if total > 0 else UNKNOWN)
    return bytes(percents)


UNKNOWN: Final = 255


def _parts(topology: Topology) -> tuple[LivePart, ...]:
    homes = {cpu.id: cpu.node for cpu in topology.cpus}
    seen: set[int] = set()

    def of(part: Part, inside: bool) -> LivePart:
        nodes = {homes[cpu] for cpu in part.cpus}
        node = None
        if not inside and len(nodes) == 1 and not nodes <= seen:
            node = nodes.pop()
            seen.add(node)
        parts = tuple(of(each, inside or node is not None) for each in part.parts)
        return LivePart(part.noun, part.title, str(part.cpus), node, parts, part.notes)

    return tuple(of(each, False) for each in nesting.parts(topology))


def _pools(snapshot: Snapshot) -> tuple[LivePool, ...]:
    return tuple(
        LivePool(kind.title, pool.node, pool.cpuset)
        for name, kind in POOLS.items()
        for pool in snapshot.pools.get(name, ())
    )


def _pods(topology: Topology, snapshot: Snapshot) -> tuple[LivePod, ...]:
    homes = {cpu.id: cpu.node for cpu in topology.cpus}
    owners = {owner.uid: owner for owner in snapshot.owners}
    local = {owner.uid for owner in snapshot.local_owners}
    pods = [
        _pod(uid, pod, owners.get(uid), uid in local, homes) for uid, pod in snapshot.pods.items()
    ]
    order = list(QoS)
    return tuple(sorted(pods, key=lambda pod: (order.index(QoS(pod.qos)), pod.title, pod.uid)))


def _pod(
    uid: str, pod: PodWanted, owner: Owner | None, by_policy: bool, homes: Mapping[int, int]
) -> LivePod:
    each_cpus = CpuSet.parse(pod.each.cpuset or "")
    named = {name: CpuSet.parse(each.cpuset or "") for name, each in pod.containers.items()}
    own = owner.cpus if owner else CpuSet()
    # The containers that a node-local policy or the kubelet decides are all named.
    cpus = union([own, *named.values()]) if owner and named else each_cpus | union(named.values())
    waits = pod.each.blocked or next(
        (each.blocked for each in pod.containers.values() if each.blocked), ""
    )
    state, reason = _state(pod, owner, by_policy)
    return LivePod(
        uid,
        pod.title,
        pod.qos.value,
        str(cpus),
        str(CpuSet(homes[cpu] for cpu in cpus if cpu in homes)),
        state,
        reason,
        str(own),
        owner.offline if owner else "",
        pod.refused,
        waits,
        tuple(
            LiveContainer(name, each.cpuset or "", _of_container(each))
            for name, each in sorted(pod.containers.items())
        ),
    )


def _state(pod: PodWanted, owner: Owner | None, by_policy: bool) -> tuple[str, str]:
    if owner is not None and not owner.cpuset:
        return "its CPUs are offline", "the pod shares a pool until they come back"
    if owner is not None and owner.kubelet:
        return "owns its CPUs", "the kubelet assigned them"
    if owner is not None and owner.claims:
        return "owns its CPUs", "ResourceClaims gave them"
    if owner is not None and by_policy:
        return "owns its CPUs", "the node's own CPU policy chose them"
    if owner is not None:
        return "owns its CPUs", "a scheduler chose them (annotation resource-status)"
    if pod.each.unmanaged and not pod.containers:
        return "not managed", "the kubelet or another component sets its CPUs"
    return "shares a pool", f"a pod of class {pod.qos.value} that owns no CPUs"


def _of_container(wanted: Wanted) -> str:
    if wanted.blocked:
        return "waits"
    if wanted.shared is not None:
        return f"own {wanted.own} beside its pool{', by the kubelet' if wanted.kubelet else ''}"
    if wanted.kubelet:
        return "own, by the kubelet"
    return "own" if wanted.exclusive else "not managed" if wanted.cpuset is None else "shared"


def _of_pods(pods: Iterable[LivePod]) -> Iterable[Attention]:
    for each in pods:
        if each.refused:
            yield Attention("Claim refused", each.refused, pod=each.title)
        if each.waits and each.waits not in each.refused:
            yield Attention("Containers wait", each.waits, pod=each.title)
        if each.offline:
            text = f"CPUs {each.offline} of the pod are offline"
            yield Attention("CPUs offline", text, pod=each.title)


def _of_devices(devices: Iterable[ShownDevice]) -> Iterable[Attention]:
    for each in devices:
        if each.healthy is False:
            text = each.state or "the agent marked it unhealthy"
            yield Attention("Device unhealthy", text, device=each.address)
