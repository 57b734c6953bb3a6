"""What is in force for one pod: the strategies of its node for its class, and its annotations that
override them (Koordinator: apis/extension; apis/slo/v1alpha1/pod.go)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from agent.model.bounds import MAX_CONTAINERS
from agent.model.node_slo import (
    RECOMMENDED,
    CpuBurst,
    CpuQos,
    IoBlock,
    MemoryQos,
    NetworkQos,
    NodeSlo,
    Percent,
    QosClass,
    ResctrlQos,
    overlaid,
)
from agent.model.pod.annotations import (
    BLKIO_QOS,
    CPU_BURST,
    CPU_QOS,
    MEMORY_QOS,
    NETWORK_QOS,
    OOM_SCORES,
    OOM_SCORES_SPEC,
    RESCTRL,
    STRATEGY_BYTES,
    AnnotationError,
    decoded,
)
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.qos import QoS
from agent.usage.node_metric import qos_of_pod

OomScore = Annotated[int, Meta(ge=-1_000, le=1_000)]
"""The range of the kernel (proc(5), oom_score_adj)."""
_OomScores = Annotated[dict[str, OomScore], Meta(max_length=MAX_CONTAINERS)]
_CacheId = Annotated[int, Meta(ge=0, lt=1 << 31)]
_MAX_CACHES: Final = 64
_MAX_BLOCKS: Final = 16


class CacheSchemata(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the L3 cache."""

    range: tuple[Percent, Percent] | None = None
    """The begin and the end, in percent."""
    cache_id: _CacheId = msgspec.field(default=0, name="cacheID")


