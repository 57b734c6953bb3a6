"""What people set on the Node object for its CPUs; what can't be read leaves the last good word in
force."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from agent.allocate import layout as layouts
from agent.allocate.aside import PoolRules
from agent.allocate.kubelet.packed import NotEnoughCpusError
from agent.allocate.reservations import cpus_for, reserved_cpus
from agent.kube.errors import StoreError
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model.annotations import AnnotationError
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


class Store(Protocol):
    """Where the Node is."""

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, None when there is none. Raises StoreError."""
        ...


class NodeObject:
    """Reads the Node's annotations at every look."""

    def __init__(self, store: Store, node_name: str) -> None:
        self._store = store
        self._name = node_name
        self._last = NodeConfiguration()
        self._read: tuple[Topology, dict[str, str], dict[str, str]] | None = None
        self._told: frozenset[str] = frozenset()

    def configured(self, topology: Topology) -> NodeConfiguration:
        """Never fails: what is wrong is logged once."""
        try:
            node = self._store.get("Node", self._name)
            annotations, labels = _texts(node, "annotations"), _texts(node, "labels")
        except StoreError as error:
            self._tell(frozenset([str(error)]))
            self._read = None
        else:
            if self._read != (topology, annotations, labels):
                self._read = topology, annotations, labels
                annotated_, troubles = annotated(self._last, annotations, topology)
                self._last = msgspec.structs.replace(
                    annotated_, bind_memory=NUMA_MEMORY_POLICY in labels
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


def _texts(node: Mapping[str, Any] | None, field: str) -> dict[str, str]:
    metadata = node.get("metadata") if node else None
    notes = metadata.get(field) if isinstance(metadata, dict) else None
    found = notes.items() if isinstance(notes, dict) else ()
    return {key: text for key, text in found if isinstance(text, str)}


def _system(annotations: Mapping[str, str]) -> SystemQos:
    value = system_qos(annotations)
    value.cpus()
    return value


def _reservation(annotations: Mapping[str, str]) -> NodeReservation:
    value = node_reservation(annotations)
    value.cpus()
    value.cpu_milli()
    return value
