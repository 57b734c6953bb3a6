"""The containers with devices, for the decision about their NUMA nodes (`allocate.locality`).

A container stays near to the devices that it had once: while a source can't be read, also after a
restart of the agent, and when a device plugin or a claim no longer names a device that the
container still uses, its place does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Final

from agent.allocate.device_holders.names import Keys
from agent.allocate.locality import Distances, Key, LocalityInput, NearContainer, NearNodes
from agent.allocate.present import in_api
from agent.allocate.visibility.pod_devices import DeviceVisibility, PodVisibility
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import DeviceLocality
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Device
from agent.model.devices.holding import DeviceHolding, DeviceNodes, HoldingSource
from agent.model.devices.pci import Function
from agent.model.devices.resource_slice import DraDevice, DraLocation
from agent.model.pod.annotations import AnnotationError, device_locality
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.snapshot import Patterns, Snapshot, excludes
from agent.node.devices import DeviceState
from agent.node.lookup import Lookup

Claimed = Mapping[Key, tuple[DraDevice, ...]]
REST_SECONDS: Final = 600.0
"""A container moves between near NUMA nodes and more of them once in this time."""


_OF_PLUGIN: Final = frozenset({HoldingSource.CHECKPOINT, HoldingSource.ANSWER})


def device_nodes(
    plugins: DeviceNodes,
    holdings: Iterable[DeviceHolding],
    allocated: Mapping[tuple[str, str], Collection[str]],
    devices: Iterable[Device],
    keys: Keys,
    network: Mapping[Key, Collection[str]] = MappingProxyType({}),
    functions: Mapping[str, Function] = MappingProxyType({}),
) -> dict[Key, tuple[CpuSet, ...]]:
    """The NUMA nodes of all devices of the containers that have some. What a device plugin says of
    its own device counts instead of what the machine shows.

    `plugins`: what device plugins say of the devices that they gave.
    `holdings`: the devices that containers hold without an allocation of a scheduler.
    `allocated`: the names of the devices that a scheduler allocated, by pod uid and container name.
    `devices`: all devices of the machine.
    `keys`: the devices by each of their names.
    `network`: the addresses of the PCI functions in the network namespaces of containers.
    `functions`: by address."""
    node_of = {
        (device.type, device.uuid): device.topology.node
        for device in devices
        if device.topology is not None
    }

    def nodes_of(device: tuple[str, str]) -> CpuSet:
        node = node_of.get(device, -1)
        return CpuSet((node,) if node >= 0 else ())

    located: dict[tuple[str, str], list[CpuSet]] = {
        key: list(of_container) for key, of_container in plugins.items() if of_container
    }
    placed_by_plugin = {key for key, of_container in located.items() if any(of_container)}
    for each in holdings:
        container = each.uid, each.container
        if each.device and not (each.source in _OF_PLUGIN and container in placed_by_plugin):
            located.setdefault(container, []).append(nodes_of((each.type, each.device)))
    for container, names in allocated.items():
        for name in sorted(names):
            if target := keys.get(name):
                nodes = nodes_of((target.type, target.device))
                located.setdefault(container, []).append(nodes)
    for container, addresses in network.items():
        for address in addresses:
            located.setdefault(container, []).append(_node_of(functions.get(address)))
    return {container: tuple(nodes) for container, nodes in located.items()}


class LocalityView:
    """Knows the near NUMA nodes of containers, and when each of them moved last.

    `policy`: of pods without the annotation in namespaces without the label.
    `locations`: of the devices of claims; None without an API server.
    `namespaces`: the policies of namespaces; None without an API server.
    `read_claims`: called when pods with claims are about to start."""

    def __init__(
        self,
        policy: DeviceLocality = DeviceLocality.PREFER,
        clock: Callable[[], float] = time.monotonic,
        locations: Lookup[DraDevice, DraLocation] | None = None,
        namespaces: Lookup[str, DeviceLocality | None] | None = None,
        read_claims: Callable[[], None] = lambda: None,
    ) -> None:
        self._read_claims = read_claims
        self.unplaced: frozenset[str] = frozenset()
        """The uids of pods that are about to start while the agent does not know their place: the
        kubelet has not reported their claims, or the label of their namespace was not read."""
        self._claims = locations
        self._namespaces = namespaces
        self._policy = policy
        self._clock = clock
        self._distances: tuple[Topology, Distances] | None = None
        self._near: dict[Key, CpuSet] = {}
        self._told: dict[Key, CpuSet] = {}
        """The NUMA nodes that the last agent decided; they count until `_told_until`."""
        self._told_until = 0.0
        self._unreported: frozenset[str] = frozenset()
        self._places: dict[Key, CpuSet] | None = None
        self._moved_at: dict[Key, float] = {}

    def decides(self, topology: Topology) -> bool:
        """Whether pods without annotation and label are near to their devices."""
        several = len(self._distances_of(topology).with_cpus) > 1
        return several and self._policy is not DeviceLocality.OFF

    def decision_input(
        self,
        topology: Topology,
        pods: tuple[Pod, ...],
        api_pods: Collection[ApiPod],
        plugins: DeviceNodes | None,
        claimed: Claimed,
        devices: DeviceState,
        visibility: DeviceVisibility | None,
        holds: Mapping[str, CpuSet],
        last: Snapshot | None,
        exclude: Patterns = (),
    ) -> LocalityInput | None:
        """The containers with devices; None without any, and on a machine whose CPUs are on one
        NUMA node.

        `plugins`: the NUMA nodes of the devices that plugins gave; None while they are not known.
        `claimed`: the devices of ResourceClaims.
        `holds`: by container id, the CPUs of its cgroup.
        `last`: the snapshot of the last agent, in the first pass.
        `exclude`: containers that the agent does not manage."""
        distances = self._distances_of(topology)
        self.unplaced = frozenset()
        if len(distances.with_cpus) < 2:
            return None
        locations = self._locations(claimed)
        located = device_nodes(
            plugins or {},
            devices.existing,
            dict(self._allocated(pods, visibility.pods if visibility else {})),
            devices.report.devices,
            devices.keys,
            devices.network,
            devices.functions,
        )
        for key, of_container in claimed.items():
            of_claims = tuple(
                _nodes_of(locations[each], devices.functions)
                for each in of_container
                if each in locations
            )
            located[key] = (*located.get(key, ()), *of_claims)
        by_uid = {pod.uid: pod for pod in pods}
        near = self._near_nodes(distances, by_uid, located, last)
        labels = self._labels({by_uid[uid].namespace for uid, _ in near})
        with_claims = any(each.has_claims for each in api_pods)
        in_cluster = in_api(pods, api_pods) if near or with_claims else {}
        if self._policy is not DeviceLocality.OFF:
            unread = {uid for uid, _ in near if by_uid[uid].namespace not in labels}
            self._note_unplaced(pods, in_cluster, claimed, locations, unread)
        if not near:
            return None
        requests = _requests([by_uid[uid] for uid in {uid for uid, _ in near}], in_cluster)
        containers = []
        for key, nodes in sorted(near.items()):
            pod = by_uid[key[0]]
            policy = self._policy_of(pod, key, labels)
            if policy is DeviceLocality.OFF or excludes(exclude, pod.namespace, pod.name, key[1]):
                continue
            cpu_milli, memory_bytes = requests.get(key, (0, 0))
            # The runtime does not show the memory limit of a pod that the API has not listed.
            bound = policy is DeviceLocality.BIND and pod.uid in in_cluster
            containers.append(
                NearContainer(
                    *key,
                    nodes,
                    cpu_milli,
                    pod.created_at,
                    bound,
                    memory_bytes,
                    policy is DeviceLocality.REQUIRE,
                )
            )
        before = self._places if self._places is not None else self._running(pods, holds, topology)
        since = self._clock() - REST_SECONDS
        self._moved_at = {
            key: moved for key, moved in self._moved_at.items() if moved > since and key in before
        }
        return LocalityInput(tuple(containers), before, frozenset(self._moved_at))

    def _locations(self, claimed: Claimed) -> Mapping[DraDevice, DraLocation]:
        if self._claims is None:
            return {}
        return self._claims.facts({each for devices in claimed.values() for each in devices})

    def _near_nodes(
        self,
        distances: Distances,
        present: Container[str],
        located: Mapping[Key, tuple[CpuSet, ...]],
        last: Snapshot | None,
    ) -> dict[Key, CpuSet]:
        """The near NUMA nodes of all containers with devices. They do not become fewer: then a
        source is silent. After a restart a source may be silent for some time."""
        if self._places is None:
            self._told, self._told_until = _told(last), self._clock() + REST_SECONDS
        for key, nodes in located.items():
            near = distances.near(nodes)
            if near and not near < self._near.get(key, EMPTY):
                self._near[key] = near
        self._near = {key: nodes for key, nodes in self._near.items() if key[0] in present}
        self._told = {key: nodes for key, nodes in self._told.items() if key[0] in present}
        if self._clock() >= self._told_until:
            self._near, self._told = {**self._told, **self._near}, {}
        wider = {
            key: nodes for key, nodes in self._told.items() if self._near.get(key, EMPTY) < nodes
        }
        return {**self._near, **wider}

    def _labels(self, namespaces: Collection[str]) -> Mapping[str, DeviceLocality | None]:
        if self._namespaces is None:
            return dict.fromkeys(namespaces)
        return self._namespaces.facts(namespaces)

    def _policy_of(
        self, pod: Pod, key: Key, labels: Mapping[str, DeviceLocality | None]
    ) -> DeviceLocality:
        """The policy of a container. While the label of its namespace was not read, it keeps the
        place that it has."""
        default = self._policy
        if pod.namespace in labels:
            default = labels[pod.namespace] or default
        elif key in self._told or key in (self._places or {}):
            default = DeviceLocality.PREFER
        else:
            default = DeviceLocality.OFF
        try:
            return device_locality(pod.annotations, default)
        except AnnotationError:
            return default  # the decision refuses the annotation (allocate.pools)

    def _note_unplaced(
        self,
        pods: Collection[Pod],
        in_cluster: Mapping[str, ApiPod],
        claimed: Claimed,
        locations: Mapping[DraDevice, DraLocation],
        unread: Set[str],
    ) -> None:
        """`unread`: the pods in namespaces whose label was not read."""
        coming = {pod.uid: pod for pod in pods if not pod.containers and not pod.ended}
        reported = {
            uid for (uid, _), devices in claimed.items() if locations.keys() >= set(devices)
        }
        with_claims = {
            uid for uid in coming.keys() & in_cluster.keys() if in_cluster[uid].has_claims
        }
        unreported = with_claims - reported
        self.unplaced = frozenset(unreported | (unread & coming.keys()))
        # The kubelet has prepared the claims of a pod before it makes the sandbox.
        if any(coming[uid].sandboxes for uid in unreported) or unreported - self._unreported:
            self._read_claims()
        self._unreported = frozenset(unreported)

    def _distances_of(self, topology: Topology) -> Distances:
        if self._distances is None or self._distances[0] != topology:
            self._distances = topology, Distances(topology)
        return self._distances[1]

    def _allocated(
        self, pods: Iterable[Pod], visible: Mapping[str, PodVisibility]
    ) -> Iterator[tuple[Key, frozenset[str]]]:
        """The devices that a scheduler allocated, of the containers that have some. In a cluster
        only the pod's spec shows which these are."""
        for pod in pods:
            of_pod = visible.get(pod.uid)
            if of_pod is None or not of_pod.devices:
                continue
            if of_pod.of_containers is not None:
                for name, devices in of_pod.of_containers.items():
                    yield (pod.uid, name), devices
            elif pod.named is not None or self._namespaces is None:
                names = pod.named or tuple(each.name for each in pod.containers)
                yield from (((pod.uid, name), of_pod.devices) for name in names)

    def decided(self, places: Mapping[Key, NearNodes]) -> None:
        """Keeps the decided places."""
        now = self._clock()
        before = self._places or {}
        self._places = {key: place.nodes for key, place in places.items()}
        for key, nodes in self._places.items():
            if before.get(key, nodes) != nodes:
                self._moved_at[key] = now

    def _running(
        self, pods: Iterable[Pod], holds: Mapping[str, CpuSet], topology: Topology
    ) -> dict[Key, CpuSet]:
        """The NUMA nodes of containers that run on more than their near ones: after a restart of
        the agent they are the last decision."""
        node_of = {cpu.id: cpu.node for cpu in topology.cpus}
        running = {}
        for pod in pods:
            for container in pod.containers:
                near = self._near.get((pod.uid, container.name))
                held = holds.get(container.id, EMPTY)
                nodes = CpuSet(node_of[cpu] for cpu in held if cpu in node_of)
                if near is not None and near < nodes:
                    running[pod.uid, container.name] = nodes
        return running


