"""What people set on the Node object for its CPUs; what can't be read leaves the last good word in
force."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from agent.allocate import layout as layouts
from agent.allocate.pools import PoolRules
from agent.allocate.reservations import reserved_cpus
from agent.kube.store import StoreError
from agent.model.annotations import AnnotationError
from agent.model.node_annotations import (
    NodeReservation,
    SystemQos,
    node_reservation,
    system_qos,
)
from agent.model.resources import NodeConfiguration
from agent.model.topology import Topology

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
        self._system = SystemQos()
        self._reservation = NodeReservation()
        self._read: tuple[Topology, dict[str, str]] | None = None
        self._told: set[str] = set()

    def configured(self, topology: Topology) -> NodeConfiguration:
        """With the CPUs of a reservation that is given as an amount. Never fails: what is wrong is
        logged once."""
        try:
            annotations = _annotations(self._store.get("Node", self._name))
        except StoreError as error:
            self._tell({str(error)})
            self._read = None
        else:
            if self._read != (topology, annotations):
                self._read = topology, annotations
                self._understand(annotations, topology)
        return NodeConfiguration(system_qos=self._system, reservation=self._reservation)

    def _understand(self, annotations: Mapping[str, str], topology: Topology) -> None:
        troubles = set()
        try:
            self._system = _system(annotations)
        except AnnotationError as error:
            troubles.add(str(error))
        try:
            self._reservation = _reservation(annotations, topology)
        except AnnotationError as error:
            troubles.add(str(error))
        self._tell(troubles)

    def _tell(self, troubles: set[str]) -> None:
        for trouble in sorted(troubles - self._told):
            log.error("node %s: %s", self._name, trouble)
        self._told = troubles


def rules(configured: NodeConfiguration) -> PoolRules:
    """What the pools make of it."""
    return PoolRules(
        reserved=configured.kubelet_reserved,
        node_reserved=configured.reservation.cpus(),
        system=configured.system_qos.cpus(),
        system_exclusive=configured.system_qos.cpuset_exclusive,
    )


def _annotations(node: Mapping[str, Any] | None) -> dict[str, str]:
    metadata = node.get("metadata") if node else None
    notes = metadata.get("annotations") if isinstance(metadata, dict) else None
    found = notes.items() if isinstance(notes, dict) else ()
    return {key: text for key, text in found if isinstance(text, str)}


def _system(annotations: Mapping[str, str]) -> SystemQos:
    value = system_qos(annotations)
    value.cpus()
    return value


def _reservation(annotations: Mapping[str, str], topology: Topology) -> NodeReservation:
    value = node_reservation(annotations)
    cpus = reserved_cpus(layouts.of(topology.cpus), value)
    return msgspec.structs.replace(value, reserved_cpus=str(cpus))
