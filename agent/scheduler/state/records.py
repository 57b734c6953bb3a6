"""The records that the scheduler keeps of API objects, and their decoders.

The annotations of pods are dropped after they are decoded: those of 100,000 pods would not fit into
memory. Equal values of many objects are stored once and never changed (`InternPool`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from sys import intern
from typing import Final, Generic, TypeVar

import msgspec

from agent.allocate.device_holders import reported_devices
from agent.allocate.node_allocator.assigned_pods import AssignedPod, assigned_pod_of
from agent.model import bounds
from agent.model.cpu.policies import DeviceLocality
from agent.model.devices import device_object, holding, interconnect
from agent.model.devices.device_allocation import DeviceAmounts, VirtualFunctions
from agent.model.devices.device_object import DeviceObject
from agent.model.nrt import node_annotations, resource_topology
from agent.model.nrt.resource_topology import NodeTopology, Zone
from agent.model.objects import ObjectError, ObjectMetadata, decoded
from agent.model.pod import apiobjects
from agent.model.pod.annotations import AnnotationError, label_locality, reservation_uid
from agent.model.pod.apiobjects import (
    ApiPod,
    GroupError,
    PodGroup,
    PodObject,
    group_of,
)
from agent.model.pod.numa_request import NumaRequest, numa_request_of
from agent.model.pod_request import NO_KIND, PodKind, kind_of
from agent.model.quantities import Quantity, QuantityError, milli, whole

T = TypeVar("T")
log = logging.getLogger(__name__)


# The labels of deploy/base.
AGENT_LABELS: Final = {
    "app.kubernetes.io/name": "topolet",
    "app.kubernetes.io/component": "agent",
}


class AgentSelector(msgspec.Struct, frozen=True):
    """Selects the agents' pods: those with all these labels, in `namespace` unless it is empty.
    Without labels no node needs an agent."""

    labels: Mapping[str, str] = msgspec.field(default_factory=AGENT_LABELS.copy)
    namespace: str = ""

    def include(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return (
            bool(self.labels)
            and self.namespace in ("", namespace)
            and all(labels.get(key) == value for key, value in self.labels.items())
        )


CLAIM_REFUSED: Final = "topolet.io/CPUClaimRefused"
"""The type of a condition of pods."""


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod. `assigned` is the pod with its allocation, None if it has no node or is terminated.
    `agent_ready` is set for agents only.

    Fields of assigned pods for the selection of victims: `labels`, `started_at` in nanoseconds
    since 1970, `terminating` (its deletion has begun) and `mirror` (it is the mirror of a static
    pod, which can't be evicted). `reservation`: the uid of Koordinator's Reservation in which the
    pod was placed.

    Fields for the zone report: `numa_request` without names of containers, `started` (the pod runs,
    so a fingerprint of the node's pods contains it), and `terminated`, the title of a terminated
    pod that still exists, since a fingerprint may contain it too.

    `has_claim_condition`: it has the condition CLAIM_REFUSED, whatever its status. `kind`: the kind
    for placements, NO_KIND unless the decoder reads kinds. `untried`: it waits for this scheduler,
    and kube-scheduler has not found out whether a node has room for it.
    """

    uid: str
    node: str
    assigned: AssignedPod | None = None
    agent_ready: bool | None = None
    labels: Mapping[str, str] = {}
    started_at: int = 0
    terminating: bool = False
    mirror: bool = False
    numa_request: NumaRequest | None = None
    started: bool = False
    group: PodGroup | None = None
    terminated: str = ""
    reservation: str = ""
    has_claim_condition: bool = False
    kind: PodKind = NO_KIND
    untried: bool = False

    @property
    def report_fields(self) -> tuple[object, ...]:
        """The fields that decide whether the zone report of its node counts it."""
        return self.started, self.started_at, self.numa_request

    @property
    def title(self) -> str:
        """The namespace/name of a pod on a node."""
        return self.assigned.title if self.assigned is not None else self.terminated


class NodeRecord(msgspec.Struct, frozen=True):
    """A Node, with the annotations that the scheduler reads. `allocatable` is in milli-CPU and
    units."""

    name: str
    uid: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    allocatable: dict[str, int] = {}


