"""The annotations and labels of a Node and of its NodeResourceTopology about CPUs, as values.

Keys and formats are Koordinator's (apis/extension/numa_aware.go,
pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go). A Node's annotations reserve CPUs
and amplify resources. Those of the NodeResourceTopology describe the node's CPUs, its shared pools
and its kubelet. The agent writes them; the scheduler reads them from any writer."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from agent.model import bounds
from agent.model.cpu.cpuset import EMPTY, MAX_ID, CpuSet, CpuSetError
from agent.model.cpu.policies import (
    BIND_LABEL,
    BIND_VALUES,
    NUMA_LABEL,
    NUMA_LABEL_OF_PROPOSAL,
    NUMA_VALUES,
    PARTITION_LABEL,
    STRATEGY_LABEL,
    STRATEGY_VALUES,
    GpuPartitionPolicy,
)
from agent.model.cpu.topology import Cpu, Topology
from agent.model.nrt.resource_topology import L3_CPUS, NodeTopology
from agent.model.pod.annotations import AnnotationError, cpu_list, decoded, text_of
from agent.model.pod.qos import Pool, Pools
from agent.model.quantities import Quantity, QuantityError, milli, whole

SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
RESERVATION: Final = "node.koordinator.sh/reservation"
CPU_NORMALIZATION_RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
AMPLIFICATION_RATIO: Final = "node.koordinator.sh/resource-amplification-ratio"
NUMA_MEMORY_POLICY: Final = "node.koordinator.sh/numa-memory-policy"
"""A label: with any value the scheduler counts the memory of pods by NUMA node."""
BIND_MEMORY: Final = "bind"
"""The value of this label with which the agent binds the memory too."""


CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
CPU_SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_CPU_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
POOL_ANNOTATIONS: Final = {CPU_SHARED_POOLS: "ls", BE_CPU_SHARED_POOLS: "be"}
"""The pools that Koordinator's annotations have, by key. The CPUs of SYSTEM pods are in the
configuration."""
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
REFUSED_CLAIMS = "topolet.io/refused-claims"
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
AGENT_SETTINGS: Final = "topolet.io/agent-settings"
NEAR_DEVICES: Final = "topolet.io/near-devices"

Object = dict[str, Any]


_LABEL_VALUES: Final[Mapping[str, Collection[str]]] = {
    NUMA_LABEL: NUMA_VALUES,
    NUMA_LABEL_OF_PROPOSAL: NUMA_VALUES,
    BIND_LABEL: BIND_VALUES,
    STRATEGY_LABEL: STRATEGY_VALUES,
    PARTITION_LABEL: tuple(GpuPartitionPolicy),
}


def label_faults(labels: Mapping[str, str]) -> tuple[str, ...]:
    """A message for each label of a Node or Device object whose value is unknown, and which
    therefore has no effect."""
    return tuple(
        bounds.unknown_value(f"label {key}", value, known)
        for key, known in _LABEL_VALUES.items()
        if (value := labels.get(key)) and value not in known
    )


class SystemQos(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The CPUs of SYSTEM pods (a Linux list). If they are exclusive, no other pod shares them."""

    cpuset: str = ""
    cpuset_exclusive: bool = True

    def cpus(self) -> CpuSet:
        """Raises AnnotationError."""
        return cpu_list(SYSTEM_QOS, "cpuset", self.cpuset)


class ApplyPolicy(enum.StrEnum):
    """How a scheduler applies a reservation: it reserves all resources, or only the CPUs. The agent
    does not distinguish them."""

    DEFAULT = "Default"
    RESERVED_CPUS_ONLY = "ReservedCPUsOnly"


