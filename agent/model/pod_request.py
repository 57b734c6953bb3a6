"""All requests of one pod to a node, before anything is allocated.

The containers that get exclusive CPUs from a kubelet with the static CPU manager policy (kubelet:
pkg/kubelet/cm/cpumanager, policy_static.go, guaranteedCPUs and podGuaranteedCPUs) are those of
Guaranteed pods that request whole CPUs; all others share, and so do the containers of a pod with
resources as a whole (`spec.resources`): the kubelet's feature gate PodLevelResourceManagers, which
is off unless it is set, is not followed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from agent.model.cpu.policies import BindPolicy, DeviceLocality, NumaPolicy
from agent.model.devices.device_allocation import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    DevicePreferences,
)
from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY_RATIO, DeviceType
from agent.model.devices.device_request import (
    CARD_RESOURCES,
    FULL,
    DeviceRequest,
    RequestError,
    TypeRequest,
    device_request,
    names,
    type_requests,
)
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    GPU_ISOLATION_PROVIDER,
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    AnnotationError,
    device_locality,
    shared_containers,
)
from agent.model.pod.apiobjects import ApiPod, unequal_cpu
from agent.model.pod.numa_request import (
    NO_NUMA_REQUEST,
    NumaRequest,
    foreign,
    kube_class_of,
    numa_request_of,
)
from agent.model.pod.qos import CPU_OWNERS, PRIORITY_CLASS_LABEL, QOS_LABEL, KubeClass, QoS, qos_of
from agent.model.pod.resource_request import (
    FollowedPolicies,
    ResourceRequest,
    pod_cpu_limit_milli,
    pod_requests,
    resource_request,
)
from agent.model.quantities import cpu


class ContainerCpu(msgspec.Struct, frozen=True):
    """A container's CPU request."""

    name: str
    cpu_milli: int
    sidecar: bool = False
    """It is an init container that keeps running."""


class PodCpu(msgspec.Struct, frozen=True):
    """The fields of a pod that matter for exclusive CPUs."""

    uid: str
    kube_class: KubeClass
    containers: tuple[ContainerCpu, ...]
    init: tuple[ContainerCpu, ...] = ()
    """In start order."""
    pod_level: bool = False
    """The pod has resources as a whole."""


class SharedReason(enum.StrEnum):
    """Why a container runs on the shared CPUs."""

    NOT_GUARANTEED = "the pod is not Guaranteed"
    POD_LEVEL = "the pod has resources as a whole (spec.resources)"
    NO_REQUEST = "the container requests no CPU"
    FRACTION = "the container does not request a whole number of CPUs"


def exclusive_cpus(pod: PodCpu, container: ContainerCpu) -> int | SharedReason:
    """The number of exclusive CPUs of a container, at least 1, or why it has none."""
    if pod.kube_class != "guaranteed":
        return SharedReason.NOT_GUARANTEED
    if pod.pod_level:
        return SharedReason.POD_LEVEL
    if container.cpu_milli <= 0:
        return SharedReason.NO_REQUEST
    cpus, fraction = divmod(container.cpu_milli, 1000)
    return SharedReason.FRACTION if fraction else cpus


def cpus_of(pod: PodCpu, container: ContainerCpu) -> int:
    """The number of exclusive CPUs of a container, 0 if it has none."""
    requested = exclusive_cpus(pod, container)
    return requested if isinstance(requested, int) else 0


def shared_reason(pod: ApiPod) -> str:
    """Why a static kubelet assigns no exclusive CPUs to one of the pod's containers that keep
    running, "" if it assigns some to each. A container that the pod's annotation leaves on the
    shared CPUs needs none."""
    kube_class = pod.kube_class or kube_class_of(pod)
    sharing = shared_containers(pod.annotations)
    sidecars = [each for each in pod.init_containers if each.sidecar]
    for each in (*pod.containers, *sidecars):
        cpu_milli = each.requests.get("cpu", each.limits.get("cpu", 0))
        container = ContainerCpu(each.name, cpu_milli)
        of_pod = PodCpu(pod.uid, kube_class, (container,), pod_level=pod.pod_level)
        why = exclusive_cpus(of_pod, container)
        if why in (SharedReason.NOT_GUARANTEED, SharedReason.POD_LEVEL):
            return str(why)
        if isinstance(why, SharedReason) and each.name not in sharing:
            return f"container {each.name} requests {cpu(cpu_milli)} CPU"
    return ""


class PodRequestError(ValueError):
    """A request that can't be read; the message names the pod and the field."""


