"""The pod annotations that Topolet reads, as values (keys and shapes are Koordinator's, except
where noted)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.quantities import Quantity, QuantityError, cpu, milli, whole

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC = "scheduling.koordinator.sh/numa-topology-spec"

SHARED_CONTAINERS = "topolet.io/shared-containers"
"""Ours: names of containers, separated by commas, that do not get their pod's own CPUs."""

EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
GPU_ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"
"""A label of pods that want a part of a GPU enforced, by the library that it names."""


_Value = TypeVar("_Value")


class AnnotationError(ValueError):
    """An annotation that can't be read; `key` names it, the text is the reason."""

    def __init__(self, key: str, reason: str) -> None:
        reason = bounds.reason(reason)
        super().__init__(f"annotation {key}: {reason}")
        self.key = key
        self.reason = reason


def text_of(annotations: Mapping[str, str], key: str, most_bytes: int) -> str:
    """The annotation, "" when absent. Raises AnnotationError when it is too long."""
    text = annotations.get(key, "")
    if why := bounds.excess(text, most_bytes):
        raise AnnotationError(key, why)
    return text


def decoded(
    annotations: Mapping[str, str],
    key: str,
    decoder: msgspec.json.Decoder[_Value | None],
    most_bytes: int = bounds.POD_VALUE_BYTES,
) -> _Value | None:
    """None when absent, empty or null. Raises AnnotationError."""
    text = text_of(annotations, key, most_bytes)
    if not text:
        return None
    try:
        return bounds.decode(decoder, text)
    except JsonError as error:
        raise AnnotationError(key, str(error)) from None


def cpu_list(key: str, field: str, text: str) -> CpuSet:
    """A Linux list in a field of an annotation. Raises AnnotationError."""
    try:
        return CpuSet.parse(text)
    except CpuSetError as error:
        raise AnnotationError(key, f"{field}: {error}") from None


class NumaNodeResources(msgspec.Struct, frozen=True):
    """What a pod got of one NUMA node; quantities as Kubernetes writes them."""

    node: int
    resources: Annotated[dict[str, Quantity], msgspec.Meta(max_length=bounds.MOST_RESOURCES)] = {}


class SharedPool(msgspec.Struct, frozen=True):
    """A NUMA node whose pool the pod shares; the older form of NumaNodeResources."""

    node: int
    socket: int = 0


class ResourceStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What the scheduler decided: own CPUs (Linux list), NUMA nodes to share."""

    cpuset: str = ""
    numa_node_resources: Annotated[
        tuple[NumaNodeResources, ...], msgspec.Meta(max_length=bounds.MOST_NODES)
    ] = ()
    cpu_shared_pools: Annotated[
        tuple[SharedPool, ...], msgspec.Meta(max_length=bounds.MOST_NODES)
    ] = ()

    def cpus(self) -> CpuSet:
        """The pod's own CPUs, empty when it has none. Raises AnnotationError."""
        return cpu_list(RESOURCE_STATUS, "cpuset", self.cpuset)

    def shared_numa_nodes(self) -> tuple[int, ...]:
        """NUMA nodes whose pools the pod is held to, in the annotation's order: all that gave it
        something, if one of them gave it CPU. The older cpuSharedPools count where
        numaNodeResources have no CPU. Raises AnnotationError."""
        gave_cpu = [
            _amount(each, name) > 0
            for each in self.numa_node_resources
            for name in _CPU_RESOURCES
            if name in each.resources
        ]
        if any(gave_cpu):
            return tuple(each.node for each in self.numa_node_resources)
        return tuple(each.node for each in self.cpu_shared_pools)

    def amounts(self) -> dict[int, dict[str, int]]:
        """By NUMA node and resource what the pod got: `cpu` in milli-CPU, the rest in units (bytes,
        devices); an entry for a node that is named twice is the sum. Negative amounts are none, or
        they would add to what is left for others. Raises AnnotationError."""
        amounts: dict[int, dict[str, int]] = {}
        for each in self.numa_node_resources:
            node = amounts.setdefault(each.node, {})
            for name in each.resources:
                node[name] = node.get(name, 0) + max(0, _amount(each, name))
        return amounts


def status_text(cpus: CpuSet, amounts: Mapping[int, Mapping[str, int]]) -> str:
    """The resource-status that reads back as these CPUs and amounts (as of `amounts()`)."""
    parts = [
        {"node": node, _RESOURCES: {name: _text(name, of[name]) for name in sorted(of)}}
        for node, of in sorted(amounts.items())
    ]
    status: dict[str, object] = {}
    if cpus:
        status["cpuset"] = str(cpus)
    if parts:
        status[_NODES] = parts
    return msgspec.json.encode(status).decode()


def with_cpus(text: str, cpus: CpuSet, node_of: Mapping[int, int]) -> str:
    """A resource-status with other CPUs than its scheduler chose; `node_of`: the NUMA node of each
    CPU. Its numbers of CPU by NUMA node follow the CPUs. All other resources follow them where they
    were on one node and the CPUs are on one again. Unknown fields stay. Raises AnnotationError."""
    texts = {RESOURCE_STATUS: text}
    before = resource_status(texts)
    fields = decoded(texts, RESOURCE_STATUS, _object_decoder, bounds.POD_TEXT_BYTES) or {}
    fields["cpuset"] = str(cpus)
    if any("cpu" in each.resources for each in before.numa_node_resources):
        fields[_NODES] = _moved(fields[_NODES], cpus, node_of)
    return msgspec.json.encode(fields).decode()


_CPU_RESOURCES = ("cpu", "kubernetes.io/batch-cpu")
_NO_STATUS = ResourceStatus()
_NODES = "numaNodeResources"
_RESOURCES = "resources"
_status_decoder = msgspec.json.Decoder(ResourceStatus | None)
_object_decoder = msgspec.json.Decoder(dict[str, Any] | None)


def resource_status(annotations: Mapping[str, str]) -> ResourceStatus:
    """The decoded resource-status, an empty one where the pod has none. Raises AnnotationError."""
    return (
        decoded(annotations, RESOURCE_STATUS, _status_decoder, bounds.POD_TEXT_BYTES) or _NO_STATUS
    )


def shared_containers(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The containers that stay on the shared pool (side-cars) while their pod owns CPUs, sorted.
    Raises AnnotationError."""
    text = text_of(annotations, SHARED_CONTAINERS, bounds.POD_VALUE_BYTES)
    found = {name.strip() for name in text.split(",")} - {""}
    if len(found) > bounds.MOST_CONTAINERS:
        why = f"names {len(found)} containers: {bounds.MOST_CONTAINERS} are the most"
        raise AnnotationError(SHARED_CONTAINERS, why)
    return tuple(sorted(found))


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
