"""The CPUs, memory and devices that this node's kubelet gave to pods, and its configuration, from
four sources: its PodResources, its state files, resource claims, and its configuration.

PodResources are polled on a thread of their own, so that no pass waits for a kubelet.
`kubelet_resources` and `device_portions` correct known errors in their answers. Each rule cites its
source; file names are those of Kubernetes 1.36.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from agent.allocate.device_holders.holdings import claimed_cpus, conflicts
from agent.allocate.device_holders.reported_devices import of_pod_resources
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.shares import kubelet_may_own
from agent.host.daemon import Periodic
from agent.host.files import boot_id, stamp
from agent.kubelet import cpu_manager_state, device_checkpoint
from agent.kubelet.configuration import KubeletConfiguration
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.podresources import NotServedError, PodResourcesClient, PodResourcesError
from agent.kubelet.statefile import StateFileError
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Portion
from agent.model.devices.holding import DeviceNodes, ReportedDevices
from agent.model.devices.resource_slice import DraDevice
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.pod.pod_resources import (
    Allocatable,
    ContainerResources,
    MemoryBlock,
    PluginDevice,
    PodName,
    PodResources,
)
from agent.model.pod.pods import Pod
from agent.node.kubelet_configuration import CpuManagerStatus, KubeletConfigurationView
from agent.node.node_resource_topology import Allocated, Reserved, zones
from agent.node.sources import SourceName, Sources

Amounts = dict[int, dict[str, int]]


class KubeletResources(msgspec.Struct, frozen=True):
    """The CPUs, memory and devices that the kubelet gave to pods."""

    pods: Mapping[PodName, Allocated] = {}
    """Without pods that hold nothing."""
    problems: tuple[str, ...] = ()
    """What was left out, and why."""


def kubelet_resources(
    pods: Iterable[PodResources],
    topology: Topology,
    allocatable: Allocatable | None = None,
    ended: Collection[PodName] = (),
) -> KubeletResources:
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
    return KubeletResources(
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


log = logging.getLogger(__name__)


PERIOD_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 1.0
"""From an event to the poll that it requests: a poll at once would delay the start of the pod that
caused it, and all clients of a kubelet share its 100 calls a second."""
ANSWER_SECONDS: Final = 10.0
"""How long other clients wait for an answer (resource-topology-exporter: pkg/podres/client.go,
DefaultTimeout)."""


class KubeletState(msgspec.Struct, frozen=True):
    """What the kubelet gave to pods."""

    resources: PodResourcesState
    """The report of PodResources."""
    cpus: KubeletCpus
    """The CPUs of pods, by CPU manager state, PodResources and claims."""
    reported_devices: tuple[ReportedDevices, ...] = ()
    """Devices and CPUs of pods, also those that only containers show."""


class KubeletView:
    """Reads the state of the kubelet on this node."""

    def __init__(
        self,
        configuration: KubeletConfigurationView,
        cpu_manager: CpuManagerStateView,
        pod_resources: PodResourcesStateView,
        devices: DeviceCheckpointView,
    ) -> None:
        self._configuration = configuration
        self._cpu_manager = cpu_manager
        self._pod_resources = pod_resources
        self._devices = devices
        self._claims = ResourceClaimView()

    def state(
        self, topology: Topology, pods: tuple[Pod, ...], shown: tuple[ReportedDevices, ...]
    ) -> KubeletState:
        """The state of these pods. Call it after the runtime was listed: then the CPU manager's
        state names every listed container.

        `shown`: the devices and CPUs that the containers show.

        Raises StateFileError before the first readable answer."""
        resources = self._pod_resources.now(topology, pods)
        reported_devices = (*resources.reported_devices, *shown)
        none = KubeletCpus() if self._configuration.has_no_static_policy else None
        cpus = self._cpu_manager.cpus(resources.cpus or none)
        return KubeletState(
            resources, self._claims.with_claims(cpus, reported_devices), reported_devices
        )

    def device_nodes(self, state: KubeletState) -> DeviceNodes | None:
        """The NUMA nodes of the devices that plugins gave, by the checkpoint, which the kubelet
        writes before it creates a container, else by PodResources; None while the checkpoint can't
        be read."""
        written = self._devices.nodes()
        return None if written is None else {**state.resources.device_nodes, **written}

    def configure(
        self, node: NodeConfiguration, topology: Topology, state: KubeletState
    ) -> NodeConfiguration:
        """Adds the settings and the kubelet's configuration to those of the Node object."""
        status = CpuManagerStatus(self._cpu_manager.state, state.resources.reserved_cpus)
        return self._configuration.applied(node, topology, status)

    @property
    def configuration(self) -> KubeletConfiguration | None:
        """The last configuration that could be read as a whole."""
        return self._configuration.known


