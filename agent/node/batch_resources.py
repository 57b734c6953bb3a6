"""The batch and mid resources of the Node, where no koord-manager computes them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

from agent.host import files
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.kube.auth import AccessError
from agent.kube.errors import UNAVAILABLE, KubeError
from agent.kube.objects import NODE_METRIC, Objects
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.nrt.node_annotations import cpu_normalization_ratio
from agent.model.pod.annotations import AnnotationError, decoded
from agent.model.pod.apiobjects import ApiNode
from agent.model.pod.qos import PriorityClass
from agent.model.quantities import Quantity, QuantityError, whole
from agent.node.node_resource_topology import ReportedOffer
from agent.usage import batch_mid, offered
from agent.usage.batch_mid import ColocationStrategy, NodeLoad
from agent.usage.node_metric import CollectPolicy
from agent.usage.offered import Offered

log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 5.0
UPDATE_SECONDS: Final = 60.0
EXPIRY_SECONDS: Final = 900.0
"""Amounts that can't be computed anew for so long are withdrawn, as by koord-manager."""
SETTLE_SECONDS: Final = CollectPolicy().aggregate_seconds / 2
"""A restarted agent has no samples of the time before: it keeps the amounts for so long."""
STRATEGY: Final = "node.koordinator.sh/colocation-strategy"
_RATIOS: Final = {
    "node.koordinator.sh/cpu-reclaim-ratio": "cpu_reclaim_threshold_percent",
    "node.koordinator.sh/memory-reclaim-ratio": "memory_reclaim_threshold_percent",
    "node.koordinator.sh/mid-static-cpu-reserved-ratio": "mid_static_cpu_reserved_percent",
    "node.koordinator.sh/mid-static-memory-reserved-ratio": "mid_static_memory_reserved_percent",
}
"""The labels of a Node with a share from 0 to 1, and the field that each one overrides."""


class StrategyError(ValueError):
    """A label of a Node is invalid; the message names it."""


_strategy: Final = msgspec.json.Decoder(ColocationStrategy | None)


def strategy(node: ApiNode) -> ColocationStrategy:
    """The strategy of a Node: the defaults, its annotation, and over both its labels. Raises
    AnnotationError and StrategyError."""
    written = decoded(node.annotations, STRATEGY, _strategy, bounds.OBJECT_VALUE_BYTES)
    percents = {}
    for key, field in _RATIOS.items():
        if (text := node.labels.get(key, "")) != "":
            try:
                percents[field] = int(float(text) * 100)
            except (ValueError, OverflowError):
                raise StrategyError(f"label {key}: {text[:40]!r} is not a number") from None
            if not 0 <= percents[field] <= 100:
                raise StrategyError(f"label {key}: {text[:40]!r} is not a share from 0 to 1")
    return msgspec.structs.replace(written or ColocationStrategy(), **percents)


THIRD_PARTY: Final = "node.koordinator.sh/thirdPartyAllocations"
ORIGIN: Final = "node.koordinator.sh/originExtendedAllocatable"
"""The batch resources before other systems took theirs: koord-yarn-operator gives YARN what is left
of them."""
_MAX_SYSTEMS: Final = 64


class _Allocation(msgspec.Struct, frozen=True):
    priority: str = ""
    resources: Annotated[dict[str, Quantity], msgspec.Meta(max_length=bounds.MAX_RESOURCES)] = {}


class _Allocations(msgspec.Struct, frozen=True):
    allocations: Annotated[tuple[_Allocation, ...], msgspec.Meta(max_length=_MAX_SYSTEMS)] = ()


_allocations: Final = msgspec.json.Decoder(_Allocations | None)


def third_party(annotations: Mapping[str, str]) -> dict[str, int] | None:
    """What other systems took of a Node's batch resources, as milli-CPU and bytes by `cpu` and
    `memory`; None without the annotation (Koordinator: apis/slo/v1alpha1,
    GetThirdPartyAllocatedResByPriority). Raises AnnotationError."""
    written = decoded(annotations, THIRD_PARTY, _allocations, bounds.OBJECT_VALUE_BYTES)
    if written is None:
        return None
    amounts = dict.fromkeys(batch_mid.RESOURCES, 0)
    for place, allocation in enumerate(written.allocations):
        if allocation.priority != PriorityClass.BATCH:
            continue
        for name in amounts:
            resource = f"{batch_mid.DOMAIN}batch-{name}"
            field = f"allocations[{place}].resources.{resource}"
            try:
                amount = whole(allocation.resources.get(resource, 0))
            except QuantityError as error:
                raise AnnotationError(THIRD_PARTY, f"{field}: {error}") from None
            if not 0 <= amount <= _MAX_AMOUNT:
                raise AnnotationError(THIRD_PARTY, f"{field}: {amount} is not an amount of a Node")
            amounts[name] += amount
    return amounts


_MAX_AMOUNT: Final = 1 << 53