class Needs(enum.Flag):
    """What a pod needs from Topolet, whatever the labels of a node say."""

    NOTHING = 0
    """The pod requests neither CPUs nor NUMA nodes nor devices that Topolet allocates."""
    NUMA = enum.auto()
    """One of Koordinator's pods: CPUs and NUMA nodes by its rules, on nodes that report theirs."""
    CPUS = enum.auto()
    """The pod needs a node that reports its CPUs and NUMA nodes."""
    DEVICES = enum.auto()
    LISTED = enum.auto()
    """Devices whose type only the node's Device object has."""


class NodeRules(Protocol):
    """An offer reads this of a node."""

    @property
    def binds_all(self) -> bool:
        """Whether its labels concern every pod, not only Koordinator's own."""
        ...


class Reads(enum.Enum):
    """What an offer reads of a node."""

    ZONES = enum.auto()
    """Its report of NUMA nodes, as far as its kubelet aligns pods to them."""
    DEVICE_ZONES = enum.auto()
    """The whole report, with the devices of plugins."""
    CPUS = enum.auto()
    """Its CPUs and NUMA amounts, and the report as for ZONES."""
    CPUS_AND_DEVICE_ZONES = enum.auto()
    """Its CPUs and NUMA amounts, and the whole report."""
    DEVICES = enum.auto()
    """Its CPUs and NUMA amounts, the whole report, and the devices of its Device object."""


GPU_MILLI: Final = 1000
"""One GPU in thousandths, the unit of all amounts of GPUs in a `PodKind`."""


class PodKind(msgspec.Struct, frozen=True, order=True):
    """The requests of a pod that placements compare."""

    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_milli: int = 0
    """The thousandths of each GPU: `GPU_MILLI` for whole ones."""
    models: tuple[str, ...] = ()
    """The allowed GPU models, sorted; empty for any model."""

    @property
    def total_gpu_milli(self) -> int:
        """The requested thousandths of all GPUs."""
        return self.gpus * self.gpu_milli

    @property
    def gpu(self) -> float:
        """The requested GPUs in sum: 1.0 for two halves."""
        return self.total_gpu_milli / GPU_MILLI

    @property
    def shared(self) -> bool:
        return 0 < self.gpu_milli < GPU_MILLI


NO_KIND: Final = PodKind(0, 0)


class PodRequest(msgspec.Struct, frozen=True):
    """All requests of one pod."""

    resources: ResourceRequest
    """CPU, memory and all other resources except devices that NUMA nodes may count."""
    requests: dict[str, int] = {}
    """The total of the pod, with devices."""
    devices: DeviceRequest | None = None
    needs: Needs = Needs.NOTHING
    priority: int = 0
    preempts: bool = True
    isolation: str = ""
    """The library that enforces parts of a GPU, "" for none."""
    spec_text: str = ""
    """The pod's resource-spec."""
    stale: tuple[str, ...] = ()
    """The annotations that Topolet writes and that the pod already has."""
    equivalence_key: bytes = b""
    """Equal for two pods that get the same answer on every node."""
    taken: dict[str, int] = {}
    """The amounts that the kubelet takes from NUMA nodes for the pod, without CPUs that it owns."""
    shared_reason: str = ""
    """Why a static kubelet would not assign CPUs to every container of a pod that requests CPUs of
    its own."""
    unequal: str = ""
    """The container and fields of such a pod whose CPU limit differs from the request."""
    numa_request: NumaRequest = NO_NUMA_REQUEST
    """The requests to NUMA nodes, as the kubelet counts them."""
    kind: PodKind = NO_KIND
    """What placements read of the pod."""
    device_locality: DeviceLocality | None = None
    """The policy of the pod or of its namespace; None for the one of the node's agent."""

    @property
    def uid(self) -> str:
        return self.resources.uid

    @property
    def title(self) -> str:
        return self.resources.title

    @property
    def placed_by_zones(self) -> bool:
        """Whether the pod needs nothing, or only devices that a Device object lists."""
        return not self.needs & ~Needs.LISTED

    def reads(self, node: NodeRules) -> Reads:
        """What an offer to the pod reads at most of a node with these properties."""
        if self.devices is not None:
            return Reads.DEVICES
        of_plugins = self.numa_request.devices
        if self.needs or node.binds_all:
            return Reads.CPUS_AND_DEVICE_ZONES if of_plugins else Reads.CPUS
        return Reads.DEVICE_ZONES if of_plugins else Reads.ZONES

    def reads_zones(self, node: NodeRules) -> bool:
        """Whether an offer reads of such a node no more than its report of NUMA nodes."""
        return self.reads(node) in (Reads.ZONES, Reads.DEVICE_ZONES)

    @property
    def cards(self) -> frozenset[str]:
        """The resource of whole cards, if the pod requests such cards, without preferences, and no
        other devices of known types."""
        devices = self.devices
        if devices is None or devices.requests.keys() != _ONLY_CARDS or self.isolation:
            return frozenset()
        if devices.preferences != _NO_PREFERENCES:
            return frozenset()
        return CARD_RESOURCES & self.requests.keys()

    def without_devices(self, names: Collection[str]) -> PodRequest:
        """The request, in which these resources of `devices.listed` and `cards` are plain extended
        resources."""
        if self.devices is None:
            return self
        plain = {name: self.requests[name] for name in names}
        listed = {name: amount for name, amount in self.devices.listed.items() if name not in plain}
        devices = msgspec.structs.replace(self.devices, listed=listed)
        needs = self.needs if listed else self.needs & ~Needs.LISTED
        if plain.keys() & self.cards:
            devices, needs = msgspec.structs.replace(devices, requests={}), needs & ~Needs.DEVICES
        has_devices = bool(listed or devices.requests)
        resources = msgspec.structs.replace(
            self.resources, requests={**self.resources.requests, **plain}
        )
        if not needs & (Needs.NUMA | Needs.CPUS) and not has_devices:
            resources = msgspec.structs.replace(resources, kubelet=FollowedPolicies.NONE)
        return msgspec.structs.replace(
            self, resources=resources, devices=devices if has_devices else None, needs=needs
        )