class NodeReservation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The resources that are reserved for the node: CPUs by number, else by amount."""

    resources: dict[str, Quantity] = {}
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    """A list in the kernel's form."""
    apply_policy: ApplyPolicy | None = None

    def cpus(self) -> CpuSet:
        """The CPUs that are reserved by number. Raises AnnotationError."""
        return cpu_list(RESERVATION, "reservedCPUs", self.reserved_cpus)

    def cpu_milli(self) -> int:
        """The reserved amount of CPU, 0 if there is none. Raises AnnotationError."""
        return self._amount("cpu", milli, "m")

    def memory_bytes(self) -> int:
        """The reserved amount of memory, 0 if there is none. Raises AnnotationError."""
        return self._amount("memory", whole)

    def _amount(self, name: str, read: Callable[[Quantity], int], unit: str = "") -> int:
        try:
            amount = read(self.resources.get(name, 0))
        except QuantityError as error:
            raise AnnotationError(RESERVATION, f"resources.{name}: {error}") from None
        if amount < 0:
            raise AnnotationError(RESERVATION, f"resources.{name}: {amount}{unit} is below zero")
        return amount


MAX_AMPLIFICATION: Final = 1000


def system_qos(annotations: Mapping[str, str]) -> SystemQos:
    """The annotation, without CPUs if it is absent. Raises AnnotationError."""
    return decoded(annotations, SYSTEM_QOS, _system_qos, _MAX_BYTES) or SystemQos()


def node_reservation(annotations: Mapping[str, str]) -> NodeReservation:
    """The annotation, an empty reservation if it is absent. Raises AnnotationError."""
    return decoded(annotations, RESERVATION, _reservation, _MAX_BYTES) or NodeReservation()


def cpu_normalization_ratio(annotations: Mapping[str, str]) -> float:
    """The speed of the node's CPUs relative to the CPUs that requests count in; 1 without the
    annotation. Raises AnnotationError."""
    text = text_of(annotations, CPU_NORMALIZATION_RATIO, _MAX_BYTES)
    try:
        ratio = float(text or 1)
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio <= _MAX_RATIO:
        raise AnnotationError(
            CPU_NORMALIZATION_RATIO, f"{text[:40]!r} is not a number from 1 to {_MAX_RATIO}"
        )
    return ratio


def amplification_ratios(annotations: Mapping[str, str]) -> dict[str, float]:
    """The amplification ratios above 1, by resource; at most 1000. Raises AnnotationError."""
    ratios = decoded(annotations, AMPLIFICATION_RATIO, _ratios, _MAX_BYTES) or {}
    for name, ratio in ratios.items():
        if not ratio <= MAX_AMPLIFICATION:
            raise AnnotationError(
                AMPLIFICATION_RATIO, f"{name[:60]!r}: {ratio} is more than {MAX_AMPLIFICATION}"
            )
    return {name: ratio for name, ratio in ratios.items() if ratio > 1}


