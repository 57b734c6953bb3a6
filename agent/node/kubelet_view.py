"""The CPUs, memory and devices that this node's kubelet gave to pods, and its configuration, from
four sources: its PodResources, its state files, resource claims, and its configuration.

PodResources are polled on a thread of their own, so that no pass waits for a kubelet.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Portion
from agent.model.devices.holding import DeviceNodes, ReportedDevices
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.pod.pod_resources import Allocatable, PodName, PodResources
from agent.model.pod.pods import Pod
from agent.node.kubelet_configuration import CpuManagerStatus, KubeletConfigurationView
from agent.node.node_resource_topology import Allocated
from agent.node.pod_holdings import by_uid, device_portions, holdings, reserved, with_running
from agent.node.sources import SourceName, Sources

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

    def refresh(self) -> None:
        """Polls soon, after an event."""
        self._polling.hurry()

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
        reported = holdings(answer.pods, topology, answer.allocatable, ended)
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
            (uids[pod.key], each.name): Counter(
                node for device in each.devices for node in device.nodes
            )
            for pod in answer.pods
            if pod.key in uids
            for each in pod.containers
        }
        if answer.allocatable is None:
            return PodResourcesState(held, reported_devices=given, device_nodes=near)
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
        )


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
        return msgspec.structs.replace(kubelet, claimed=claimed.by_uid)