class PodResourcesAnswer(msgspec.Struct, frozen=True):
    pods: tuple[PodResources, ...]
    allocatable: Allocatable | None
    """None if the kubelet does not serve it."""
    called_at: float
    """Seconds on the monotonic clock; later events may be missing."""


class PodResourcesView:
    """Polls every `period_seconds`, and `settle_seconds` after `refresh`.

    `last_answer` never waits: None before the first answer, then the last valid one, also while no
    kubelet answers: its pods keep their resources.

    `changed`: called on the thread after an answer that differs from the last."""

    def __init__(
        self,
        socket_path: str,
        changed: Callable[[], None] | None = None,
        period_seconds: float = PERIOD_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        sources: Sources | None = None,
    ) -> None:
        self._client = PodResourcesClient(socket_path, answer_seconds)
        self._changed = changed
        self._answer_seconds = answer_seconds
        self._answer: PodResourcesAnswer | None = None
        self._sources = sources or Sources()
        self._problems: dict[tuple[type[PodResourcesError], str], str] = {}
        """The first error of each kind since the last valid answer: the texts may differ each
        time."""
        self._polling = Periodic("pod-resources", period_seconds, self._poll, settle_seconds)
        self._polling.start()

    def last_answer(self) -> PodResourcesAnswer | None:
        return self._answer

    def refresh(self, *, at_once: bool = False) -> None:
        """Polls soon, after an event.

        `at_once`: a container waits for the answer."""
        self._polling.hurry(at_once=at_once)

    def close(self) -> None:
        """Ends the thread after the poll in progress."""
        self._polling.stop(2 * self._answer_seconds)
        self._client.close()

    def _poll(self) -> None:
        called_at = time.monotonic()
        try:
            answer = PodResourcesAnswer(self._client.pods(), self._allocatable(), called_at)
        except PodResourcesError as error:
            self._failed(error)
            return
        last, self._answer = self._answer, answer
        self._report(
            {key: text for key, text in self._problems.items() if key[0] is NotServedError}
        )
        differs = last is None or last.pods != answer.pods or last.allocatable != answer.allocatable
        if differs and self._changed is not None:
            self._changed()

    def _allocatable(self) -> Allocatable | None:
        try:
            return self._client.allocatable()
        except NotServedError as error:
            self._failed(error)
            return None

    def _failed(self, error: PodResourcesError) -> None:
        self._report({(type(error), error.method): str(error)} | self._problems)

    def _report(self, problems: dict[tuple[type[PodResourcesError], str], str]) -> None:
        self._problems = problems
        # Without any answer there may be no kubelet, or one without this API.
        level = logging.INFO if self._answer is None else logging.WARNING
        self._sources.report(SourceName.POD_RESOURCES, problems.values(), level)


class PodResourcesState(msgspec.Struct, frozen=True):
    """What PodResources reports."""

    held: Mapping[str, Allocated] = {}
    """By pod uid."""
    portions: tuple[Portion, ...] = ()
    """The portions of devices that plugins gave to the kubelet."""
    reserved_memory_bytes: Mapping[int, int] = {}
    """By NUMA node."""
    reported_devices: tuple[ReportedDevices, ...] = ()
    """Devices by plugin or driver."""
    reserved_cpus: CpuSet = EMPTY
    """The CPUs that no pod gets exclusively."""
    cpus: KubeletCpus | None = None
    """The part of the CPU manager's state that PodResources has, None when the kubelet does not
    serve its allocatable CPUs."""
    device_nodes: DeviceNodes = {}
    """The NUMA nodes of the devices that plugins gave."""
    claimed: Mapping[tuple[str, str], tuple[DraDevice, ...]] = {}
    """By pod uid and container name, the devices of ResourceClaims."""


