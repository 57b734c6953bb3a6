"""What this node's kubelet gave away, and how it is configured: one view of its files, its
PodResources and its configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from agent.allocate.device_holders.coexistence import conflicts
from agent.allocate.device_holders.holdings import claimed_cpus
from agent.allocate.reserved_cpus import KubeletCpus
from agent.kubelet import cpu_manager_state
from agent.kubelet.configuration import KubeletConfiguration
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.statefile import StateFileError
from agent.model.holding import DeviceGrant
from agent.model.node_annotations import NodeConfiguration
from agent.model.pods import Pod
from agent.model.topology import Topology
from agent.node.kubelet_configuration import CpuManagerStatus, KubeletConfigurationView
from agent.node.pod_resources import PodResourcesState, PodResourcesStateView
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)


class KubeletState(msgspec.Struct, frozen=True):
    """`resources`: what PodResources reports; `cpus`: the CPUs of pods, by CPU manager state,
    PodResources and claims; `grants`: devices and CPUs of pods, also those that only containers
    show."""

    resources: PodResourcesState
    cpus: KubeletCpus
    grants: tuple[DeviceGrant, ...] = ()


class KubeletView:
    """Reads the state of the kubelet on this node."""

    def __init__(
        self,
        configuration: KubeletConfigurationView,
        cpu_manager: CpuManagerStateView,
        pod_resources: PodResourcesStateView,
    ) -> None:
        self._configuration = configuration
        self._cpu_manager = cpu_manager
        self._pod_resources = pod_resources
        self._claims = ResourceClaimView()

    def state(
        self, topology: Topology, pods: tuple[Pod, ...], shown: tuple[DeviceGrant, ...]
    ) -> KubeletState:
        """The state of these pods; `shown`: what their containers show of devices and CPUs. Call it
        after the runtime was listed: then the CPU manager's state names every listed container.
        Raises StateFileError before the first readable answer."""
        resources = self._pod_resources.now(topology, pods)
        grants = (*resources.grants, *shown)
        none = KubeletCpus() if self._configuration.gives_no_cpus else None
        cpus = self._cpu_manager.cpus(resources.cpus or none)
        return KubeletState(resources, self._claims.with_claims(cpus, grants), grants)

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
        """Logs an error, and the entries that can't be read, once. Until the file could be read
        once it returns `instead`, the answer of another source, or raises StateFileError without
        one: containers with CPUs of the kubelet can't be told from the others."""
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
        self._report(f"{self._path}: not used: {problems}" if problems else "")
        # A container whose entry can't be read has no entry, and yet it is not in the shared pool.
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


class ResourceClaimView:
    """CPUs of resource claims (DRA). It logs once what it can't use, and CPUs of two pods."""

    def __init__(self) -> None:
        self._logged: frozenset[tuple[int, str]] = frozenset()

    def with_claims(self, kubelet: KubeletCpus, grants: Iterable[DeviceGrant]) -> KubeletCpus:
        """Adds the CPUs of the claims among `grants`."""
        found = claimed_cpus(grants)
        overlapping = (
            f"pod {each.refused.uid} has CPUs {each.refused.part}, which pod {each.kept.uid} has"
            for each in conflicts(found.holdings, {})
        )
        # PodResources lists a container some moments after the runtime does.
        now = frozenset(
            [(logging.INFO, each) for each in found.problems]
            + [(logging.WARNING, each) for each in overlapping]
        )
        for level, problem in sorted(now - self._logged):
            log.log(level, "claims: %s", problem)
        self._logged = now
        if not found.by_uid:
            return kubelet
        return msgspec.structs.replace(kubelet, claimed=found.by_uid)
