"""Publishes the devices of the DRA driver for CPUs as ResourceSlices of the node.

The slices that exist are watched, also for their end: a kubelet that has no driver for 30 seconds
removes them. They are written when the devices or their order change, at most once a second, and
not at a restart that finds them as they should be."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.dra.slices import is_stored, lacks_parts
from agent.host.daemon import Periodic
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import KubeError
from agent.kube.objects import RESOURCE_SLICE, Change
from agent.model.dra.names import DRIVER, PEER_DRIVER
from agent.model.objects import ObjectError, ObjectIdentity, decoded
from agent.node.resource_claims import ResourceClaims
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 1.0
"""Changes within this time are one write."""
LAG_SECONDS: Final = 3.0
"""A slice that has just been written, and that the watch does not show, was not removed."""
CHECK_SECONDS: Final = 60.0
"""The time between two looks for claims that are gone."""
_UNDIVIDED: Final = (
    "a claim gets a whole device: the API server has the feature gate DRAConsumableCapacity off"
)
_UNSERVED: Final = (
    "the API server does not serve resource.k8s.io/v1, which Kubernetes has from 1.34 on"
)


class _SlicePool(msgspec.Struct, frozen=True, rename="camel"):
    generation: int = 0
    resource_slice_count: int = 0


class _SliceSpec(msgspec.Struct, frozen=True):
    driver: str = ""
    pool: _SlicePool = _SlicePool()
    devices: tuple[dict[str, Any], ...] | None = None
    """API servers before 1.36 say null where there are none."""


class _SliceMetadata(ObjectIdentity, frozen=True, rename="camel"):
    owner_references: tuple[dict[str, Any], ...] = ()


class NodeSlice(msgspec.Struct, frozen=True):
    """A slice of the node as the API server has it."""

    metadata: _SliceMetadata
    spec: _SliceSpec = _SliceSpec()


class _DriverSpec(msgspec.Struct, frozen=True):
    driver: str = ""


class _DriverSlice(msgspec.Struct, frozen=True):
    metadata: _SliceMetadata
    spec: _DriverSpec = _DriverSpec()


_any_driver: Final = msgspec.json.Decoder(_DriverSlice)
_own: Final = msgspec.json.Decoder(NodeSlice)


class ResourceSlices:
    """Writes on a thread of its own."""

    def __init__(
        self,
        cluster: Cluster,
        node_name: str,
        claims: ResourceClaims,
        sources: Sources,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._claims = claims
        self._sources = sources
        self._clock = clock
        self._sweep_at = 0.0
        self.writes = 0
        """How many slices have been written and removed."""
        self._generation = 0
        """That of the last slices that it has written."""
        self._written_at = 0.0
        self._otherwise: dict[str, tuple[dict[str, Any], NodeSlice]] = {}
        """By name, the slices that the server has otherwise than they were written, and how: it
        adds or changes fields. They count as written."""
        self.problem = ""
        """Why devices are not published, "" if they are."""
        self._thread = Periodic("resource-slices", PERIOD_SECONDS, self.step, SETTLE_SECONDS)
        self._watch = cluster.watch_selected(
            RESOURCE_SLICE, f"spec.nodeName={node_name}", node_slice, self._reported
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        self._watch.stop()

    def changed(self) -> None:
        """From any thread: the devices may have changed."""
        self._thread.hurry()

    def step(self) -> None:
        """Writes what differs. Never raises."""
        self._watch.check()
        problem = self._claims.problem() or self._watch.problem or ""
        watch = self._watch.watch
        if watch is None and self._watch.synced:
            problem = problem or _UNSERVED
        elif watch is not None and watch.synced:
            of_node = [*watch.objects().values()]
            others = {part.spec.driver for part in of_node}
            if PEER_DRIVER in others:
                problem = f"{PEER_DRIVER} publishes CPUs of this node: {DRIVER} does not"
            own = {part.metadata.name: part for part in of_node if part.spec.driver == DRIVER}
            if any(
                lacks_parts(device) for part in own.values() for device in part.spec.devices or ()
            ):
                problem = problem or _UNDIVIDED
            try:
                self._sweep()
                self._write(own, withdraws=PEER_DRIVER in others)
            except (KubeError, AccessError, ObjectError) as error:
                problem = str(error)
        self.problem = problem
        self._sources.report(SourceName.DRA, (problem,) if problem else ())

    def _sweep(self) -> None:
        """Raises KubeError and AccessError."""
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + CHECK_SECONDS
            self._claims.sweep()

    def _write(self, stored: Mapping[str, NodeSlice], *, withdraws: bool) -> None:
        """`withdraws`: no device is published. Raises KubeError, AccessError and ObjectError."""
        last = max((part.spec.pool.generation for part in stored.values()), default=0)
        if last < self._generation:
            if self._clock() < self._written_at + LAG_SECONDS:
                self._thread.hurry()
                return
            # A removed slice comes back with a generation that no scheduler has seen.
            last = self._generation
        minor = self._cluster.discovery.minor()
        slices = [] if withdraws else self._claims.slices(last + 1, minor)
        if slices is None:
            return
        if not all(self._is_written(wanted, stored, last) for wanted in slices):
            self._otherwise = {}
            for wanted in slices:
                answer = node_slice(self._cluster.apply_as_is(wanted))
                self.writes += 1
                name = wanted["metadata"]["name"]
                if not _is_stored(wanted, {name: answer}, last + 1):
                    self._otherwise[name] = wanted, answer
                    log.info("the API server changes ResourceSlice %s as it is written", name)
            self._generation, self._written_at = last + 1, self._clock()
            log.info("the devices of %s are published in %d slices", DRIVER, len(slices))
        for name in sorted(stored.keys() - {wanted["metadata"]["name"] for wanted in slices}):
            self._cluster.delete(RESOURCE_SLICE.name, name)
            self.writes += 1
            log.info("ResourceSlice %s is removed", name)

    def _is_written(
        self, wanted: Mapping[str, Any], stored: Mapping[str, NodeSlice], last: int
    ) -> bool:
        """Whether the server has the slice, or what it has made of it.

        `last`: the highest generation that is stored."""
        name = wanted["metadata"]["name"]
        sent, answer = self._otherwise.get(name, (wanted, None))
        if answer is not None and _content(sent) == _content(wanted) and answer == stored.get(name):
            return True
        return _is_stored(wanted, stored, last)

    def _reported(self, changes: Sequence[Change[NodeSlice]]) -> None:
        self._thread.hurry()


def _content(wanted: Mapping[str, Any]) -> tuple[object, ...]:
    """The slice without the generation of its pool."""
    spec = wanted["spec"]
    return wanted["metadata"], spec["devices"], spec["pool"]["resourceSliceCount"]


def _is_stored(wanted: Mapping[str, Any], stored: Mapping[str, NodeSlice], last: int) -> bool:
    """`last`: the highest generation that is stored."""
    metadata, spec = wanted["metadata"], wanted["spec"]
    of_server = stored.get(metadata["name"])
    if of_server is None:
        return False
    devices = of_server.spec.devices or ()
    return (
        len(devices) == len(spec["devices"])
        and all(map(is_stored, devices, spec["devices"]))
        and of_server.spec.pool == _SlicePool(last, spec["pool"]["resourceSliceCount"])
        and [*of_server.metadata.owner_references] == metadata.get("ownerReferences", [])
    )


def node_slice(raw: bytes) -> NodeSlice:
    """The devices of other drivers are left out. Raises ObjectError."""
    of_driver = decoded(raw, RESOURCE_SLICE.name, _any_driver)
    if of_driver.spec.driver == DRIVER:
        return decoded(raw, RESOURCE_SLICE.name, _own)
    return NodeSlice(of_driver.metadata, _SliceSpec(of_driver.spec.driver))