def _told(snapshot: Snapshot | None) -> dict[Key, CpuSet]:
    """The NUMA nodes of the containers that shared a pool near to their devices."""
    if snapshot is None:
        return {}
    return {
        (uid, name): CpuSet.parse(wanted.numa_nodes)
        for uid, pod in snapshot.pods.items()
        for name, wanted in pod.containers.items()
        if wanted.numa_nodes and not wanted.exclusive
    }


def _requests(pods: Iterable[Pod], in_cluster: Mapping[str, ApiPod]) -> dict[Key, tuple[int, int]]:
    """The CPU requests in milli-CPU, and the memory limits in bytes: those of the API, else those
    that the runtime shows, which does not show the memory. An init container that ends requests no
    CPU: the others take its place."""
    requests: dict[Key, tuple[int, int]] = {}
    for pod in pods:
        for container in pod.containers:
            requests[pod.uid, container.name] = container.shares * 1000 // 1024, 0
        if api_pod := in_cluster.get(pod.uid):
            of_pod = api_pod.limits.get("memory", 0)
            for each in (*api_pod.init_containers, *api_pod.containers):
                ends = each in api_pod.init_containers and not each.sidecar
                cpu_milli = 0 if ends else each.counted.get("cpu", 0)
                requests[pod.uid, each.name] = cpu_milli, each.limits.get("memory", of_pod)
    return requests


def _nodes_of(location: DraLocation, functions: Mapping[str, Function]) -> CpuSet:
    """The NUMA nodes that the attributes of a device name, else that of its PCI address."""
    return location.nodes or _node_of(functions.get(location.bus))


def _node_of(function: Function | None) -> CpuSet:
    return CpuSet((function.node,) if function is not None and function.node >= 0 else ())