class PodResourcesSource(Protocol):
    """Polls the kubelet."""

    def last_answer(self) -> PodResourcesAnswer | None: ...


class PodResourcesStateView:
    """Keeps the resources of pods that the kubelet no longer lists while the runtime still runs
    them."""

    def __init__(self, view: PodResourcesSource, sources: Sources | None = None) -> None:
        self._view = view
        self._sources = sources or Sources()
        self._held: dict[PodName, Allocated] = {}

    def now(self, topology: Topology, pods: tuple[Pod, ...]) -> PodResourcesState:
        """The state of these pods; empty before the first answer of a kubelet."""
        answer = self._view.last_answer()
        if answer is None:
            return PodResourcesState()
        names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
        present = frozenset(names.values())
        ended = {pod.key for pod in answer.pods} - present
        reported = kubelet_resources(answer.pods, topology, answer.allocatable, ended)
        self._sources.report(SourceName.POD_RESOURCES_CONTENT, reported.problems)
        self._held = with_running(self._held, reported.pods, present)
        sharing = {pod.uid for pod in pods if not kubelet_may_own(pod)}
        held = {
            uid: msgspec.structs.replace(each, cpus=EMPTY) if uid in sharing else each
            for uid, each in by_uid(self._held, names).items()
        }
        uids = _unique_names(names)
        given = of_pod_resources(answer.pods, uids)
        near = {
            (uids[pod.key], each.name): tuple(CpuSet(device.nodes) for device in each.devices)
            for pod in answer.pods
            if pod.key in uids
            for each in pod.containers
        }
        claimed = {
            (uids[pod.key], each.name): devices
            for pod in answer.pods
            if pod.key in uids
            for each in pod.containers
            if (devices := tuple(_dra_devices(each)))
        }
        if answer.allocatable is None:
            return PodResourcesState(
                held, reported_devices=given, device_nodes=near, claimed=claimed
            )
        kept_back = reserved(topology, answer.allocatable)
        return PodResourcesState(
            held,
            device_portions(answer.pods, answer.allocatable, ended),
            kept_back.memory_bytes,
            given,
            kept_back.cpus,
            KubeletCpus(
                bool(answer.allocatable.cpus),
                {uid: each.cpus for uid, each in held.items() if each.cpus},
                _containers(answer.pods, uids, answer.allocatable.cpus),
            ),
            near,
            claimed,
        )


def _dra_devices(container: ContainerResources) -> Iterator[DraDevice]:
    for claim in container.claims:
        for each in claim.devices:
            yield DraDevice(each.driver, each.pool, each.device)


def _containers(
    pods: Iterable[PodResources], uids: Mapping[PodName, str], allocatable: CpuSet
) -> dict[str, dict[str, CpuSet]]:
    """By pod uid, the exclusive CPUs of containers, without pods that hold CPUs as a whole."""
    return {
        uids[pod.key]: {
            container.name: container.cpus
            for container in pod.containers
            if container.cpus and container.cpus <= allocatable
        }
        for pod in pods
        if pod.key in uids and not pod.cpus and any(container.cpus for container in pod.containers)
    }


def _unique_names(names: Mapping[str, PodName]) -> dict[PodName, str]:
    """The uids of pods by name, without names that several pods have, because PodResources has no
    uids."""
    uids: dict[PodName, list[str]] = {}
    for uid, name in names.items():
        uids.setdefault(name, []).append(uid)
    return {name: of_name[0] for name, of_name in uids.items() if len(of_name) == 1}


