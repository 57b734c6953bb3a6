"""The node's configuration for CPUs: the annotations and labels of its Node object, the kubelet's
configuration and the agent's settings, and the rules of the shared pools that follow.

While an annotation can't be read, its last valid value stays in force. Settings that contradict the
kubelet's configuration raise an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.kubelet.static_policy import NotEnoughCpusError
from agent.allocate.reserved_cpus import DedicatedCpus, PoolRules, cpus_for, reserved_cpus
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import BIND_LABEL, BIND_VALUES, BindPolicy
from agent.model.cpu.topology import Topology
from agent.model.nrt.node_annotations import (
    BIND_MEMORY,
    NUMA_MEMORY_POLICY,
    NodeConfiguration,
    NodeReservation,
    SystemQos,
    cpu_normalization_ratio,
    label_faults,
    node_reservation,
    system_qos,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.apiobjects import ApiNode
from agent.model.pod.qos import QoS, pool_of_class
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node.sources import SourceName, Sources

STRICT_CPU_RESERVATION: Final = "strict-cpu-reservation"


class CombinationError(SettingsError):
    """The kubelet's configuration and the settings contradict each other. The message names the
    remedy."""


class NodeObject:
    """Keeps the last valid value of each annotation."""

    def __init__(self, node_name: str, sources: Sources | None = None) -> None:
        self._name = node_name
        self._sources = sources or Sources()
        self._last = NodeConfiguration()
        self._read: tuple[Topology, ApiNode] | None = None
        self.faults: tuple[str, ...] = ()
        """Why annotations can't be read or labels have no effect."""

    def configuration(self, node: ApiNode, topology: Topology) -> NodeConfiguration:
        """Logs once an annotation that can't be read and a label with an unknown value, and never
        fails."""
        if self._read != (topology, node):
            self._read = topology, node
            annotated, problems = from_annotations(self._last, node.annotations, topology)
            self._last = msgspec.structs.replace(
                annotated, bind_memory=node.labels.get(NUMA_MEMORY_POLICY) == BIND_MEMORY
            )
            self.faults = (*sorted(problems), *label_faults(node.labels))
            self._sources.report(
                SourceName.NODE_OBJECT, (f"node {self._name}: {each}" for each in self.faults)
            )
        return self._last


def from_annotations(
    last: NodeConfiguration, annotations: Mapping[str, str], topology: Topology
) -> tuple[NodeConfiguration, frozenset[str]]:
    """The configuration from a Node's annotations, and why some can't be read: those keep their
    value in `last`. When an amount of CPU is reserved, the configuration names the CPUs, and none
    when the machine has fewer."""
    system, reservation = last.system_qos, last.reservation
    problems = []
    try:
        system = _system(annotations)
    except AnnotationError as error:
        problems.append(str(error))
    try:
        reservation = declared = _reservation(annotations)
        cpus = reserved_cpus(layouts.of(topology.cpus), declared)
        reservation = msgspec.structs.replace(declared, reserved_cpus=str(cpus))
    except AnnotationError as error:
        problems.append(str(error))
    ratio = last.cpu_normalization_ratio
    try:
        ratio = cpu_normalization_ratio(annotations)
    except AnnotationError as error:
        problems.append(str(error))
    configuration = msgspec.structs.replace(
        last, system_qos=system, reservation=reservation, cpu_normalization_ratio=ratio
    )
    return configuration, frozenset(problems)


