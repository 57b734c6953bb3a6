"""Facts of the API server that few nodes need: where the devices of ResourceClaims are, by the
ResourceSlices of the node, and the device locality of namespaces, by their label.

A fact is read, on a thread, when a decision asks for it for the first time. A watch on each node of
a cluster would cost the API server more than these reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from agent.host.daemon import Periodic
from agent.kube import objects
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import KubeError, NotFoundError
from agent.model.cpu.policies import DeviceLocality
from agent.model.devices import resource_slice
from agent.model.devices.resource_slice import DraDevice, DraLocation
from agent.model.objects import ObjectError
from agent.model.pod.annotations import label_locality
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

Key = TypeVar("Key")
Fact = TypeVar("Fact")

SLICES_SECONDS: Final = 60.0
"""The time after which the slices are read again for a device that they did not have."""
NAMESPACES_SECONDS: Final = 300.0
"""The time after which the labels of namespaces are read again."""
FAILED_SECONDS: Final = 5.0
"""The time after which a read that failed is repeated."""
UNKNOWN: Final = DraLocation()


class Lookup(Generic[Key, Fact]):
    """Knows facts by key."""

    def __init__(
        self,
        source: SourceName,
        read: Callable[[Collection[Key]], Mapping[Key, Fact]],
        seconds: float,
        is_final: Callable[[Fact], bool],
        wake: Callable[[], None],
        sources: Sources,
    ) -> None:
        """`read`: reads the facts of these keys. Raises KubeError or AccessError.
        `seconds`: the time after which facts that are not final are read again.
        `wake`: called when a fact has become known, or has changed."""
        self._source = source
        self._read = read
        self._seconds = seconds
        self._is_final = is_final
        self._wake = wake
        self._sources = sources
        self._lock = threading.Lock()
        self._facts: dict[Key, Fact] = {}
        self._open: frozenset[Key] = frozenset()
        self._reading: Periodic | None = None

    def facts(self, keys: Collection[Key]) -> Mapping[Key, Fact]:
        """The facts of these keys. Never waits: a key is missing until a thread has read its
        fact."""
        with self._lock:
            self._facts = {key: fact for key, fact in self._facts.items() if key in keys}
            missing = {key for key in keys if key not in self._facts}
            is_new = not missing <= self._open
            self._open = frozenset(
                key
                for key in keys
                if key not in self._facts or not self._is_final(self._facts[key])
            )
            facts = dict(self._facts)
        if is_new:
            if self._reading is None:
                self._reading = Periodic(
                    self._source.value, self._seconds, self._step, FAILED_SECONDS
                )
                self._reading.start()
            self._reading.hurry(at_once=True)
        return facts

    def close(self) -> None:
        """Ends the thread after the read in progress."""
        if self._reading is not None:
            self._reading.stop()

    def _step(self) -> None:
        with self._lock:
            wanted = {key for key in self._open if key not in self._facts} or self._open
        if not wanted:
            return
        try:
            read = self._read(wanted)
        except (KubeError, AccessError) as error:
            self._sources.report(self._source, (str(error),))
            if self._reading is not None:
                self._reading.hurry()
            return
        self._sources.report(self._source, ())
        with self._lock:
            before = self._facts
            self._facts = {**before, **read}
        if self._facts != before:
            self._wake()


def locations_of_claims(
    cluster: Cluster, node_name: str, wake: Callable[[], None], sources: Sources
) -> Lookup[DraDevice, DraLocation]:
    """The locations of claimed devices, UNKNOWN for those that the slices of the node do not
    have."""
    logged: set[DraDevice] = set()

    def read(devices: Collection[DraDevice]) -> dict[DraDevice, DraLocation]:
        try:
            slices = cluster.of_node(objects.RESOURCE_SLICE, node_name, _of_slice)
        except NotFoundError:  # an API server before 1.34
            slices = []
        listed = {device: location for each in slices for device, location in each.items()}
        locations = {device: listed.get(device, UNKNOWN) for device in devices}
        unknown = {device for device, location in locations.items() if location == UNKNOWN}
        for device in sorted(unknown - logged):
            log.info("the NUMA node of device %s is not known", "/".join(device))
        logged.clear()
        logged.update(unknown)
        return locations

    source = SourceName.RESOURCE_SLICES
    return Lookup(source, read, SLICES_SECONDS, lambda it: it != UNKNOWN, wake, sources)


def _of_slice(raw: msgspec.Raw) -> dict[DraDevice, DraLocation]:
    try:
        return resource_slice.decode(bytes(raw))
    except ObjectError as error:
        log.error("%s", error)
        return {}


def locality_of_namespaces(
    cluster: Cluster, wake: Callable[[], None], sources: Sources
) -> Lookup[str, DeviceLocality | None]:
    """The policies in the labels of namespaces; None without one that is known."""
    logged: set[tuple[str, str]] = set()

    def read(names: Collection[str]) -> dict[str, DeviceLocality | None]:
        return {name: policy(name) for name in names}

    def policy(name: str) -> DeviceLocality | None:
        namespace = cluster.get(objects.NAMESPACE.name, name, cached=True) or {}
        locality, problem = label_locality(namespace.get("metadata", {}).get("labels") or {})
        if problem and (name, problem) not in logged:
            logged.add((name, problem))
            log.warning("namespace %s: %s", name, problem)
        return locality

    source = SourceName.NAMESPACES
    return Lookup(source, read, NAMESPACES_SECONDS, lambda _: False, wake, sources)
