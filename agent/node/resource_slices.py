"""Publishes the devices of the DRA driver for CPUs as ResourceSlices of the node.

The slices that exist are watched, also for their end: a kubelet that has no driver for 30 seconds
removes them. They are written when the devices or their order change, at most once a second, and
not at a restart that finds them as they should be."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.dra import slices
from agent.host.daemon import Periodic
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import KubeError
from agent.kube.objects import RESOURCE_SLICE, Change
from agent.model.dra.names import DRIVER, PEER_DRIVER
from agent.model.objects import ObjectIdentity
from agent.node.resource_claims import ResourceClaims
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 1.0
"""Changes within this time are one write."""
CHECK_SECONDS: Final = 60.0
"""The time between two looks for slices of another driver for CPUs, and for gone claims."""


class _SlicePool(msgspec.Struct, frozen=True, rename="camel"):
    generation: int = 0
    resource_slice_count: int = 0


class _OwnSpec(msgspec.Struct, frozen=True):
    pool: _SlicePool = _SlicePool()
    devices: tuple[dict[str, Any], ...] = ()


class OwnSlice(msgspec.Struct, frozen=True):
    """A slice of this driver as the API server has it."""

    metadata: ObjectIdentity
    spec: _OwnSpec = _OwnSpec()


class _OtherSpec(msgspec.Struct, frozen=True):
    driver: str = ""


class _OtherSlice(msgspec.Struct, frozen=True):
    spec: _OtherSpec = _OtherSpec()


_own: Final = msgspec.json.Decoder(OwnSlice)
_other: Final = msgspec.json.Decoder(_OtherSlice)


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
        self._node_name = node_name
        self._claims = claims
        self._sources = sources
        self._clock = clock
        self._check_at: float | None = None
        self._rival = ""
        self._thread = Periodic("resource-slices", PERIOD_SECONDS, self.step, SETTLE_SECONDS)
        self._watch = cluster.watch_selected(
            RESOURCE_SLICE,
            f"spec.nodeName={node_name},spec.driver={DRIVER}",
            _own.decode,
            self._reported,
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
        problem = self._claims.problem()
        try:
            self._look()
            if self._rival:
                problem = f"{self._rival} publishes CPUs of this node: {DRIVER} does not"
            devices = self._devices(problem)
            if devices is not None and self._watch.synced:
                self._write(devices)
        except (KubeError, AccessError) as error:
            problem = str(error)
        problem = problem or self._watch.problem or ""
        self._sources.report(SourceName.DRA, (problem,) if problem else ())

    def _look(self) -> None:
        """Starts the watch, and looks for slices of another driver for CPUs, and for claims that
        are gone. Raises KubeError and AccessError."""
        now = self._clock()
        if self._check_at is not None and now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        self._watch.check()
        others = self._cluster.of_node(RESOURCE_SLICE, self._node_name, _driver_of)
        self._rival = PEER_DRIVER if PEER_DRIVER in others else ""
        self._claims.sweep()

    def _devices(self, problem: str) -> list[slices.Device] | None:
        """None before the first pass."""
        return [] if problem else self._claims.slice_devices()

    def _write(self, devices: Sequence[slices.Device]) -> None:
        """Raises KubeError and AccessError."""
        watch = self._watch.watch
        stored = {each.metadata.name: each for each in watch.objects().values()} if watch else {}
        wanted = slices.slices(self._node_name, devices, 0)
        names = [each["metadata"]["name"] for each in wanted]
        same = [
            name in stored
            and [*stored[name].spec.devices] == of_slice["spec"]["devices"]
            and stored[name].spec.pool.resource_slice_count == len(wanted)
            for name, of_slice in zip(names, wanted, strict=True)
        ]
        generations = {each.spec.pool.generation for each in stored.values()}
        if not all(same) or len(generations) > 1:
            generation = max(generations, default=0) + 1
            for of_slice in slices.slices(self._node_name, devices, generation):
                self._cluster.forget(RESOURCE_SLICE.name, of_slice["metadata"]["name"])
                self._cluster.apply(of_slice)
            log.info("%d devices of %s are published", len(devices), DRIVER)
        for name in sorted(stored.keys() - {*names}):
            self._cluster.delete(RESOURCE_SLICE.name, name)

    def _reported(self, changes: Sequence[Change[OwnSlice]]) -> None:
        self._thread.hurry()


def _driver_of(raw: msgspec.Raw) -> str:
    return _other.decode(bytes(raw)).spec.driver