def request_of(
    pod: ApiPod,
    device_resources: Container[str] = (),
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS,
    of_namespace: DeviceLocality | None = None,
) -> PodRequest:
    """Reads what a pod requests.

    `device_resources` are the resources that Device objects of the cluster list.
    `default_bind` is the configured bind policy, which Koordinator's pods without one get.
    `of_namespace` is the device locality in the label of the pod's namespace.
    Raises PodRequestError."""
    try:
        return _pod_request(pod, device_resources, default_bind, of_namespace)
    except (AnnotationError, RequestError) as error:
        raise PodRequestError(f"pod {pod.title}: {error}") from None


_ONLY_CARDS: Final = frozenset((DeviceType.GPU.value,))
_NO_PREFERENCES: Final = DevicePreferences()
_SPECS: Final = (RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC)
_DEVICE_NOTES: Final = (DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE, GPU_PARTITION_SPEC)
_WRITTEN: Final = (RESOURCE_STATUS, DEVICE_ALLOCATED)
_CLASSES: Final = frozenset(QoS)


def _pod_request(
    pod: ApiPod,
    device_resources: Container[str],
    default_bind: BindPolicy,
    of_namespace: DeviceLocality | None,
) -> PodRequest:
    notes, labels = pod.annotations, pod.labels
    requests = pod_requests(pod)
    devices = device_request(requests, notes, device_resources)
    of_devices = names(requests, device_resources)
    kube_class = pod.kube_class or kube_class_of(pod)
    qos, numa_request, unequal = qos_of(labels, kube_class), numa_request_of(pod), unequal_cpu(pod)
    resources = resource_request(
        pod.uid,
        pod.title,
        qos,
        notes,
        {name: amount for name, amount in requests.items() if name not in of_devices},
        priority=pod.priority,
        priority_class=labels.get(PRIORITY_CLASS_LABEL, ""),
        cpu_limit_milli=pod_cpu_limit_milli(pod),
        guaranteed=kube_class == "guaranteed" or (qos in CPU_OWNERS and not unequal),
    )
    if resources.owner and resources.bind_policy is BindPolicy.CONSTRAINED_BURST:
        reason = f"ConstrainedBurst is for pods that share CPUs, and {qos} pods own theirs"
        raise AnnotationError(RESOURCE_SPEC, reason)
    of_koordinator = labels.get(QOS_LABEL) in _CLASSES or any(notes.get(key) for key in _SPECS)
    if of_koordinator:
        resources = msgspec.structs.replace(resources, default_bind=default_bind)
    needs = _needs(resources, devices, of_koordinator=of_koordinator)
    if not needs & (Needs.NUMA | Needs.CPUS):
        followed = FollowedPolicies.NUMA if devices else FollowedPolicies.NONE
        resources = msgspec.structs.replace(resources, kubelet=followed)
    taken = numa_request.whole.taken
    if Needs.CPUS in needs:
        taken = {name: amount for name, amount in requests.items() if foreign(name)}
    without_cpus, unequal = (shared_reason(pod), unequal) if _binds(resources) else ("", "")
    isolation = labels.get(GPU_ISOLATION_PROVIDER, "") if devices else ""
    locality = device_locality(notes, of_namespace) if numa_request.devices else None
    return PodRequest(
        resources,
        requests,
        devices,
        needs=needs,
        priority=pod.priority or 0,
        preempts=pod.preempts,
        isolation=isolation,
        spec_text=notes.get(RESOURCE_SPEC, ""),
        stale=tuple(key for key in _WRITTEN if notes.get(key)),
        equivalence_key=_equivalence_key(
            resources,
            of_koordinator,
            requests,
            isolation,
            [notes.get(key, "") for key in _DEVICE_NOTES] if devices else [],
            sorted(devices.listed) if devices else [],
            _read_of_numa_request(numa_request),
            without_cpus,
            unequal,
            locality,
        ),
        taken=taken,
        shared_reason=without_cpus,
        unequal=unequal,
        numa_request=numa_request,
        kind=_kind(requests, devices.requests if devices else {}, pod.gpu_models),
        device_locality=locality,
    )