def with_kubelet(
    configuration: NodeConfiguration, kubelet: KubeletConfiguration, topology: Topology
) -> NodeConfiguration:
    """Adds the configuration of this node's kubelet, and the CPUs that it reserves: those of
    reservedSystemCPUs under every policy, those for an amount under the static policy alone,
    because no other kubelet chooses CPUs for it. Raises ConfigurationError for a reservation that
    exceeds the machine's CPUs: no kubelet starts with it."""
    reserved = kept_by_kubelet(kubelet, topology) if kubelet.static else kubelet.reserved_cpus
    return msgspec.structs.replace(
        configuration,
        kubelet_policy=kubelet.cpu_manager_policy,
        kubelet_options=kubelet.cpu_manager_options,
        kubelet_reserved=reserved,
        topology_policy=kubelet.topology_manager_policy,
        topology_scope=kubelet.topology_manager_scope,
        kubelet_memory=kubelet.memory_manager_policy == "Static",
        reserved_memory_bytes=kubelet.reserved_memory_bytes,
        max_numa_nodes=kubelet.max_numa_nodes,
    )


def kept_by_kubelet(kubelet: KubeletConfiguration, topology: Topology) -> CpuSet:
    """The CPUs that a kubelet with the static policy never assigns: reservedSystemCPUs, else those
    that it takes for kubeReserved and systemReserved. Raises ConfigurationError."""
    if kubelet.reserved_cpus:
        return kubelet.reserved_cpus
    try:
        return cpus_for(layouts.of(topology.cpus), kubelet.reserved_milli)
    except NotEnoughCpusError as error:
        reason = f"kubeReserved and systemReserved: {error}"
        raise ConfigurationError(f"{kubelet.source}: {reason}") from None


def with_settings(node: NodeConfiguration, settings: AgentSettings) -> NodeConfiguration:
    return msgspec.structs.replace(
        node,
        owners_on_reserved=settings.owners_on_reserved,
        be_on_reserved=settings.be_on_reserved,
        managed_by=settings.managed_by,
        bind_memory=node.bind_memory or settings.bind_memory,
        device_locality=settings.device_locality,
    )


def check_combination(settings: AgentSettings, kubelet: KubeletConfiguration) -> None:
    """Raises CombinationError."""
    if settings.bind_memory and kubelet.memory_manager_policy == "Static":
        raise CombinationError(
            "bind-memory is on, and the kubelet's memoryManagerPolicy is Static "
            f"({kubelet.source}): both would write cpuset.mems; switch one of them off"
        )


def rules(configuration: NodeConfiguration) -> PoolRules:
    """The rules of the shared pools that follow from it."""
    of_node = rules_of_node(configuration)
    return PoolRules(
        kubelet_reserved=configuration.kubelet_reserved,
        owners_on_reserved=configuration.owners_on_reserved,
        be_on_reserved=configuration.be_on_reserved,
        node_reserved=of_node.node_reserved | strictly_reserved(configuration),
        dedicated=of_node.dedicated,
        bind_memory=configuration.bind_memory,
        kubelet_memory=configuration.kubelet_memory,
        cpu_normalization_ratio=configuration.cpu_normalization_ratio,
    )


def rules_of_node(configuration: NodeConfiguration) -> PoolRules:
    """The rules count the annotations of the Node alone."""
    system, of_system = configuration.system_qos, pool_of_class(QoS.SYSTEM)
    return PoolRules(
        node_reserved=configuration.reservation.cpus(),
        dedicated={of_system.name: DedicatedCpus(system.cpus(), system.cpuset_exclusive)},
    )


def gives_whole_cores(node: ApiNode | None) -> bool:
    """Whether a label of the Node allows only whole cores."""
    return node is not None and BIND_VALUES.get(node.labels.get(BIND_LABEL, "")) is (
        BindPolicy.FULL_PCPUS
    )


def strictly_reserved(configuration: NodeConfiguration) -> CpuSet:
    """The CPUs that the kubelet reserves and keeps its pods off."""
    strict = configuration.kubelet_options.get(STRICT_CPU_RESERVATION) == "true"
    return configuration.kubelet_reserved if strict else EMPTY


def _system(annotations: Mapping[str, str]) -> SystemQos:
    value = system_qos(annotations)
    value.cpus()
    return value


def _reservation(annotations: Mapping[str, str]) -> NodeReservation:
    value = node_reservation(annotations)
    value.cpus()
    value.cpu_milli()
    return value
