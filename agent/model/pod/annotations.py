"""The pod annotations that Topolet reads, as values. Keys and formats are Koordinator's, except
where noted."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError, unknown_value
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.cpu.policies import (
    BindPolicy,
    DeviceLocality,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
)
from agent.model.quantities import Quantity, QuantityError, cpu, milli, whole

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC = "scheduling.koordinator.sh/numa-topology-spec"

SHARED_CONTAINERS = "topolet.io/shared-containers"
"""Topolet's annotation: names of containers, separated by commas, that do not run on the CPUs that
their pod owns."""
MIXED_CONTAINERS = "topolet.io/mixed-containers"
"""Topolet's annotation: names of containers, separated by commas, that run on their pool too,
beside the CPUs that they own."""
CRIO_SHARED = "cpu-shared.crio.io/"
"""CRI-O's annotation, followed by the name of a container: with `enable` this one is mixed too
(cri-o: requestedSharedCPUs in internal/runtimehandlerhooks/high_performance_hooks_linux.go)."""
DEVICE_LOCALITY = "topolet.io/device-locality"
NUMA_PLACEMENT_OBSERVED = "kai.scheduler/numa-placement-observed"
"""KAI's NUMA plugin reads it. No decision does."""
"""Topolet's annotation: the pod's DeviceLocality, instead of the node's."""
REBIND = "topolet.io/rebind"
"""Topolet's annotation: with REBIND_NEVER no rebind of its node moves the pod."""
REBIND_NEVER = "never"

BATCH_CPU_NAMES = ("kubernetes.io/batch-cpu", "koordinator.sh/batch-cpu")
"""Resources in milli-CPU; the first one that is present counts."""
BATCH_MEMORY_NAMES = ("kubernetes.io/batch-memory", "koordinator.sh/batch-memory")
EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESERVATION_ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
"""The Reservation that a pod was placed in by Koordinator's scheduler."""
GPU_ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"
"""A label of pods with a part of a GPU: the library that enforces the limits of the part."""

CPU_BURST = "koordinator.sh/cpuBurst"
MEMORY_QOS = "koordinator.sh/memoryQOS"
CPU_QOS = "koordinator.sh/cpuQOS"
BLKIO_QOS = "koordinator.sh/blkioQOS"
NETWORK_QOS = "koordinator.sh/networkQOS"
RESCTRL = "node.koordinator.sh/resctrl"
CORE_GROUP_LABEL = "koordinator.sh/core-sched-group-id"
CORE_POLICY_LABEL = "koordinator.sh/core-sched-policy"
OOM_SCORES = "koordinator.sh/oom-score-adj"
OOM_SCORES_SPEC = "koordinator.sh/oom-score-adj-spec"
STRATEGY_BYTES = {
    CPU_BURST: 1 << 10,
    MEMORY_QOS: 1 << 10,
    CPU_QOS: 1 << 10,
    BLKIO_QOS: 4 << 10,
    NETWORK_QOS: 1 << 10,
    RESCTRL: 4 << 10,
    OOM_SCORES: 16,
    OOM_SCORES_SPEC: 4 << 10,
}
"""The annotations with which a pod overrides strategies of its node, with the longest length of
each in bytes."""

QUIET_FEATURES = (
    "partitions",
    "interrupts",
    "host-slices",
    "workqueues",
    "packet-steering",
    "c-states",
    "frequency",
)
"""The names of the features of `node.quiet`."""
QUIET = "topolet.io/quiet"
CRIO_LOAD_BALANCING = "cpu-load-balancing.crio.io"
CRIO_INTERRUPTS = "irq-load-balancing.crio.io"
CRIO_C_STATES = "cpu-c-states.crio.io"
CRIO_GOVERNOR = "cpu-freq-governor.crio.io"
CRIO_QUOTA = "cpu-quota.crio.io"
QUIET_BYTES = {
    QUIET: 256,
    CRIO_LOAD_BALANCING: 64,
    CRIO_INTERRUPTS: 64,
    CRIO_C_STATES: 64,
    CRIO_GOVERNOR: 64,
    CRIO_QUOTA: 64,
}
"""These annotations, with the longest length of each in bytes."""
HOUSEKEEPING = "housekeeping"


_Value = TypeVar("_Value")


class AnnotationError(ValueError):
    """An invalid annotation."""

    def __init__(self, key: str, reason: str) -> None:
        reason = bounds.reason(reason)
        super().__init__(f"annotation {key}: {reason}")
        self.key = key
        self.reason = reason


def text_of(annotations: Mapping[str, str], key: str, most_bytes: int) -> str:
    """The annotation, "" if absent. Raises AnnotationError if it is too long."""
    text = annotations.get(key, "")
    if text and (why := bounds.excess(text, most_bytes)):
        raise AnnotationError(key, why)
    return text


