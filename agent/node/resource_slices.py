"""Where the devices of ResourceClaims are, by the ResourceSlices of this node.

The slices are read when a container has a claimed device that was not looked for before, and never
on a node without claims: a watch on each node would cost the API server more than these reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from agent.host.daemon import Periodic
from agent.kube import objects
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import KubeError, NotFoundError
from agent.model.devices import resource_slice
from agent.model.devices.resource_slice import DraDevice, DraLocation
from agent.model.objects import ObjectError
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0
"""The time after which the slices are read again for a device that they did not have."""
UNKNOWN: Final = DraLocation()


class ResourceSlices:
    """Knows the locations of claimed devices.

    `wake`: called when a location has become known."""

    def __init__(
        self, cluster: Cluster, node_name: str, wake: Callable[[], None], sources: Sources
    ) -> None:
        self._cluster = cluster
        self._node = node_name
        self._wake = wake
        self._sources = sources
        self._lock = threading.Lock()
        self._locations: dict[DraDevice, DraLocation] = {}
        self._missing: frozenset[DraDevice] = frozenset()
        self._reading: Periodic | None = None

    def locations(self, claimed: Collection[DraDevice]) -> Mapping[DraDevice, DraLocation]:
        """The locations of these devices, UNKNOWN for those that the slices do not have. Never
        waits: a device is missing until a thread has looked for it."""
        with self._lock:
            self._locations = {
                device: location
                for device, location in self._locations.items()
                if device in claimed
            }
            missing = frozenset(
                device for device in claimed if self._locations.get(device, UNKNOWN) == UNKNOWN
            )
            is_new = bool(missing - self._missing)
            self._missing = missing
            locations = dict(self._locations)
        if is_new:
            if self._reading is None:
                self._reading = Periodic("resource-slices", RETRY_SECONDS, self._step)
                self._reading.start()
            self._reading.hurry()
        return locations

    def close(self) -> None:
        """Ends the thread after the read in progress."""
        if self._reading is not None:
            self._reading.stop()

    def _step(self) -> None:
        missing = self._missing
        if not missing:
            return
        try:
            slices = self._cluster.of_node(objects.RESOURCE_SLICE, self._node, _read)
        except NotFoundError:  # an API server before 1.34
            slices = []
        except (KubeError, AccessError) as error:
            self._sources.report(SourceName.RESOURCE_SLICES, (str(error),))
            return
        self._sources.report(SourceName.RESOURCE_SLICES, ())
        read = {device: location for each in slices for device, location in each.items()}
        for device in sorted(missing - self._locations.keys()):
            if read.get(device, UNKNOWN) == UNKNOWN:
                log.info("the NUMA node of device %s is not known", "/".join(device))
        found = {device: read.get(device, UNKNOWN) for device in missing}
        with self._lock:
            news = found.items() - self._locations.items()
            self._locations |= found
        if news:
            self._wake()


def _read(raw: msgspec.Raw) -> dict[DraDevice, DraLocation]:
    try:
        return resource_slice.decode(bytes(raw))
    except ObjectError as error:
        log.error("%s", error)
        return {}