class Unreadable(msgspec.Struct, frozen=True):
    """An invalid object, which counts as missing. `text` names object, field and fault."""

    text: str


MAX_VALUES: Final = 4096
MAX_INTERNED_BYTES: Final = 8 << 20
"""The limit of the JSON of all values of a pool, since a stolen agent may report one large value
after another. The values take about four times as much memory, beside the JSON."""
MAX_LABELS: Final = 128
"""The most labels of a pod that are kept, since an object of 1.5 MB may have thousands. A selector
of a PodDisruptionBudget by another label does not match here; the API server then refuses the
eviction."""


_sources: Final = msgspec.json.Encoder(enc_hook=str)


class InternPool(Generic[T]):
    """Keeps the first of equal values, compared by their JSON, in which a CpuSet is its text. The
    values must not be changed. A full pool is cleared, since most of its values may be unused by
    then. Two threads may both keep equal values, which only costs memory."""

    def __init__(self, max_values: int = MAX_VALUES, max_bytes: int = MAX_INTERNED_BYTES) -> None:
        self._max_values, self._max_bytes = max_values, max_bytes
        self._kept: dict[bytes, T] = {}
        self._bytes = 0

    def of(self, value: T) -> T:
        return self.by_source(value, lambda: value)

    def by_source(self, source: object, make: Callable[[], T]) -> T:
        """Returns the value of `make`, which must depend on `source` alone."""
        key = _sources.encode(source)
        kept = self._kept.get(key)
        if kept is None:
            kept = make()
            if len(self._kept) >= self._max_values or self._bytes >= self._max_bytes:
                self._kept.clear()
                self._bytes = 0
            self._kept[key] = kept
            self._bytes += len(key)
        return kept


def interned(texts: Mapping[str, str]) -> dict[str, str]:
    """The same mapping, of interned strings."""
    return {intern(key): intern(value) for key, value in texts.items()}


def pods(
    agents: AgentSelector, *, kinds: bool = False, scheduler: str = ""
) -> Callable[[bytes], PodRecord]:
    """Returns a decoder, which raises ObjectError. `kinds`: it reads the kinds of pods too, a third
    of its time for a pod with GPUs. `scheduler`: the name of this one in pods."""

    def read(text: bytes) -> PodRecord:
        raw = decoded(text, apiobjects.KIND, _pods)
        pod = apiobjects.value(raw)
        ready, kind = None, _kinds.of(kind_of(pod)) if kinds else NO_KIND
        if agents.include(pod.namespace, pod.labels):
            ready = pod.phase is apiobjects.Phase.RUNNING and not pod.deleted and _ready(text)
        if not pod.node:
            ends = pod.deleted or pod.terminal
            waits = not ends and bool(scheduler) and pod.scheduler == scheduler
            return PodRecord(
                pod.uid,
                "",
                None,
                ready,
                group=None if ends else _group(pod),
                kind=kind,
                untried=waits and _untried(text),
            )
        if pod.terminal:
            numa_request, title = _numa_request_of(pod), pod.title
            return PodRecord(
                pod.uid,
                intern(pod.node),
                None,
                ready,
                numa_request=numa_request,
                terminated=title,
                kind=kind,
            )
        assigned = assigned_pod_of(pod)
        for fault in assigned.faults:
            log.warning("pod %s on node %s: %s", pod.title, pod.node, fault)
        return PodRecord(
            pod.uid,
            intern(pod.node),
            _compact(assigned),
            ready,
            _labels.of(interned(dict(islice(pod.labels.items(), MAX_LABELS)))),
            pod.started_at,
            pod.deleted,
            pod.mirror,
            _numa_request_of(pod),
            pod.phase is not apiobjects.Phase.PENDING,
            _group(pod),
            reservation=_reservation(pod),
            has_claim_condition=_has_claim_condition(text),
            kind=kind,
        )

    return read


def _group(pod: ApiPod) -> PodGroup | None:
    """Returns None also for an invalid annotation, which the handlers report when the pod is
    scheduled."""
    try:
        return group_of(pod)
    except GroupError:
        return None


