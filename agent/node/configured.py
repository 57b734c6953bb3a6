"""What people set on the Node object for its CPUs; what can't be read leaves the last good word in
force."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate import layout as layouts
from agent.allocate.aside import PoolRules
from agent.allocate.kubelet.packed import NotEnoughCpusError
from agent.allocate.reservations import cpus_for, reserved_cpus
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model.annotations import AnnotationError
from agent.model.apinode import ApiNode
from agent.model.cpuset import EMPTY
from agent.model.node_annotations import (
    NUMA_MEMORY_POLICY,
    NodeReservation,
    SystemQos,
    cpu_normalization_ratio,
    node_reservation,
    system_qos,
)
from agent.model.resources import NodeConfiguration
from agent.model.topology import Topology

STRICT_CPU_RESERVATION: Final = "strict-cpu-reservation"

log = logging.getLogger(__name__)


class NodeObject:
    """Remembers the last good word of each annotation, and what was told of the others."""

    def __init__(self, node_name: str) -> None:
        self._name = node_name
        self._last = NodeConfiguration()
        self._read: tuple[Topology, ApiNode] | None = None
        self._told: frozenset[str] = frozenset()

    def configured(self, node: ApiNode, topology: Topology) -> NodeConfiguration:
        """Never fails: what is wrong is logged once."""
        if self._read != (topology, node):
            self._read = topology, node
            annotated_, troubles = annotated(self._last, node.annotations, topology)
            self._last = msgspec.structs.replace(
                annotated_, bind_memory=NUMA_MEMORY_POLICY in node.labels
            )
            self._tell(troubles)
        return self._last

    def _tell(self, troubles: frozenset[str]) -> None:
        for trouble in sorted(troubles - self._told):
            log.error("node %s: %s", self._name, trouble)
        self._told = troubles


def annotated(
    last: NodeConfiguration, annotations: Mapping[str, str], topology: Topology
) -> tuple[NodeConfiguration, frozenset[str]]:
    """What a Node's annotations say, the last word in place of what can't be read, and the troubles
    with them. A reservation that is given as an amount has the CPUs for it, none for more than the
    machine has."""
    system, reservation = last.system_qos, last.reservation
    troubles = []
    try:
        system = _system(annotations)
    except AnnotationError as error:
        troubles.append(str(error))
    try:
        reservation = asked = _reservation(annotations)
        cpus = reserved_cpus(layouts.of(topology.cpus), asked)
        reservation = msgspec.structs.replace(asked, reserved_cpus=str(cpus))
    except AnnotationError as error:
        troubles.append(str(error))
    ratio = last.cpu_normalization_ratio
    try:
        ratio = cpu_normalization_ratio(annotations)
    except AnnotationError as error:
        troubles.append(str(error))
    configured = msgspec.structs.replace(
        last, system_qos=system, reservation=reservation, cpu_normalization_ratio=ratio
    )
    return configured, frozenset(troubles)


def beside(
    configured: NodeConfiguration, kubelet: KubeletConfiguration, topology: Topology
) -> NodeConfiguration:
    """With the words of the kubelet that runs here, and the CPUs that it reserves under the static
    policy. Raises ConfigurationError for a reservation that the machine has no CPUs for: with it no
    kubelet starts."""
    reserved = kubelet.reserved_cpus
    if not reserved and kubelet.static:
        try:
            reserved = cpus_for(layouts.of(topology.cpus), kubelet.reserved_milli)
        except NotEnoughCpusError as error:
            reason = f"kubeReserved and systemReserved: {error}"
            raise ConfigurationError(f"{kubelet.source}: {reason}") from None
    return msgspec.structs.replace(
        configured,
        kubelet_policy=kubelet.cpu_manager_policy,
        kubelet_options=kubelet.cpu_manager_options,
        kubelet_reserved=reserved if kubelet.static else EMPTY,
        topology_policy=kubelet.topology_manager_policy,
        topology_scope=kubelet.topology_manager_scope,
        kubelet_memory=kubelet.memory_manager_policy == "Static",
        reserved_memory_bytes=kubelet.reserved_memory_bytes,
        max_numa_nodes=kubelet.max_numa_nodes,
    )


def rules(configured: NodeConfiguration) -> PoolRules:
    """What the pools make of it."""
    strict = configured.kubelet_options.get(STRICT_CPU_RESERVATION) == "true"
    kept = configured.kubelet_reserved if strict else EMPTY
    return PoolRules(
        reserved=configured.kubelet_reserved,
        owners_on_reserved=configured.owners_on_reserved,
        be_on_reserved=configured.be_on_reserved,
        node_reserved=configured.reservation.cpus() | kept,
        system=configured.system_qos.cpus(),
        system_exclusive=configured.system_qos.cpuset_exclusive,
        bind_memory=configured.bind_memory,
        kubelet_memory=configured.kubelet_memory,
        cpu_normalization_ratio=configured.cpu_normalization_ratio,
    )


def _system(annotations: Mapping[str, str]) -> SystemQos:
    value = system_qos(annotations)
    value.cpus()
    return value


def _reservation(annotations: Mapping[str, str]) -> NodeReservation:
    value = node_reservation(annotations)
    value.cpus()
    value.cpu_milli()
    return value