def _needs(
    resources: ResourceRequest, devices: DeviceRequest | None, *, of_koordinator: bool
) -> Needs:
    needs = Needs.NOTHING
    if devices and devices.requests:
        needs |= Needs.DEVICES
    if devices and devices.listed:
        needs |= Needs.LISTED
    if of_koordinator:
        needs |= Needs.NUMA
    if _needs_cpus(resources):
        needs |= Needs.CPUS
    return needs


def as_one(pod_requests: Sequence[PodRequest], cards: TypeRequest) -> PodRequest:
    """One request for the cards of all pods, without other resources."""
    size, first = len(pod_requests), pod_requests[0]
    total = {name: amount * size for name, amount in cards.total.items()}
    by_type = {DeviceType.GPU.value: TypeRequest(total, cards.count * size, cards.per)}
    hints = first.devices.preferences.hints if first.devices else {}
    return msgspec.structs.replace(
        first,
        resources=msgspec.structs.replace(first.resources, owner=False, requests={}),
        devices=DeviceRequest(by_type, DevicePreferences(hints=hints)),
    )


def kind_of(pod: ApiPod) -> PodKind:
    """What placements read of the pod; a request for devices that can't be read does not count."""
    return kind_of_requests(pod_requests(pod), pod.gpu_models)


def kind_of_requests(requests: Mapping[str, int], models: tuple[str, ...] = ()) -> PodKind:
    """The same from the sum of the pod's requests, and the GPU models that it allows."""
    try:
        devices = type_requests(requests)
    except RequestError:
        devices = {}
    return _kind(requests, devices, models)


def _kind(
    requests: Mapping[str, int], devices: Mapping[str, TypeRequest], models: tuple[str, ...]
) -> PodKind:
    """A request for GPU memory by the byte counts as a whole card."""
    cpu, memory = requests.get("cpu", 0), requests.get("memory", 0)
    cards = devices.get(DeviceType.GPU)
    if cards is None:
        return PodKind(cpu, memory)
    amounts = [cards.per[name] for name in (GPU_CORE, GPU_MEMORY_RATIO) if name in cards.per]
    percent = min(FULL, max(amounts, default=FULL))
    return PodKind(cpu, memory, cards.count, percent * (GPU_MILLI // FULL), models)


def _binds(request: ResourceRequest) -> bool:
    """Whether the pod requests CPUs of its own."""
    return request.owner and "cpu" in request.requests


def _needs_cpus(request: ResourceRequest) -> bool:
    own = request.numa.policy not in (None, NumaPolicy.NONE)
    return bool(_binds(request) or own or request.burst_milli)


def _read_of_numa_request(numa_request: NumaRequest) -> object:
    """The amounts that NUMA nodes must have, and the names that appear in reasons."""
    if numa_request.indifferent:
        return None
    return numa_request.aligned, [
        (each.kind, each.name, each.requests) for each in numa_request.parts
    ]


def _equivalence_key(request: ResourceRequest, *others: object) -> bytes:
    """As bytes, because their hash is cached."""
    of_class = (request.qos, request.owner, request.guaranteed)
    key = (of_class, request.burst_milli, request.spec, request.numa, *others)
    return msgspec.json.encode(key, order="sorted")