def _reservation(pod: ApiPod) -> str:
    """The uid of the pod's Reservation; "" also for an annotation that can't be read, so that the
    Reservation keeps all that it holds."""
    try:
        return reservation_uid(pod.annotations)
    except AnnotationError as error:
        log.warning("pod %s on node %s: %s", pod.title, pod.node, error)
        return ""


def node(text: bytes) -> NodeRecord:
    """Raises ObjectError."""
    raw = decoded(text, "Node", _nodes)
    metadata = raw.metadata
    return NodeRecord(
        intern(metadata.name),
        metadata.uid,
        interned(metadata.labels or {}),
        bounds.kept(metadata.annotations or {}, _NODE_READ),
        _requests.of(_amounts(metadata.name, raw.status.allocatable or {})),
    )


def namespace(text: bytes) -> DeviceLocality | None:
    """The device locality in the label of a Namespace; None without a known value. Raises
    ObjectError."""
    metadata = decoded(text, "Namespace", _named).metadata
    locality, problem = label_locality(metadata.labels or {})
    if problem:
        log.warning("namespace %s: %s", metadata.name, problem)
    return locality


def topology(text: bytes) -> NodeTopology | Unreadable:
    """Never raises."""
    try:
        read = resource_topology.decode(decoded(text, resource_topology.KIND, _objects))
    except ObjectError as error:
        return _unreadable(error)
    kept = bounds.kept(read.annotations, _TOPOLOGY_READ)
    if allocs := kept.get(node_annotations.POD_CPU_ALLOCS):
        # The CPUs of all other pods are in the pods' own annotations.
        kept[node_annotations.POD_CPU_ALLOCS] = node_annotations.only_kubelet_allocated(allocs)
    return msgspec.structs.replace(
        read,
        zones=_zones.of(read.zones),
        attributes=_labels.of(read.attributes),
        labels=_labels.of(read.labels),
        annotations=interned(kept),
    )


def devices(text: bytes) -> DeviceObject | Unreadable:
    """Never raises."""
    try:
        read = device_object.read(decoded(text, device_object.KIND, _objects))
    except ObjectError as error:
        return _unreadable(error)
    try:
        reported_devices.of_device_object(read.annotations)
    except AnnotationError as error:
        # Without this list it is unknown which devices are in use.
        return _unreadable(ObjectError(device_object.KIND, read.name, str(error)))
    found = tuple(
        msgspec.structs.replace(
            each,
            type=intern(each.type),
            resources=_resources.of(each.resources),
            labels=_labels.of(each.labels),
        )
        for each in read.devices
    )
    kept = bounds.kept(read.annotations, _DEVICE_READ)
    return msgspec.structs.replace(read, devices=found, annotations=interned(kept))


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None