def decoded(
    annotations: Mapping[str, str],
    key: str,
    decoder: msgspec.json.Decoder[_Value | None],
    most_bytes: int = bounds.POD_VALUE_BYTES,
) -> _Value | None:
    """The decoded annotation, None if it is absent, empty or null. Raises AnnotationError."""
    text = text_of(annotations, key, most_bytes)
    if not text:
        return None
    try:
        return bounds.decode(decoder, text)
    except JsonError as error:
        raise AnnotationError(key, str(error)) from None


def cpu_list(key: str, field: str, text: str) -> CpuSet:
    """Parses a Linux list in a field of an annotation. Raises AnnotationError."""
    try:
        return CpuSet.parse(text)
    except CpuSetError as error:
        raise AnnotationError(key, f"{field}: {error}") from None


Default = TypeVar("Default")


def device_locality(annotations: Mapping[str, str], default: Default) -> DeviceLocality | Default:
    """The pod's policy. Raises AnnotationError."""
    text = text_of(annotations, DEVICE_LOCALITY, bounds.POD_VALUE_BYTES)
    if not text:
        return default
    try:
        return DeviceLocality(text)
    except ValueError:
        problem = unknown_value("value", text, tuple(DeviceLocality))
        raise AnnotationError(DEVICE_LOCALITY, problem) from None


def label_locality(labels: Mapping[str, str]) -> tuple[DeviceLocality | None, str]:
    """The policy in the label of a namespace, and why it has none, "" without the label."""
    text = labels.get(DEVICE_LOCALITY, "")
    if not text or text in tuple(DeviceLocality):
        return DeviceLocality(text) if text else None, ""
    return None, unknown_value(f"label {DEVICE_LOCALITY}", text, tuple(DeviceLocality))


class ResourceSpec(msgspec.Struct, frozen=True):
    """The annotation resource-spec. DEFAULT means the configured policy; no exclusive policy can be
    configured, so the proposal's `Default` is NONE there."""

    preferred: BindPolicy = BindPolicy.DEFAULT
    required: BindPolicy | None = None
    """None if no policy is required."""
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE


class NumaSpec(msgspec.Struct, frozen=True):
    """The annotation numa-topology-spec."""

    policy: NumaPolicy | None = None
    """None for the node's policy."""
    exclusive: NumaExclusive | None = None
    """None for the default of the policy."""


class _ResourceSpecText(msgspec.Struct, frozen=True):
    preferred_bind: str = msgspec.field(default="", name="preferredCPUBindPolicy")
    required_bind: str = msgspec.field(default="", name="requiredCPUBindPolicy")
    exclusive: str = msgspec.field(default="", name="preferredCPUExclusivePolicy")


class _NumaSpecText(msgspec.Struct, frozen=True):
    policy: str = msgspec.field(default="", name="numaTopologyPolicy")
    exclusive: str = msgspec.field(default="", name="singleNUMANodeExclusive")


_resource_spec_decoder = msgspec.json.Decoder(_ResourceSpecText | None)
_numa_spec_decoder = msgspec.json.Decoder(_NumaSpecText | None)
_Policy = TypeVar("_Policy", bound=enum.StrEnum)


def resource_spec(annotations: Mapping[str, str]) -> ResourceSpec:
    """Absent fields have their defaults. Raises AnnotationError, which names the field."""
    text = decoded(annotations, RESOURCE_SPEC, _resource_spec_decoder)
    if text is None:
        return ResourceSpec()

    def parsed(kind: type[_Policy], value: str, field: str) -> _Policy | None:
        return _parsed(kind, value, RESOURCE_SPEC, field)

    return ResourceSpec(
        parsed(BindPolicy, text.preferred_bind, "preferredCPUBindPolicy") or BindPolicy.DEFAULT,
        parsed(BindPolicy, text.required_bind, "requiredCPUBindPolicy"),
        parsed(
            ExclusivePolicy,
            "" if text.exclusive == BindPolicy.DEFAULT else text.exclusive,
            "preferredCPUExclusivePolicy",
        )
        or ExclusivePolicy.NONE,
    )


def numa_spec(annotations: Mapping[str, str]) -> NumaSpec:
    """Absent fields have their defaults. Raises AnnotationError, which names the field."""
    text = decoded(annotations, NUMA_TOPOLOGY_SPEC, _numa_spec_decoder)
    if text is None:
        return NumaSpec()
    return NumaSpec(
        _parsed(NumaPolicy, text.policy, NUMA_TOPOLOGY_SPEC, "numaTopologyPolicy"),
        _parsed(NumaExclusive, text.exclusive, NUMA_TOPOLOGY_SPEC, "singleNUMANodeExclusive"),
    )