class BandwidthSchemata(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the memory bandwidth."""

    percent: Percent | None = None
    cache_id: _CacheId = msgspec.field(default=0, name="cacheID")


class CacheParts(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of all L3 caches, and those of single ones, which override them."""

    schemata: CacheSchemata | None = None
    schemata_per_cache: Annotated[tuple[CacheSchemata, ...], Meta(max_length=_MAX_CACHES)] = ()


class BandwidthParts(msgspec.Struct, frozen=True, rename="camel"):
    """The same of the memory bandwidth."""

    schemata: BandwidthSchemata | None = None
    schemata_per_cache: Annotated[tuple[BandwidthSchemata, ...], Meta(max_length=_MAX_CACHES)] = ()


class PodResctrl(msgspec.Struct, frozen=True):
    """A group of resctrl for the pod alone."""

    llc: CacheParts | None = None
    mb: BandwidthParts | None = None


class PodStrategies(msgspec.Struct, frozen=True):
    """The strategies of one pod."""

    cpu_burst: CpuBurst = CpuBurst()
    cpu_qos: CpuQos = CpuQos()
    memory_qos: MemoryQos = MemoryQos()
    network_qos: NetworkQos = NetworkQos()
    resctrl_qos: ResctrlQos = ResctrlQos()
    """Of its class."""
    resctrl: PodResctrl | None = None
    """Of the pod, in place of that of its class; None without one."""
    blocks: tuple[IoBlock, ...] = ()
    """The limits of disks for the pod; those of its class are for all its pods together."""
    oom_score_adj: OomScore | None = None
    """Of the processes of all containers; None for the kubelet's."""
    oom_scores: Mapping[str, OomScore] = {}
    """Of single containers, in place of that of all."""
    own: tuple[str, ...] = ()
    """The annotations of the pod that are in force."""


CLASS_FIELDS: Final[Mapping[QoS, str]] = {
    QoS.LSE: "lsr_class",
    QoS.LSR: "lsr_class",
    QoS.LS: "ls_class",
    QoS.BE: "be_class",
    QoS.SYSTEM: "system_class",
}
"""The classes of NodeSLO, as fields of `ResourceQos`."""


def of_class(slo: NodeSlo, qos: QoS) -> PodStrategies:
    """The strategies of a pod of this class without annotations."""
    strategy: QosClass = getattr(slo.resource_qos_strategy, CLASS_FIELDS[qos])
    return PodStrategies(
        slo.cpu_burst_strategy,
        strategy.cpu_qos,
        strategy.memory_qos,
        strategy.network_qos,
        strategy.resctrl_qos,
    )


def class_of(pod: ApiPod) -> QoS:
    """The class whose strategies are in force for the pod. BE counts only in BestEffort pods, as in
    decisions of the node: those of other classes are beside services in the kubelet's cgroups."""
    qos = qos_of_pod(pod)
    kube_class = pod.kube_class or kube_class_of(pod)
    return QoS.LS if qos is QoS.BE and kube_class != "besteffort" else qos


def of_pod(slo: NodeSlo, pod: ApiPod) -> tuple[PodStrategies, tuple[str, ...]]:
    """The strategies of the pod, and a sentence about each annotation with a bad value: there the
    node's strategy is in force."""
    qos = class_of(pod)
    of_node = of_class(slo, qos)
    overridden: dict[str, Any] = {}
    in_force, troubles = [], []
    for key, (field, override) in _OVERRIDES.items():
        if not pod.annotations.get(key) or (key == CPU_QOS and qos is not QoS.LS):
            continue
        try:
            overridden[field] = override(getattr(of_node, field), qos, pod.annotations)
            in_force.append(key)
        except AnnotationError as error:
            troubles.append(f"pod {pod.title}: {error}")
    return msgspec.structs.replace(of_node, **overridden, own=tuple(in_force)), tuple(troubles)


_Block = TypeVar("_Block", bound=msgspec.Struct)
_Annotations = Mapping[str, str]
_object: Final = msgspec.json.Decoder(dict[str, Any] | None)


def _over(base: _Block, annotations: _Annotations, key: str, *fields: str) -> _Block:
    """The block with these fields of the annotation. Raises AnnotationError, which names the
    field."""
    written = decoded(annotations, key, _object, STRATEGY_BYTES[key]) or {}
    chosen = {name: written[name] for name in fields if name in written}
    try:
        return msgspec.convert(overlaid(msgspec.to_builtins(base), chosen), type(base))
    except msgspec.ValidationError as error:
        raise AnnotationError(key, str(error)) from None


def _cpu_burst(of_node: CpuBurst, _: QoS, annotations: _Annotations) -> CpuBurst:
    fields = (
        "policy",
        "cpuBurstPercent",
        "cfsQuotaBurstPercent",
        "cfsQuotaBurstPeriodSeconds",
    )
    return _over(of_node, annotations, CPU_BURST, *fields)


def _cpu_qos(_of_node: CpuQos, _: QoS, annotations: _Annotations) -> CpuQos:
    cpu_qos = _over(CpuQos(), annotations, CPU_QOS, *CpuQos.__struct_encode_fields__)
    return cpu_qos if cpu_qos.enable else CpuQos()


class _MemoryPolicy(msgspec.Struct, frozen=True):
    policy: Literal["", "default", "none", "auto"] | None = None


_memory_policy: Final = msgspec.json.Decoder(_MemoryPolicy | None)


def _memory_qos(of_node: MemoryQos, qos: QoS, annotations: _Annotations) -> MemoryQos:
    """The policy `auto` lays the pod's own values over those recommended for its class, and `none`
    makes it neutral, whatever else is written. Without a policy the pod's own values are laid over
    the node's, also where the class is off."""
    written = decoded(annotations, MEMORY_QOS, _memory_policy, STRATEGY_BYTES[MEMORY_QOS])
    policy = written.policy if written is not None else None
    if policy == "none":
        return MemoryQos()
    base: MemoryQos = of_node
    if policy == "auto":
        base = getattr(RECOMMENDED, CLASS_FIELDS[qos]).memory_qos
    fields = (name for name in MemoryQos.__struct_encode_fields__ if name != "enable")
    memory_qos = _over(base, annotations, MEMORY_QOS, *fields)
    return msgspec.structs.replace(memory_qos, enable=True)


def _network_qos(of_node: NetworkQos, _: QoS, annotations: _Annotations) -> NetworkQos:
    return _over(of_node, annotations, NETWORK_QOS, "ingressLimit", "egressLimit")


class _Blkio(msgspec.Struct, frozen=True):
    blocks: Annotated[tuple[IoBlock, ...], Meta(max_length=_MAX_BLOCKS)] | None = None


_blkio: Final = msgspec.json.Decoder(_Blkio | None)


def _blocks(_of_node: Any, _: QoS, annotations: _Annotations) -> tuple[IoBlock, ...]:
    written = decoded(annotations, BLKIO_QOS, _blkio, STRATEGY_BYTES[BLKIO_QOS])
    return () if written is None else written.blocks or ()


_resctrl: Final = msgspec.json.Decoder(PodResctrl | None)


def _pod_resctrl(_of_node: Any, _: QoS, annotations: _Annotations) -> PodResctrl | None:
    return decoded(annotations, RESCTRL, _resctrl, STRATEGY_BYTES[RESCTRL])


_oom_score: Final = msgspec.json.Decoder(OomScore | None)
_oom_scores: Final = msgspec.json.Decoder(_OomScores | None)


def _of_all(_of_node: Any, _: QoS, annotations: _Annotations) -> int | None:
    return decoded(annotations, OOM_SCORES, _oom_score, STRATEGY_BYTES[OOM_SCORES])


def _of_containers(_of_node: Any, _: QoS, annotations: _Annotations) -> Mapping[str, int]:
    return decoded(annotations, OOM_SCORES_SPEC, _oom_scores, STRATEGY_BYTES[OOM_SCORES_SPEC]) or {}


_OVERRIDES: Final[Mapping[str, tuple[str, Callable[[Any, QoS, _Annotations], Any]]]] = {
    CPU_BURST: ("cpu_burst", _cpu_burst),
    CPU_QOS: ("cpu_qos", _cpu_qos),
    MEMORY_QOS: ("memory_qos", _memory_qos),
    NETWORK_QOS: ("network_qos", _network_qos),
    BLKIO_QOS: ("blocks", _blocks),
    RESCTRL: ("resctrl", _pod_resctrl),
    OOM_SCORES: ("oom_score_adj", _of_all),
    OOM_SCORES_SPEC: ("oom_scores", _of_containers),
}
"""By annotation, the field that it overrides, and how: the node's value, the class and the
annotations of the pod give the value in force."""
OVERRIDDEN: Final[Mapping[str, str]] = {key: field for key, (field, _) in _OVERRIDES.items()}