class CpuManagerStateView:
    """Reads the state file of the CPU manager. While it can't be read, its last valid content stays
    in force."""

    def __init__(self, folder: str, sources: Sources | None = None) -> None:
        self._path = f"{folder}/{cpu_manager_state.FILE_NAME}"
        self._sources = sources or Sources()
        self._last: KubeletCpus | None = None
        self.state: CpuManagerState | None = None
        """The last valid content; None without a file, and before the first valid one."""

    def cpus(self, instead: KubeletCpus | None = None) -> KubeletCpus:
        """Reads the file. Logs an error, and entries that can't be read, once. If the file could
        never be read, returns `instead`, the answer of another source; without one raises
        StateFileError, because it is not known which containers have CPUs of the kubelet."""
        try:
            state = cpu_manager_state.read(self._path)
        except StateFileError as error:
            if self._last is None:
                self._report(str(error))
                if instead is None:
                    raise
                return instead
            self._report(f"keeping the kubelet's last CPUs: {error}")
            return self._last
        problems = "; ".join(state.problems)
        self._report(f"{self._path}: ignored: {problems}" if problems else "")
        # A container whose entry can't be read is missing in the state, but it does not use the
        # shared pool.
        containers = {
            uid: of_pod
            for uid, of_pod in state.entries.items()
            if of_pod and uid not in state.pods and not state.problems
        }
        self.state = None if state == CpuManagerState() else state
        self._last = KubeletCpus(state.static, state.by_uid, containers)
        return self._last

    def _report(self, problem: str) -> None:
        self._sources.report(SourceName.CPU_MANAGER_STATE, (problem,) if problem else ())


class DeviceCheckpointView:
    """Reads the device checkpoint again when it has changed. While it can't be read, its last valid
    content stays in force."""

    def __init__(self, kubelet_dir: str, sources: Sources | None = None) -> None:
        self._path = os.path.join(kubelet_dir, device_checkpoint.FILE_NAME)
        self._boot_id = boot_id()
        self._stamp = stamp("")
        self._devices: tuple[ReportedDevices, ...] = ()
        self._nodes: DeviceNodes | None = None
        self._sources = sources or Sources()

    def reported_devices(self) -> tuple[ReportedDevices, ...]:
        """The devices of containers; empty without a checkpoint. Logs once what can't be read."""
        self._refresh()
        return self._devices

    def nodes(self) -> DeviceNodes | None:
        """The NUMA nodes of devices by container; empty without a checkpoint, None if it could
        never be read."""
        self._refresh()
        return self._nodes

    def _refresh(self) -> None:
        now = stamp(self._path)
        if now != self._stamp or self._nodes is None:
            try:
                read = device_checkpoint.read(self._path)
            except StateFileError as error:
                self._report(str(error))
                return
            self._stamp = now
            self._nodes = device_checkpoint.nodes_of(read)
            self._devices, problems = device_checkpoint.reported_devices_of(read, self._boot_id)
            self._report(*(f"{self._path}: {each}" for each in problems))

    def _report(self, *problems: str) -> None:
        self._sources.report(SourceName.DEVICE_CHECKPOINT, problems)


class ResourceClaimView:
    """CPUs of resource claims (DRA). Logs once the claims that it can't use, and CPUs that two pods
    have."""

    def __init__(self) -> None:
        self._logged: frozenset[tuple[int, str]] = frozenset()

    def with_claims(
        self, kubelet: KubeletCpus, reported_devices: Iterable[ReportedDevices]
    ) -> KubeletCpus:
        """Adds the CPUs of the claims among `reported_devices`."""
        claimed = claimed_cpus(reported_devices)
        overlapping = (
            f"pod {each.refused.uid} has CPUs {each.refused.part}, which pod {each.kept.uid} has"
            for each in conflicts(claimed.holdings, {})
        )
        # PodResources lists a container shortly after the runtime does.
        now = frozenset(
            [(logging.INFO, each) for each in claimed.problems]
            + [(logging.WARNING, each) for each in overlapping]
        )
        for level, problem in sorted(now - self._logged):
            log.log(level, "claims: %s", problem)
        self._logged = now
        if not claimed.by_uid:
            return kubelet
        return msgspec.structs.replace(kubelet, of_dra=claimed.by_uid)
