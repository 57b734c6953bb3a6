"""What an offer reads of a node, as a number: on nodes with the same number, equal pods get equal
offers, except for the ids of the devices. Most nodes of a cluster are of few models, and many of
one model are in the same state: a pod of a new equivalence class is then decided once for all of
them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any, Final, cast

import msgspec

from agent.allocate.devices.inventory import Inventory
from agent.allocate.node_allocator.properties import NodeProperties
from agent.model.pod_request import Reads

MAX_STATES: Final = 100_000
"""States kept, of some hundred bytes each. Beyond them all are dropped: a later state that is equal
to a dropped one gets another number."""
MAX_STATE_BYTES: Final = 128 << 20
"""The approximate limit of all kept states together, since a stolen agent may report a large new
machine each time."""


class NodeStates:
    """Gives equal states equal numbers. One thread at a time."""

    def __init__(self, max_states: int = MAX_STATES, max_bytes: int = MAX_STATE_BYTES) -> None:
        self._max_states, self._max_bytes = max_states, max_bytes
        self._bytes = 0
        self._numbers: dict[Hashable, int] = {}
        self._last = 0

    def of_properties(self, properties: NodeProperties, reads: Reads) -> int | None:
        """The number of what no pod changes; None if a refusal names the node, or if a placement
        has an order of the nodes of its own."""
        cpus, rules = properties.cpus, properties.rules
        if rules.placement is not None:
            return None
        if reads in (Reads.ZONES, Reads.DEVICE_ZONES):
            zones = properties.zones_align or (
                reads is Reads.DEVICE_ZONES and properties.zones is not None
            )
            return self._number((hashable(rules), zones, properties.whole_cores))
        if cpus is None:
            return None
        whole: dict[str, int] = {}
        if reads is Reads.DEVICES or rules.scoring is not None:
            whole = properties.allocatable
        of_devices: Hashable = None
        if reads is Reads.DEVICES:
            if properties.inventory is None:
                return None
            of_devices = (
                _model(properties.inventory),
                properties.isolation,
                properties.shares_gpus,
            )
        return self._number((hashable(cpus), hashable(rules), hashable(whole), of_devices))

    def of(self, of_properties: int, state: tuple[object, ...], reads: Reads) -> int:
        """The number of the node. `of_properties`: that of its properties; `state`: the allocator's
        for the same `reads`."""
        return self._number(digest((of_properties, reads, state)))

    def _number(self, state: Hashable) -> int:
        found = self._numbers.get(state)
        if found is None:
            if len(self._numbers) >= self._max_states or self._bytes >= self._max_bytes:
                self._numbers.clear()
                self._bytes = 0
            self._bytes += _size_bytes(state)
            self._last += 1
            found = self._numbers[state] = self._last
        return found


_VALUE_BYTES: Final = 40
"""A small value takes so much, with its place in a container."""


def _size_bytes(value: Any) -> int:
    if isinstance(value, bytes | str):
        return _VALUE_BYTES + len(value)
    if isinstance(value, int):
        return _VALUE_BYTES + value.bit_length() // 8
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.astuple(value)
    if isinstance(value, Mapping):
        value = (*value.keys(), *value.values())
    if isinstance(value, tuple | frozenset | list):
        return _VALUE_BYTES + sum(map(_size_bytes, value))
    return _VALUE_BYTES


def _model(inventory: Inventory) -> Hashable:
    """The inventory without the ids of the devices, and without the causes of their health."""
    fleets = {
        kind: [
            msgspec.structs.replace(each, uuid="", conditions=()) for each in fleet.devices.values()
        ]
        for kind, fleet in inventory.fleets.items()
    }
    return hashable(fleets), hashable(inventory.partitions), inventory.links


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_json: Final = msgspec.json.Encoder()


def hashable(value: Any) -> Hashable:
    """A value that is equal for equal values of one type."""
    try:
        hash(value)
    except TypeError:
        pass
    else:
        return cast(Hashable, value)
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError):  # it has masks of CPUs
        if isinstance(value, Mapping):
            return frozenset((key, hashable(each)) for key, each in value.items())
        if isinstance(value, msgspec.Struct):
            value = msgspec.structs.astuple(value)
        return tuple(map(hashable, value))


def digest(state: object) -> bytes:
    """A cryptographic hash of a state, which itself has kilobytes, while each bind makes new ones.
    Different states of one type have different digests; equal ones have equal digests unless their
    mappings have another order."""
    return hashlib.blake2b(_json.encode(state), digest_size=16).digest()
