"""Pods and Nodes of the API server: the fields that Topolet reads."""

from __future__ import annotations

import contextlib
import datetime
import enum
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.objects import (
    ObjectError,
    ObjectMetadata,
    ObjectOwner,
    controller,
    converted,
    decoded,
)
from agent.model.pod.qos import CPU_OWNERS, QOS_LABEL, KubeClass
from agent.model.quantities import Quantity, QuantityError, cpu, milli, whole

GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
"""The label of a node with the model of its GPUs."""
MAX_VALUES: Final = 64
"""Values that are kept of a pod. An affinity may list thousands, and the scheduler keeps the values
for each kind of pods."""
MAX_CLAIM_USES: Final = 256
"""Uses of claims that are kept of a pod."""
_LABEL_CHARACTERS: Final = 63
"""The longest value of a label (Kubernetes: validation.LabelValueMaxLength)."""


class _Expression(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: tuple[_Expression, ...] | None = None


class _Terms(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _Terms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinity(msgspec.Struct, frozen=True, rename="camel"):
    """`spec.affinity`; only the part about nodes."""

    node_affinity: _NodeAffinity | None = None


def admitted_values(
    label: str, selector: Mapping[str, str] | None, affinity: PodAffinity | None
) -> tuple[str, ...]:
    """The values of a node's label that a pod admits, by its node selector and its required node
    affinity, sorted; empty if it admits any value, or more than MAX_VALUES.

    The node selector alone decides if it names the label: a pod whose affinity excludes that value
    fits no node in any case. Only what limits the label to a list of values counts: selectors, and
    expressions with the operator In."""
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    terms = [_of_term(label, each) for each in (required and required.node_selector_terms) or ()]
    found: frozenset[str] = frozenset()
    if terms and all(each is not None for each in terms):
        found = frozenset().union(*(each for each in terms if each is not None))
    if selector and label in selector:
        found = frozenset((selector[label],))
    possible = [each for each in found if len(each) <= _LABEL_CHARACTERS]
    return tuple(sorted(possible)) if len(possible) <= MAX_VALUES else ()


def _of_term(label: str, term: _Term) -> frozenset[str] | None:
    """The values that the term admits, None for any."""
    lists = [
        frozenset(expression.values or ())
        for expression in term.match_expressions or ()
        if expression.key == label and expression.operator == "In"
    ]
    return frozenset.intersection(*lists) if lists else None


KIND: Final = "Pod"
CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
CONFIG_HASH: Final = "kubernetes.io/config.hash"


class Phase(enum.StrEnum):
    """The phase of a pod. UNKNOWN also stands for values that are not known here."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ApiContainer(msgspec.Struct, frozen=True):
    """The requests and limits of a container: `cpu` in milli-CPU, the rest in units."""

    name: str
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    sidecar: bool = False
    """It is an init container that keeps running while the later containers run."""
    resized: dict[str, int] = {}
    """The CPU and memory that count instead of the requests while an in-place resize is not
    complete, or if it is infeasible."""

    @property
    def counted(self) -> dict[str, int]:
        """The amounts that the container takes from its node."""
        return self.requests | self.resized if self.resized else self.requests


CRITICAL_PRIORITY: Final = 2_000_000_000
"""The lowest priority of critical pods (Kubernetes: SystemCriticalPriority)."""


class ClaimUse(msgspec.Struct, frozen=True, gc=False):
    """A container uses a ResourceClaim."""

    container: str
    claim: str
    """The ResourceClaim's name."""
    request: str = ""
    """The request of the claim that it uses, "" for all."""


class ApiPod(msgspec.Struct, frozen=True):
    """A pod of the API server. Its requests and limits are pod-level resources: they override those
    of the containers, in the same units."""

    uid: str
    """The API's uid. The kubelet and the runtime use `runtime_uid`."""
    namespace: str
    name: str
    node: str
    phase: Phase
    labels: dict[str, str]
    annotations: dict[str, str]
    kube_class: KubeClass | None
    created_at: int
    """Nanoseconds since 1970."""
    resource_version: str = ""
    deleted: bool = False
    """It has a deletion timestamp."""
    containers: tuple[ApiContainer, ...] = ()
    init_containers: tuple[ApiContainer, ...] = ()
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    overhead: dict[str, int] = {}
    """It is added to the requests and limits."""
    priority: int | None = None
    preempts: bool = True
    """The preemption policy allows evictions."""
    scheduler: str = ""
    started_at: int = 0
    """Nanoseconds since 1970, 0 before the kubelet has started the pod."""
    nominated: str = ""
    """The nominated node."""
    resized: dict[str, int] = {}
    """The pod-level resources that count, as in `ApiContainer`."""
    controlling_node: str = ""
    """The uid of the Node if that controls the pod, as it does a static pod."""
    gpu_models: tuple[str, ...] = ()
    """The GPU models that the pod admits, as in the labels of nodes; empty for any."""
    has_claims: bool = False
    """A container of it uses a ResourceClaim."""
    pod_group: str = ""
    """The PodGroup of kube-scheduler that it belongs to."""
    claims: tuple[ClaimUse, ...] = ()
    """The ResourceClaims that exist for it, also those of extended resources."""
    claims_requested: bool = False
    """Its scheduler counts what its claims have as requests (KEP-5517)."""

    @property
    def pod_level(self) -> bool:
        """Whether it has resources as a whole: `spec.resources`."""
        return bool(self.requests or self.limits)

    @property
    def counted(self) -> dict[str, int]:
        """The pod-level amounts that it takes from its node."""
        return self.requests | self.resized if self.resized else self.requests

    @property
    def title(self) -> str:
        """The name in logs and errors."""
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        """Whether all its containers have terminated for good, according to the API."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def mirror(self) -> bool:
        """Whether it is the mirror of a static pod, whose source is not the API."""
        return CONFIG_MIRROR in self.annotations

    @property
    def unmovable(self) -> str:
        """Why nobody may evict it, "" if somebody may."""
        if self.mirror or self.controlling_node:
            return "it is static"
        if self.priority is not None and self.priority >= CRITICAL_PRIORITY:
            return "it is critical"
        return ""

    @property
    def runtime_uid(self) -> str:
        """The uid of a static pod is the hash of its source; its mirror pod in the API has another
        uid."""
        if not self.mirror:
            return self.uid
        return self.annotations.get(CONFIG_HASH) or self.annotations[CONFIG_MIRROR]


def unequal_cpu(pod: ApiPod) -> str:
    """The container of an LSE or LSR pod whose CPU limit differs from its request, with the fields
    and both amounts, for a message. "" if there is none, or if the pod has another class.
    Containers that keep running count; pod-level amounts count instead if the pod has them
    (fine-grained-cpu-orchestration, Koordinator QoS CPU orchestration principles; the same rule as
    in deploy/policies/requests.yaml)."""
    if pod.labels.get(QOS_LABEL) not in CPU_OWNERS:
        return ""
    whole_pod = "cpu" in pod.requests or "cpu" in pod.limits
    parts = [("spec.resources", pod.requests, pod.limits)]
    if not whole_pod:
        running = (*pod.containers, *(each for each in pod.init_containers if each.sidecar))
        parts = [(f"container {each.name}", each.requests, each.limits) for each in running]
    for name, requests, limits in parts:
        limit = limits.get("cpu")
        requested = requests.get("cpu", limit)
        if (requested or 0) != (limit or 0):
            return (
                f"{name}: requests.cpu is {_quantity(requested)}, limits.cpu is {_quantity(limit)}"
            )
    return ""


def _quantity(cpu_milli: int | None) -> str:
    return "not set" if cpu_milli is None else cpu(cpu_milli)


def decode(text: bytes) -> ApiPod:
    """Decodes an object's JSON. Raises ObjectError, which names the pod and the field."""
    return value(decoded(text, KIND, _decoder))


def from_object(body: object) -> ApiPod:
    """Reads a decoded object. Raises ObjectError."""
    return value(converted(body, KIND, PodObject))


def value(raw: PodObject) -> ApiPod:
    """Raises ObjectError."""
    metadata = raw.metadata
    title = f"{metadata.namespace}/{metadata.name}"
    if not metadata.uid:
        raise ObjectError(KIND, title, "metadata.uid: is empty")
    status = raw.status
    requests = _amounts(title, "spec.resources.requests", raw.spec.resources.requests)
    resized = _resized(title, "status", raw.spec.resources, requests, status, status)
    return ApiPod(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        raw.spec.node_name,
        _PHASES.get(status.phase, Phase.UNKNOWN),
        metadata.labels or {},
        metadata.annotations or {},
        _CLASSES.get(status.qos_class),
        _nanoseconds(title, "metadata.creationTimestamp", metadata.creation_timestamp),
        metadata.resource_version,
        metadata.deletion_timestamp is not None,
        _containers(title, "container", raw.spec.containers, status),
        _containers(title, "initContainer", raw.spec.init_containers, status),
        requests,
        _amounts(title, "spec.resources.limits", raw.spec.resources.limits),
        _amounts(title, "spec.overhead", raw.spec.overhead),
        raw.spec.priority,
        raw.spec.preemption_policy != _NEVER,
        raw.spec.scheduler_name,
        _nanoseconds(title, "status.startTime", status.start_time),
        status.nominated_node_name or "",
        {name: amount for name, amount in resized.items() if name in requests},
        controller(metadata.owner_references or (), "v1", NODE_KIND, raw.spec.node_name),
        admitted_values(GPU_MODEL, raw.spec.node_selector, raw.spec.affinity),
        any(each.resources.claims for each in (raw.spec.containers or ())),
        (raw.spec.scheduling_group or _NO_GROUP).pod_group_name or "",
        tuple(islice(_claim_uses(raw), MAX_CLAIM_USES)),
        status.counts_claims,
    )


def _claim_uses(raw: PodObject) -> Iterator[ClaimUse]:
    """A claim made from a template has its name in the status (Kubernetes:
    component-helpers, resourceclaim.Name)."""
    status = raw.status
    names = {
        each.name: each.resource_claim_name
        for each in (*(raw.spec.resource_claims or ()), *(status.resource_claim_statuses or ()))
        if each.resource_claim_name
    }
    if not names and status.extended_resource_claim_status is None:
        return
    for container in (*(raw.spec.containers or ()), *(raw.spec.init_containers or ())):
        for use in container.resources.claims or ():
            if name := names.get(use.name):
                yield ClaimUse(container.name, name, use.request or "")
    if (extended := status.extended_resource_claim_status) is not None:
        for mapping in extended.request_mappings or ():
            claim = extended.resource_claim_name
            yield ClaimUse(mapping.container_name, claim, mapping.request_name)


class _RawMetadata(ObjectMetadata, frozen=True, rename="camel", kw_only=True):
    uid: str
    namespace: str = "default"
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str = ""
    owner_references: tuple[ObjectOwner, ...] | None = None


class _RawClaim(msgspec.Struct, frozen=True):
    name: str = ""
    request: str | None = None


class _RawPodClaim(msgspec.Struct, frozen=True, rename="camel"):
    """A claim in the spec or in the status of a pod."""

    name: str = ""
    resource_claim_name: str | None = None


class _RawRequestMapping(msgspec.Struct, frozen=True, rename="camel"):
    container_name: str = ""
    request_name: str = ""


class _RawExtendedClaim(msgspec.Struct, frozen=True, rename="camel"):
    resource_claim_name: str = ""
    request_mappings: tuple[_RawRequestMapping, ...] | None = None


class _RawResources(msgspec.Struct, frozen=True):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None
    claims: tuple[_RawClaim, ...] | None = None


class _RawContainer(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resources: _RawResources = _RawResources()
    restart_policy: str = ""


class _RawSchedulingGroup(msgspec.Struct, frozen=True, rename="camel"):
    pod_group_name: str | None = None


_NO_GROUP: Final = _RawSchedulingGroup()


class _RawSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    containers: tuple[_RawContainer, ...] | None = None
    init_containers: tuple[_RawContainer, ...] | None = None
    resources: _RawResources = _RawResources()
    overhead: dict[str, Quantity] | None = None
    priority: int | None = None
    preemption_policy: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: PodAffinity | None = None
    scheduling_group: _RawSchedulingGroup | None = None
    resource_claims: tuple[_RawPodClaim, ...] | None = None


class _RawInForce(msgspec.Struct, frozen=True, rename="camel"):
    """The resources of a container or a whole pod in its status: those that the runtime has set,
    and those that the kubelet admitted (`allocatedResources`)."""

    resources: _RawResources | None = None
    allocated_resources: dict[str, Quantity] | None = None


class _RawContainerStatus(_RawInForce, frozen=True, rename="camel"):
    name: str = ""


class _RawCondition(msgspec.Struct, frozen=True):
    type: str = ""
    reason: str | None = None


class _RawCounted(msgspec.Struct, frozen=True, rename="camel"):
    source_kind: str = ""


class _RawStatus(_RawInForce, frozen=True, rename="camel"):
    phase: str = "Pending"
    qos_class: str = ""
    start_time: str | None = None
    nominated_node_name: str | None = None
    container_statuses: tuple[_RawContainerStatus, ...] | None = None
    init_container_statuses: tuple[_RawContainerStatus, ...] | None = None
    conditions: tuple[_RawCondition, ...] | None = None
    resource_claim_statuses: tuple[_RawPodClaim, ...] | None = None
    extended_resource_claim_status: _RawExtendedClaim | None = None
    node_allocatable_resource_claim_statuses: tuple[_RawCounted, ...] | None = None
    additional_node_allocatable_resources: tuple[_RawCounted, ...] | None = None

    @property
    def counts_claims(self) -> bool:
        """Whether the scheduler has counted claims (KEP-5517): the first field is that of 1.36 and
        1.37, the second one that of the proposal for 1.38 (enhancements, pull request 6324)."""
        return bool(self.node_allocatable_resource_claim_statuses) or any(
            each.source_kind == _CLAIM for each in self.additional_node_allocatable_resources or ()
        )

    @property
    def infeasible(self) -> bool:
        """Whether the kubelet can't resize the pod as its spec says."""
        return any(
            each.type == _RESIZE_PENDING and each.reason == _INFEASIBLE
            for each in self.conditions or ()
        )


class PodObject(msgspec.Struct, frozen=True):
    """The JSON of a pod."""

    metadata: _RawMetadata
    spec: _RawSpec = _RawSpec()
    status: _RawStatus = _RawStatus()


_decoder: Final = msgspec.json.Decoder(PodObject)
_NEVER: Final = "Never"
_CLAIM: Final = "ResourceClaim"
_RESIZE_PENDING: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"
_RESIZABLE: Final = ("cpu", "memory")
_PHASES: Final = {each.value: each for each in Phase}
_CLASSES: Final[dict[str, KubeClass]] = {
    "Guaranteed": "guaranteed",
    "Burstable": "burstable",
    "BestEffort": "besteffort",
}
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?Z", re.ASCII)


def _containers(
    title: str,
    kind: str,
    raw: tuple[_RawContainer, ...] | None,
    status: _RawStatus,
) -> tuple[ApiContainer, ...]:
    plain = kind == "container"
    statuses = status.container_statuses if plain else status.init_container_statuses
    in_force = {each.name: (place, each) for place, each in enumerate(statuses or ())}
    found = []
    for place, each in enumerate(raw or ()):
        spec = f"spec.{kind}s[{place}].resources"
        requests = _amounts(title, f"{spec}.requests", each.resources.requests)
        limits = _amounts(title, f"{spec}.limits", each.resources.limits)
        sidecar = not plain and each.restart_policy == "Always"
        resized: dict[str, int] = {}
        # Of an init container that ends, kube-scheduler counts the requests in the spec, too.
        if each.name in in_force and (plain or sidecar):
            at, of_container = in_force[each.name]
            where = f"status.{kind}Statuses[{at}]"
            resized = _resized(title, where, each.resources, requests, of_container, status)
        found.append(ApiContainer(each.name, requests, limits, sidecar, resized))
    return tuple(found)


def _resized(
    title: str,
    field: str,
    written: _RawResources,
    requests: dict[str, int],
    in_force: _RawInForce,
    status: _RawStatus,
) -> dict[str, int]:
    """The CPU and memory that count instead of the `requests` in the spec, empty if they equal
    them. kube-scheduler takes the maximum of the amounts in the spec, set by the runtime and
    admitted by the kubelet, without those in the spec if the resize is infeasible
    (component-helpers: resource/helpers.go, determineEffectiveRequests)."""
    if in_force.resources is None:
        return {}
    present, admitted = in_force.resources.requests or {}, in_force.allocated_resources
    if present == (written.requests or {}) and admitted in (None, present):
        return {}
    candidates = [
        _amounts(title, f"{field}.resources.requests", present),
        _amounts(title, f"{field}.allocatedResources", admitted),
        *([] if status.infeasible else [requests]),
    ]
    counted = {name: max(candidate.get(name, 0) for candidate in candidates) for name in _RESIZABLE}
    return {name: most for name, most in counted.items() if most != requests.get(name, 0)}


def _amounts(title: str, field: str, raw: dict[str, Quantity] | None) -> dict[str, int]:
    amounts = {}
    for name, quantity in (raw or {}).items():
        try:
            amounts[name] = (milli if name == "cpu" else whole)(quantity)
        except QuantityError as error:
            raise ObjectError(KIND, title, f"{field}.{name}: {error}") from None
    return amounts


def _nanoseconds(title: str, field: str, text: str | None) -> int:
    if text is None:
        return 0
    match = _TIME.fullmatch(text)
    try:
        moment = datetime.datetime.fromisoformat(f"{match[1] if match else ''}Z")
    except ValueError:
        raise ObjectError(KIND, title, f"{field}: {text[:40]!r} is not a time") from None
    return int(moment.timestamp()) * 1_000_000_000


NODE_KIND: Final = "Node"


class ApiNode(msgspec.Struct, frozen=True):
    """A Node."""

    uid: str = ""
    """Empty without an API server."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    allocatable: dict[str, int] = {}
    """The node's CPU in milli-CPU and its memory in bytes, before amplification."""
    capacity: dict[str, int] = {}
    offered: dict[str, int] = {}
    """The allocatable resources of mid and batch pods, in milli-CPU and bytes."""
    counts_claims: bool = False
    """Its kubelet, of 1.37 or later, declares that it counts claims as requests (KEP-5517)."""


class _NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    allocatable: dict[str, Quantity] | None = None
    capacity: dict[str, Quantity] | None = None
    declared_features: tuple[str, ...] | None = None


class NodeBody(msgspec.Struct, frozen=True):
    """The JSON of a Node."""

    metadata: ObjectMetadata
    status: _NodeStatus = _NodeStatus()


def decode_node(text: bytes) -> ApiNode:
    """Decodes an object's JSON. Raises ObjectError."""
    return node_value(decoded(text, NODE_KIND, _node_decoder))


def node_value(raw: NodeBody) -> ApiNode:
    metadata = raw.metadata
    annotations = metadata.annotations or {}
    written = dict(raw.status.allocatable or {})
    with contextlib.suppress(JsonError):
        before: dict[str, Quantity] = bounds.decode(
            _quantities, annotations.get(RAW_ALLOCATABLE, "{}")
        )
        written.update(before)
    return ApiNode(
        metadata.uid,
        metadata.labels or {},
        annotations,
        _node_amounts(written),
        _node_amounts(raw.status.capacity or {}),
        _offered(written),
        _COUNTS_CLAIMS in (raw.status.declared_features or ()),
    )


def _node_amounts(written: Mapping[str, Quantity]) -> dict[str, int]:
    amounts = {}
    for resource, read in (("cpu", milli), ("memory", whole)):
        with contextlib.suppress(QuantityError):
            amounts[resource] = read(written.get(resource, 0))
    return amounts


def _offered(written: Mapping[str, Quantity]) -> dict[str, int]:
    """An amount that can't be read is absent."""
    amounts = {}
    for resource in OFFERED_RESOURCES:
        if resource in written:
            with contextlib.suppress(QuantityError):
                amounts[resource] = whole(written[resource])
    return amounts


OFFERED_RESOURCES: Final = tuple(
    f"kubernetes.io/{kind}-{resource}"
    for kind in ("batch", "mid")
    for resource in ("cpu", "memory")
)
"""A Node has them only while somebody offers them."""


RAW_ALLOCATABLE: Final = "node.koordinator.sh/raw-allocatable"
"""The annotation with the amounts before amplification; one that can't be read does not count."""
_COUNTS_CLAIMS: Final = "DRANodeAllocatableResources"
_quantities: Final = msgspec.json.Decoder(dict[str, Quantity])
_node_decoder: Final = msgspec.json.Decoder(NodeBody)


GROUP_ANNOTATION: Final = "topolet.io/group"
MAX_GROUP_SIZE: Final = 64
"""The most members of a group, which are all on one node."""


class GroupError(ValueError):
    """The annotation is invalid; the message names the pod and the annotation."""


class PodGroup(msgspec.Struct, frozen=True):
    """Pods that the scheduler places together on one node. All members have the same annotation
    `topolet.io/group: NAME/SIZE`."""

    namespace: str
    name: str
    size: int

    @property
    def title(self) -> str:
        return f"group {self.namespace}/{self.name}"

    def part(self, number: int) -> str:
        """The uid that stands for a part of the group's reservation while no member has taken that
        part."""
        return f"{self.namespace}/{self.name}/{number}"


def group_of(pod: ApiPod) -> PodGroup | None:
    """The group that the pod's annotation names; None without the annotation. Raises GroupError,
    also for a pod of a PodGroup: kube-scheduler filters nodes for these without a bind that
    follows, and a reservation would stay."""
    text = pod.annotations.get(GROUP_ANNOTATION)
    if text is None:
        return None
    if pod.pod_group:
        raise GroupError(
            f"pod {pod.title}: annotation {GROUP_ANNOTATION}: the pod belongs to PodGroup "
            f"{pod.pod_group[:80]!r} (spec.schedulingGroup), and can't belong to two groups"
        )
    match = _GROUP_TEXT.fullmatch(text)
    if match is None:
        raise GroupError(
            f"pod {pod.title}: annotation {GROUP_ANNOTATION}: {text[:80]!r} is not NAME/SIZE"
        )
    size = int(match[2])
    if not 1 <= size <= MAX_GROUP_SIZE:
        raise GroupError(
            f"pod {pod.title}: annotation {GROUP_ANNOTATION}: "
            f"SIZE {size} is not 1 to {MAX_GROUP_SIZE}"
        )
    return PodGroup(pod.namespace, match[1], size)


_GROUP_TEXT: Final = re.compile(r"([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/([0-9]{1,4})", re.ASCII)