class NodeOffers:
    """Computes the resources on a thread, where the node's NodeMetric has no policy: koord-manager
    writes one, and then the resources are its own.

    `load`: the Node and what runs on it; None while it is not known. It may raise AnnotationError.
    `path`: the file with what is offered, with which a restarted agent goes on.
    `changed`: called when the amounts have changed.
    `now`: seconds since 1970."""

    def __init__(
        self,
        cluster: Objects,
        node_name: str,
        load: Callable[[], tuple[ApiNode, NodeLoad] | None],
        path: str,
        changed: Callable[[], None],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._node_name = node_name
        self._load = load
        self._path = path
        self._changed = changed
        self._now, self._monotonic = now, monotonic
        self._lock = threading.Lock()
        self._offered, age_seconds = _last(path, now())
        started = monotonic()
        self._counted_from = started - age_seconds
        self._settled = started + (SETTLE_SECONDS if self._offered.resources else 0)
        self._due: float | None = None
        self._problem = Problem(log, f"batch and mid resources of Node {node_name}: ")
        self._ignored = Problem(log, f"batch and mid resources of Node {node_name}: ")
        self._thread = Periodic("batch-resources", _PERIOD_SECONDS, self.step)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()

    def resources(self) -> Mapping[str, int]:
        """The amounts by name that the Node is to have."""
        with self._lock:
            return self._offered.amounts

    def reported(self) -> ReportedOffer:
        """What the Node is to have."""
        with self._lock:
            current = self._offered
        annotations = {}
        if current.shared:
            resources = {name: str(amount) for name, amount in sorted(current.shared.items())}
            annotations[ORIGIN] = msgspec.json.encode({"resources": resources}).decode()
        return ReportedOffer(current.amounts, annotations, current.zones)

    def step(self) -> None:
        """Computes the amounts anew if it is time. Never raises."""
        begin = self._monotonic()
        if self._due is not None and begin < self._due:
            return
        try:
            new = self._compute(self._now())
        except UNAVAILABLE as error:
            self._problem.report(f"{error}; the last amounts stay")
            self._counted_from = begin  # nothing could be written either
            return
        except (KubeError, AccessError, AnnotationError, StrategyError) as error:
            self._problem.report(f"{error}; the last amounts stay")
            new = None
        else:
            self._problem.clear()
        if new is None:
            if begin - self._counted_from >= EXPIRY_SECONDS:
                self._offer(_withdrawn(self._offered))
            return
        self._counted_from, self._due = begin, begin + UPDATE_SECONDS
        self._offer(new)

    def _compute(self, now: float) -> Offered | None:
        if self._managed():
            return Offered(now)
        loaded = self._load()
        if loaded is None:
            return None
        node, load = loaded
        by_node = strategy(node)
        if not by_node.enable:
            return _withdrawn(self._offered)
        if self._monotonic() < self._settled:
            return None
        load = self._annotated(node, load)
        before = self._offered
        resources = batch_mid.offered(load, by_node, before.origins)
        zones = batch_mid.batch_of_zones(load, by_node, resources, before.zones)
        return Offered(now, resources, zones)

    def _annotated(self, node: ApiNode, load: NodeLoad) -> NodeLoad:
        """The load with the Node's annotations; one that can't be read does not count."""
        ratio, of_others, faults = 1.0, None, []
        try:
            ratio = cpu_normalization_ratio(node.annotations)
        except AnnotationError as error:
            faults.append(f"{error}; its CPUs count as they are")
        try:
            of_others = third_party(node.annotations)
        except AnnotationError as error:
            faults.append(f"{error}; nothing is taken")
        if faults:
            self._ignored.report("; ".join(faults))
        else:
            self._ignored.clear()
        return msgspec.structs.replace(load, cpu_normalization_ratio=ratio, third_party=of_others)

    def _managed(self) -> bool:
        stored = self._cluster.get(NODE_METRIC.name, self._node_name, cached=True) or {}
        spec = stored.get("spec")
        return isinstance(spec, dict) and bool(spec.get("metricCollectPolicy"))

    def _offer(self, new: Offered) -> None:
        before = self._offered
        if new == before:
            return
        with self._lock:
            self._offered = new
        if (new.amounts, new.zones) != (before.amounts, before.zones):
            self._changed()
        try:
            files.replace(self._path, msgspec.json.encode(new), durable=False)
        except OSError as error:
            log.warning("what is offered is not kept: %s", files.reason(error))


def _withdrawn(last: Offered) -> Offered:
    """Nothing: the Node has no resources, and its zones have 0 of them, as by koord-manager. An
    entry of a zone does not say who wrote it, so one that is not reported stays."""
    nothing = {zone: dict.fromkeys(amounts, 0) for zone, amounts in last.zones.items()}
    return Offered(zones=nothing)


def _last(path: str, now: float) -> tuple[Offered, float]:
    """What the agent offered before it started, unless it is too old, and how long ago."""
    try:
        last = offered.read(path)
        age_seconds = max(0.0, now - last.at)  # the clock may have been set back
        if age_seconds < EXPIRY_SECONDS:
            return last, age_seconds
        return _withdrawn(last), 0.0
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("batch and mid resources start anew: %s", files.reason(error))
    except JsonError as error:
        log.warning("batch and mid resources start anew: %s: %s", path, error)
    return Offered(), 0.0