class _Conditions(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _WithConditions(msgspec.Struct, frozen=True):
    status: _Conditions = _Conditions()


class _NodeStatus(msgspec.Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata


class _Node(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata
    status: _NodeStatus = _NodeStatus()


_SCHEDULED: Final = "PodScheduled"
_SCHEDULER_ERROR: Final = "SchedulerError"
_pods: Final = msgspec.json.Decoder(PodObject)
_conditions: Final = msgspec.json.Decoder(_WithConditions)
_named: Final = msgspec.json.Decoder(_Named)
_nodes: Final = msgspec.json.Decoder(_Node)
_objects: Final = msgspec.json.Decoder(object)
_NODE_READ: Final = dict.fromkeys(
    (
        node_annotations.SYSTEM_QOS,
        node_annotations.RESERVATION,
        node_annotations.CPU_NORMALIZATION_RATIO,
        node_annotations.AMPLIFICATION_RATIO,
    ),
    bounds.OBJECT_VALUE_BYTES,
)
_TOPOLOGY_READ: Final = {
    node_annotations.CPU_TOPOLOGY: bounds.OBJECT_LIST_BYTES,
    node_annotations.POD_CPU_ALLOCS: bounds.OBJECT_LIST_BYTES,
    node_annotations.CPU_MANAGER_POLICY: bounds.OBJECT_VALUE_BYTES,
    node_annotations.REFUSED_CLAIMS: bounds.OBJECT_LIST_BYTES,
    node_annotations.SYSTEM_QOS: bounds.OBJECT_VALUE_BYTES,
    node_annotations.RESERVATION: bounds.OBJECT_VALUE_BYTES,
    node_annotations.AGENT_SETTINGS: bounds.OBJECT_VALUE_BYTES,
    node_annotations.NEAR_DEVICES: bounds.OBJECT_LIST_BYTES,
}
_DEVICE_READ: Final = dict.fromkeys(
    (
        device_object.GPU_PARTITIONS,
        interconnect.GPU_LINKS,
        holding.DEVICES_CHECKPOINTS,
        holding.GPU_CHECKPOINTS,
    ),
    bounds.OBJECT_LIST_BYTES,
)
_labels: Final = InternPool[dict[str, str]]()
_numa_requests: Final = InternPool[NumaRequest]()
_numa_requests_by_key: Final = InternPool[NumaRequest]()
_requests: Final = InternPool[dict[str, int]]()
_kinds: Final = InternPool[PodKind]()
# The amounts of busy nodes differ: more values would only be those of former reports.
_zones: Final = InternPool[tuple[Zone, ...]](max_values=256)
_numa: Final = InternPool[dict[int, dict[str, int]]]()
_resources: Final = InternPool[dict[str, int]]()
_NO_DEVICES: Final[DeviceAmounts] = {}
_NO_FUNCTIONS: Final[VirtualFunctions] = {}
_NO_IDS: Final[dict[tuple[str, int], str]] = {}


def _has_claim_condition(text: bytes) -> bool:
    """The search in the text avoids the decoding of most pods; the text may also be in an
    annotation."""
    return CLAIM_REFUSED.encode() in text and any(
        each.type == CLAIM_REFUSED for each in _conditions_of(text)
    )


def _ready(text: bytes) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in _conditions_of(text))


def _untried(text: bytes) -> bool:
    """Whether kube-scheduler has not tried the pod, or could not: an extender that does not answer
    is such an error (pkg/scheduler/schedule_one.go, handleSchedulingFailure)."""
    reasons = [each.reason for each in _conditions_of(text) if each.type == _SCHEDULED]
    return reasons in ([], [_SCHEDULER_ERROR])


def _conditions_of(text: bytes) -> tuple[_Condition, ...]:
    return decoded(text, apiobjects.KIND, _conditions).status.conditions or ()


def _compact(assigned: AssignedPod) -> AssignedPod:
    allocation = assigned.allocation
    return msgspec.structs.replace(
        assigned,
        allocation=msgspec.structs.replace(
            allocation,
            uid=assigned.uid,
            title=assigned.title,
            amounts=_numa.of(allocation.amounts),
            memory=_requests.of(allocation.memory),
        ),
        devices=assigned.devices or _NO_DEVICES,
        functions=assigned.functions or _NO_FUNCTIONS,
        requests=_requests.of(assigned.requests),
        ids=assigned.ids or _NO_IDS,
    )


def _numa_request_of(pod: ApiPod) -> NumaRequest:
    amounts = pod.counted, pod.limits, pod.overhead
    key = (pod.kube_class, pod.containers, pod.init_containers, *amounts)
    return _numa_requests_by_key.by_source(
        key, lambda: _numa_requests.of(_nameless(numa_request_of(pod)))
    )


def _nameless(pod: NumaRequest) -> NumaRequest:
    parts = tuple(msgspec.structs.replace(each, name="") for each in pod.parts)
    return msgspec.structs.replace(pod, parts=parts)


def _amounts(name: str, raw: dict[str, Quantity]) -> dict[str, int]:
    amounts = {}
    for resource, quantity in raw.items():
        try:
            amounts[intern(resource)] = (milli if resource == "cpu" else whole)(quantity)
        except QuantityError as error:
            where = f"status.allocatable.{resource}"
            raise ObjectError("Node", name, f"{where}: {error}") from None
    return amounts


def _unreadable(error: ObjectError) -> Unreadable:
    log.error("%s", error)
    return Unreadable(str(error))