class PodCpuAlloc(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An entry of the annotation pod-cpu-allocs: CPUs that a pod owns, and whether the kubelet
    assigned them."""

    namespace: str
    name: str
    uid: str
    cpuset: str = ""
    managed_by_kubelet: bool = False


class _ReadAlloc(PodCpuAlloc, frozen=True, rename="camel", omit_defaults=True):
    """Such an entry, of any writer. The example of the fine-grained CPU orchestration proposal has
    `managedByKubelet` as a string."""

    cpu: str = ""
    """The CPUs in that example."""

    def cpus(self) -> CpuSet:
        """Raises AnnotationError."""
        field = f"cpuset of pod {self.uid[:60]!r}"
        return cpu_list(POD_CPU_ALLOCS, field, self.cpuset or self.cpu)


class RefusedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the annotation refused-claims: a pod that does not have the CPUs that its
    annotation claims."""

    namespace: str
    name: str
    uid: str
    cpuset: str = ""
    """The claimed CPUs, "" if they can't be read or their list is longer than
    bounds.REASON_CHARACTERS."""
    reason: str = ""


MAX_REFUSED: Final = 32
"""The entries of the annotation refused-claims, the first ones by uid."""


def refused_claims(annotations: Mapping[str, str]) -> tuple[RefusedClaim, ...]:
    """The refused claims of a node, none if the annotation is absent. Raises AnnotationError."""
    return decoded(annotations, REFUSED_CLAIMS, _refused, bounds.OBJECT_LIST_BYTES) or ()


def shared_pools(annotations: Mapping[str, str], key: str) -> tuple[Pool, ...]:
    """The pools in one of the two annotations, empty if it is absent. Raises AnnotationError."""
    pools = decoded(annotations, key, _pools, bounds.OBJECT_VALUE_BYTES) or ()
    for pool in pools:
        cpu_list(key, "cpuset", pool.cpuset)
    return pools


CPU_MANAGER_POLICIES: Final = ("none", "static")


class CpuManager(msgspec.Struct, frozen=True):
    """The kubelet's CPU manager."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    """The CPUs that it never assigns."""

    def reserved(self) -> CpuSet:
        """Raises AnnotationError."""
        return cpu_list(CPU_MANAGER_POLICY, "reservedCPUs", self.reserved_cpus)

    def static_options(self) -> dict[str, str] | None:
        """The options of the policy static, None under another policy."""
        return self.options if self.policy == "static" else None


STATIC_MEMORY: Final = "Static"
"""The memory manager policy under which the kubelet gives hints for memory and huge pages."""
NO_MEMORY_MANAGER: Final = "None"


class ReportedSettings(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The settings of a node's agent that a scheduler must know."""

    owners_on_reserved: bool = False
    """LSE and LSR pods may own CPUs that the kubelet reserves."""
    bind_memory: bool = False
    """Pods that own CPUs or are bound to NUMA nodes get memory of their CPUs' NUMA nodes alone."""
    memory_manager_policy: str = ""
    """The kubelet's policy, "" if unknown or aligns no pod."""
    device_locality: str = ""
    """The policy of pods without one of their own; "" without Topolet's agent."""


MAX_NEAR: Final = 64
"""The most sets of NUMA nodes in a report."""


class NearRequests(msgspec.Struct, frozen=True, rename="camel"):
    """The containers with devices that run on these NUMA nodes and own no CPUs."""

    numa_nodes: str
    """A list in the kernel's form."""
    cpu_milli: int
    """The sum of their CPU requests."""


class NodeConfiguration(msgspec.Struct, frozen=True):
    """The configuration of the node: the kubelet's policies for CPUs and NUMA nodes with its
    reserved CPUs, the Node's annotations, and the agent's settings for reserved CPUs."""

    kubelet_policy: str = "none"
    kubelet_options: dict[str, str] = {}
    kubelet_reserved: CpuSet = EMPTY
    topology_policy: str = "none"
    topology_scope: str = "container"
    system_qos: SystemQos = SystemQos()
    reservation: NodeReservation = NodeReservation()
    cpu_normalization_ratio: float = 1.0
    bind_memory: bool = False
    kubelet_memory: bool = False
    """The kubelet binds the memory of Guaranteed pods."""
    reserved_memory_bytes: dict[int, int] = {}
    """What the kubelet's memory manager reserves of each NUMA node."""
    max_numa_nodes: int | None = None
    """The limit of its topology manager, None for the default."""
    owners_on_reserved: bool = False
    be_on_reserved: bool = False
    managed_by: str = "topolet"
    device_locality: str = ""
    """The agent's setting."""


def koordinator_annotations(
    topology: Topology,
    pools: Pools,
    allocs: tuple[PodCpuAlloc, ...],
    configured: NodeConfiguration,
    refused: tuple[RefusedClaim, ...] = (),
    near: tuple[NearRequests, ...] = (),
) -> dict[str, str]:
    """Koordinator's annotations of a NodeResourceTopology, the settings of the agent, the refused
    claims, and the requests near to devices."""
    memory = STATIC_MEMORY if configured.kubelet_memory else ""
    if not memory and configured.topology_policy != "none":
        memory = NO_MEMORY_MANAGER
    settings = ReportedSettings(
        configured.owners_on_reserved, configured.bind_memory, memory, configured.device_locality
    )
    optional = {
        SYSTEM_QOS: configured.system_qos,
        RESERVATION: configured.reservation,
        AGENT_SETTINGS: settings,
    }
    return {
        CPU_TOPOLOGY: _text({"detail": [_cpu(each) for each in topology.cpus]}),
        **{key: _text(pools.get(name, ())) for key, name in POOL_ANNOTATIONS.items()},
        POD_CPU_ALLOCS: _text(allocs),
        CPU_MANAGER_POLICY: _text(_cpu_manager_fields(configured)),
        **{key: text for key, value in optional.items() if (text := _text(value)) != "{}"},
        **({REFUSED_CLAIMS: _text(refused[:MAX_REFUSED])} if refused else {}),
        **({NEAR_DEVICES: _text(near[:MAX_NEAR])} if near else {}),
    }


_MAX_RATIO: Final = 100
_MAX_BYTES: Final = bounds.OBJECT_VALUE_BYTES
_system_qos: Final = msgspec.json.Decoder(SystemQos | None)
_reservation: Final = msgspec.json.Decoder(NodeReservation | None)
_ratios: Final = msgspec.json.Decoder(dict[str, float] | None)
_pools: Final = msgspec.json.Decoder(tuple[Pool, ...] | None)
_refused: Final = msgspec.json.Decoder(
    Annotated[tuple[RefusedClaim, ...], msgspec.Meta(max_length=MAX_REFUSED)] | None
)
_cpu_manager_decoder: Final = msgspec.json.Decoder(CpuManager | None)
_settings: Final = msgspec.json.Decoder(ReportedSettings | None)
_near: Final = msgspec.json.Decoder(
    Annotated[tuple[NearRequests, ...], msgspec.Meta(max_length=MAX_NEAR)] | None
)


_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class _Detail(msgspec.Struct, frozen=True):
    id: Annotated[int, msgspec.Meta(ge=0, lt=bounds.MAX_CPUS)]
    core: _Id
    socket: _Id
    node: Annotated[int, msgspec.Meta(ge=0, le=bounds.MAX_NODE_ID)]


class _CpuTopology(msgspec.Struct, frozen=True):
    detail: Annotated[tuple[_Detail, ...], msgspec.Meta(max_length=bounds.MAX_CPUS)] = ()


_cpu_topology: Final = msgspec.json.Decoder(_CpuTopology | None)


_allocs: Final = msgspec.json.Decoder(
    Annotated[tuple[_ReadAlloc, ...], msgspec.Meta(max_length=bounds.MAX_PODS)] | None,
    strict=False,
)


def reported_cpus(topology: NodeTopology) -> tuple[Cpu, ...]:
    """The CPUs in the annotation cpu-topology, empty if it is absent. Koordlet and the kernel
    number the cores of each socket separately, so a core is identified by socket and number; its id
    here is its lowest CPU. L3 caches are read from Topolet's zones. Raises AnnotationError."""
    lists = tuple(zone.attributes.get(L3_CPUS, "") for zone in topology.zones)
    return _cpus(topology.annotations.get(CPU_TOPOLOGY, ""), lists)


def cpu_manager(annotations: Mapping[str, str]) -> CpuManager:
    """The annotation cpu-manager-policy; `policy` is "" if it is absent. Raises AnnotationError."""
    return (
        decoded(annotations, CPU_MANAGER_POLICY, _cpu_manager_decoder, bounds.OBJECT_VALUE_BYTES)
        or CpuManager()
    )


def reported_settings(annotations: Mapping[str, str]) -> ReportedSettings:
    """The annotation agent-settings, the defaults if it is absent, as without Topolet's agent.
    Raises AnnotationError."""
    return (
        decoded(annotations, AGENT_SETTINGS, _settings, bounds.OBJECT_VALUE_BYTES)
        or ReportedSettings()
    )


def near_requests(annotations: Mapping[str, str]) -> dict[CpuSet, int]:
    """The annotation near-devices: CPU requests in milli-CPU by NUMA nodes. Raises
    AnnotationError."""
    entries = decoded(annotations, NEAR_DEVICES, _near, bounds.OBJECT_LIST_BYTES) or ()
    requests: dict[CpuSet, int] = {}
    for entry in entries:
        nodes = cpu_list(NEAR_DEVICES, "numaNodes", entry.numa_nodes)
        requests[nodes] = requests.get(nodes, 0) + max(0, entry.cpu_milli)
    return requests


def kubelet_allocated(annotations: Mapping[str, str]) -> dict[str, CpuSet]:
    """By pod uid, the CPUs that the kubelet assigned to the pod's containers. Raises
    AnnotationError."""
    found: dict[str, CpuSet] = {}
    for each in decoded(annotations, POD_CPU_ALLOCS, _allocs, bounds.OBJECT_LIST_BYTES) or ():
        if each.managed_by_kubelet:
            found[each.uid] = found.get(each.uid, EMPTY) | each.cpus()
    return found


def only_kubelet_allocated(text: str) -> str:
    """The annotation pod-cpu-allocs without the entries that `kubelet_allocated` does not read. A
    text that can't be read is not changed."""
    annotations = {POD_CPU_ALLOCS: text}
    try:
        entries = decoded(annotations, POD_CPU_ALLOCS, _allocs, bounds.OBJECT_LIST_BYTES) or ()
    except AnnotationError:
        return text
    return _text(tuple(each for each in entries if each.managed_by_kubelet))


def _cpu_manager_fields(configured: NodeConfiguration) -> Object:
    options, reserved = configured.kubelet_options, configured.kubelet_reserved
    return {
        "policy": configured.kubelet_policy,
        **({"options": dict(sorted(options.items()))} if options else {}),
        **({"reservedCPUs": str(reserved)} if reserved else {}),
    }


def _cpu(cpu: Cpu) -> dict[str, int]:
    return {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


@lru_cache(maxsize=64)
def _cpus(text: str, caches_of_zones: tuple[str, ...]) -> tuple[Cpu, ...]:
    """The CPUs are cached: nodes of one model report the same value, and it is read again for every
    pod."""
    detail = decoded({CPU_TOPOLOGY: text}, CPU_TOPOLOGY, _cpu_topology, bounds.OBJECT_LIST_BYTES)
    if detail is None:
        return ()
    lowest: dict[tuple[int, int], int] = {}
    for cpu in detail.detail:
        core = cpu.socket, cpu.core
        lowest[core] = min(lowest.get(core, cpu.id), cpu.id)
    if len({cpu.id for cpu in detail.detail}) < len(detail.detail):
        raise AnnotationError(CPU_TOPOLOGY, "detail: a CPU is named twice")
    caches = _caches(caches_of_zones)
    threads = Counter((cpu.socket, cpu.core) for cpu in detail.detail)
    for number, most, what in (
        (len({cpu.node for cpu in detail.detail}), bounds.MAX_CPU_NODES, "NUMA nodes"),
        (len({cpu.socket for cpu in detail.detail}), bounds.MAX_SOCKETS, "sockets"),
        (len(set(caches.values())), bounds.MAX_CACHES, "L3 caches"),
        (max(threads.values(), default=0), bounds.MAX_THREADS, "threads of one core"),
    ):
        if number > most:
            raise AnnotationError(CPU_TOPOLOGY, f"detail: {number} {what} are more than {most}")
    return tuple(
        Cpu(
            id=cpu.id,
            core=lowest[cpu.socket, cpu.core],
            l3=caches.get(cpu.id),
            die=None,
            socket=cpu.socket,
            node=cpu.node,
        )
        for cpu in sorted(detail.detail, key=lambda cpu: cpu.id)
    )


def _caches(lists: Iterable[str]) -> dict[int, int]:
    """By CPU, the lowest CPU with the same L3. A list that can't be read is ignored: L3 caches only
    decide between CPUs that are otherwise equal."""
    lowest: dict[int, int] = {}
    for text in ";".join(lists).split(";"):
        try:
            shared_by = CpuSet.parse(text)
        except CpuSetError:
            continue
        for cpu in shared_by:
            lowest[cpu] = (shared_by.mask & -shared_by.mask).bit_length() - 1
    return lowest