def _parsed(kind: type[_Policy], value: str, key: str, field: str) -> _Policy | None:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        raise AnnotationError(key, unknown_value(field, value, kind)) from None


class _ReservationName(msgspec.Struct, frozen=True):
    uid: str = ""


_reservation_decoder = msgspec.json.Decoder(_ReservationName | None)


def reservation_uid(annotations: Mapping[str, str]) -> str:
    """The uid of the Reservation that the pod was placed in, "" for none. Raises
    AnnotationError."""
    found = decoded(annotations, RESERVATION_ALLOCATED, _reservation_decoder)
    return found.uid if found is not None else ""


class NumaNodeResources(msgspec.Struct, frozen=True):
    """The resources of one NUMA node that are allocated to a pod, as Kubernetes quantities."""

    node: int
    resources: Annotated[dict[str, Quantity], msgspec.Meta(max_length=bounds.MAX_RESOURCES)] = {}


class SharedPool(msgspec.Struct, frozen=True):
    """A NUMA node on whose pool the pod runs, as the fine-grained CPU orchestration proposal names
    it."""

    node: int
    socket: int = 0


class ResourceStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The scheduler's allocation: the CPUs that the pod owns (a Linux list), or the NUMA nodes on
    whose pools it runs."""

    cpuset: str = ""
    numa_node_resources: Annotated[
        tuple[NumaNodeResources, ...], msgspec.Meta(max_length=bounds.MAX_NODES)
    ] = ()
    cpu_shared_pools: Annotated[
        tuple[SharedPool, ...], msgspec.Meta(max_length=bounds.MAX_NODES)
    ] = ()

    def cpus(self) -> CpuSet:
        """The CPUs that the pod owns, empty if it owns none. Raises AnnotationError."""
        return cpu_list(RESOURCE_STATUS, "cpuset", self.cpuset)

    def shared_numa_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes on whose pools the pod runs, in the annotation's order: all nodes of
        numaNodeResources if one of them has CPU, else those of cpuSharedPools. Raises
        AnnotationError."""
        if self._has_cpu():
            return tuple(each.node for each in self.numa_node_resources)
        return tuple(each.node for each in self.cpu_shared_pools)

    def pool_shares(self, cpu_milli: int) -> dict[int, int]:
        """The shares of a pod's CPU request, in milli-CPU, on the NUMA nodes of cpuSharedPools,
        which has no amounts itself. The shares are equal, the remainder goes to the first nodes,
        and nodes without a share are left out. Empty if numaNodeResources has the pod's CPU. Raises
        AnnotationError."""
        if self._has_cpu():
            return {}
        nodes = dict.fromkeys(each.node for each in self.cpu_shared_pools)
        share, more = divmod(max(0, cpu_milli), max(1, len(nodes)))
        shares = {node: share + (place < more) for place, node in enumerate(nodes)}
        return {node: amount for node, amount in shares.items() if amount}

    def _has_cpu(self) -> bool:
        amounts = [
            _amount(each, name)
            for each in self.numa_node_resources
            for name in _CPU_RESOURCES
            if name in each.resources
        ]
        return any(amount > 0 for amount in amounts)

    def amounts(self) -> dict[int, dict[str, int]]:
        """The allocated amounts by NUMA node and resource: `cpu` in milli-CPU, the rest in units
        (bytes, devices). If a node is named twice, its amounts are added. Negative amounts count as
        0, because they would increase the free amounts. Raises AnnotationError."""
        amounts: dict[int, dict[str, int]] = {}
        for each in self.numa_node_resources:
            node = amounts.setdefault(each.node, {})
            for name in each.resources:
                node[name] = node.get(name, 0) + max(0, _amount(each, name))
        return amounts


def status_text(
    cpus: CpuSet,
    amounts: Mapping[int, Mapping[str, int]],
    pools: Collection[SharedPool] = (),
) -> str:
    """The annotation resource-status with these CPUs, amounts (as `amounts()` returns them) and
    pools."""
    parts = [
        {"node": node, _RESOURCES: {name: _text(name, of[name]) for name in sorted(of)}}
        for node, of in sorted(amounts.items())
    ]
    status: dict[str, object] = {}
    if cpus:
        status["cpuset"] = str(cpus)
    if parts:
        status[_NODES] = parts
    if pools:
        status[_POOLS] = pools
    return msgspec.json.encode(status).decode()


def with_cpus(text: str, cpus: CpuSet, node_of: Mapping[int, int]) -> str:
    """The resource-status `text` with other CPUs, and their amounts by NUMA node. Other resources
    that were on one node move with the CPUs if these are on one node. Amounts without CPU are left
    out: memory that is bound to NUMA nodes then counts by the CPUs. Unknown fields stay.

    `node_of`: the NUMA node of each CPU.

    Raises AnnotationError."""
    texts = {RESOURCE_STATUS: text}
    before = resource_status(texts)
    fields = decoded(texts, RESOURCE_STATUS, _object_decoder, bounds.POD_TEXT_BYTES) or {}
    fields["cpuset"] = str(cpus)
    if any("cpu" in amounts.resources for amounts in before.numa_node_resources):
        fields[_NODES] = _moved(fields[_NODES], cpus, node_of)
    else:
        fields.pop(_NODES, None)
    return msgspec.json.encode(fields).decode()


def with_allocation(text: str, cpus: CpuSet, amounts: Mapping[int, Mapping[str, int]]) -> str:
    """The resource-status `text` with this allocation instead of its own. Unknown fields stay.
    Raises AnnotationError."""
    texts = {RESOURCE_STATUS: text}
    fields = decoded(texts, RESOURCE_STATUS, _object_decoder, bounds.POD_TEXT_BYTES) or {}
    for name in ("cpuset", _NODES, _POOLS):
        fields.pop(name, None)
    allocation = msgspec.json.decode(status_text(cpus, amounts), type=dict[str, Any])
    return msgspec.json.encode(fields | allocation).decode()


_CONTAINER_NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CPU_RESOURCES = ("cpu", "kubernetes.io/batch-cpu")
_NO_STATUS = ResourceStatus()
_NODES = "numaNodeResources"
_POOLS = "cpuSharedPools"
_RESOURCES = "resources"
_status_decoder = msgspec.json.Decoder(ResourceStatus | None)
_object_decoder = msgspec.json.Decoder(dict[str, Any] | None)


def resource_status(annotations: Mapping[str, str]) -> ResourceStatus:
    """The annotation resource-status, empty if it is absent. Raises AnnotationError."""
    return (
        decoded(annotations, RESOURCE_STATUS, _status_decoder, bounds.POD_TEXT_BYTES) or _NO_STATUS
    )


def shared_containers(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The containers that stay on the shared pool (sidecars) although their pod owns CPUs, sorted.
    Raises AnnotationError."""
    return _container_names(annotations, SHARED_CONTAINERS)


def mixed_containers(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The containers that run on their pool too, beside the CPUs that they own, sorted. Raises
    AnnotationError, also if a word can't be the name of a container: each has a folder with its
    name."""
    names = _container_names(annotations, MIXED_CONTAINERS)
    for name in names:
        if not _CONTAINER_NAME.fullmatch(name):
            raise AnnotationError(MIXED_CONTAINERS, f"{name[:60]!r} is no name of a container")
    return names


def _container_names(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = text_of(annotations, key, bounds.POD_VALUE_BYTES)
    if not text:
        return ()
    names = {name.strip() for name in text.split(",")} - {""}
    if len(names) > bounds.MAX_CONTAINERS:
        why = f"names {len(names)} containers: at most {bounds.MAX_CONTAINERS}"
        raise AnnotationError(key, why)
    return tuple(sorted(names))


def with_crio_names(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """The annotations, where MIXED_CONTAINERS has the containers of CRI-O's annotations too."""
    names = sorted(
        key.removeprefix(CRIO_SHARED)
        for key, value in annotations.items()
        if key.startswith(CRIO_SHARED) and value == "enable"
    )
    if not names:
        return annotations
    own = annotations.get(MIXED_CONTAINERS)
    return {**annotations, MIXED_CONTAINERS: ",".join([own, *names] if own else names)}


def _moved(
    entries: list[dict[str, Any]], cpus: CpuSet, node_of: Mapping[int, int]
) -> list[dict[str, Any]]:
    counts = Counter(node_of[each] for each in cpus if each in node_of)
    by_node: dict[int, dict[str, Any]] = {}
    for entry in entries:
        home = next(iter(counts)) if len(counts) == len(entries) == 1 else entry["node"]
        moved = by_node.setdefault(home, {**entry, "node": home, _RESOURCES: {}})
        moved[_RESOURCES] |= entry.get(_RESOURCES) or {}
    for entry in by_node.values():
        entry[_RESOURCES].pop("cpu", None)
    for node, count in counts.items():
        entry = by_node.setdefault(node, {"node": node, _RESOURCES: {}})
        entry[_RESOURCES] = {"cpu": cpu(1000 * count), **entry[_RESOURCES]}
    return [by_node[node] for node in sorted(by_node) if by_node[node][_RESOURCES]]


def _text(name: str, amount: int) -> str:
    return cpu(amount) if name == "cpu" else str(amount)


def _amount(part: NumaNodeResources, name: str) -> int:
    try:
        return (milli if name == "cpu" else whole)(part.resources[name])
    except QuantityError as error:
        where = f"numaNodeResources of node {part.node}, {name[:60]!r}"
        raise AnnotationError(RESOURCE_STATUS, f"{where}: {error}") from None
