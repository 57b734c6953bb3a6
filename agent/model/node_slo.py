"""NodeSLO (slo.koordinator.sh/v1alpha1): the strategies of a node, as its spec and koordlet's
defaults make them (Koordinator: apis/slo/v1alpha1/nodeslo_types.go; pkg/util/sloconfig;
pkg/koordlet/statesinformer/impl, states_nodeslo.go). Extensions are their owners' and are not read,
as are limits of the page cache, which only Anolis' kernel has."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from agent.model.objects import ObjectError, converted
from agent.model.pod.qos import PriorityClass, QoS
from agent.model.quantities import PATTERN

KIND: Final = "NodeSLO"

_MAX: Final = (1 << 63) - 1
Percent = Annotated[int, Meta(ge=0, le=100)]
Switch = Annotated[int, Meta(ge=0, le=1)]
Amount = Annotated[int, Meta(ge=0, le=_MAX)]
Positive = Annotated[int, Meta(ge=1, le=_MAX)]
QuantityText = Annotated[str, Meta(pattern=rf"^(?:{PATTERN})\Z", max_length=64)]
Bandwidth = Percent | QuantityText
"""A part of the node's bandwidth, or bytes a second."""
Name = Annotated[str, Meta(max_length=253)]
_BELOW: Final = r"^(?!(?s:.*)\.\.)"
"""A path that leads to no folder above."""
Path = Annotated[str, Meta(max_length=4095, pattern=_BELOW)]

_UPPER_CASE: Final = ("be", "bps", "iops", "qos")


def _json_name(field: str) -> str:
    first, *words = field.split("_")
    return first + "".join(
        word.upper() if word in _UPPER_CASE else word.capitalize() for word in words
    )


class Fields(msgspec.Struct, frozen=True, rename=_json_name):
    """The defaults of all fields are what koordlet uses where nothing is enabled."""


class ResourceThreshold(Fields, frozen=True):
    """None: the feature that needs the value is idle, or has a default of its own."""

    enable: bool = False
    cpu_suppress_threshold_percent: Percent = 65
    cpu_suppress_min_percent: Percent | None = None
    cpu_suppress_policy: Literal["cpuset", "cfsQuota"] = "cpuset"
    memory_evict_threshold_percent: Percent = 70
    memory_evict_lower_percent: Percent | None = None
    memory_allocatable_evict_threshold_percent: Positive | None = None
    memory_allocatable_evict_lower_percent: Positive | None = None
    cpu_evict_be_usage_threshold_percent: Percent | None = None
    cpu_evict_be_satisfaction_upper_percent: Percent | None = None
    cpu_evict_be_satisfaction_lower_percent: Percent | None = None
    cpu_evict_time_window_seconds: Positive | None = None
    cpu_evict_policy: Literal["evictByRealLimit", "evictByAllocatable"] = "evictByRealLimit"
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: Positive | None = None
    cpu_allocatable_evict_lower_percent: Positive | None = None
    evict_enabled_priority_threshold: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    allocatable_evict_priority_threshold: Annotated[int, Meta(ge=0, le=7999)] | None = None


class CpuQos(Fields, frozen=True):
    enable: bool = False
    group_identity: Annotated[int, Meta(ge=-1, le=2)] = 0
    sched_idle: Switch = 0
    core_expeller: bool = False


class ResctrlQos(Fields, frozen=True):
    enable: bool = False
    cat_range_start_percent: Percent = 0
    cat_range_end_percent: Percent = 100
    mba_percent: Percent = 100


class MemoryQos(Fields, frozen=True):
    enable: bool = False
    min_limit_percent: Percent = 0
    low_limit_percent: Percent = 0
    throttling_percent: Percent = 0
    wmark_ratio: Percent = 0
    wmark_scale_permill: Annotated[int, Meta(ge=1, le=1000)] = 50
    wmark_min_adj: Annotated[int, Meta(ge=-25, le=50)] = 0
    priority_enable: Switch = 0
    priority: Annotated[int, Meta(ge=0, le=12)] = 0
    oom_kill_group: Switch = 0


class IoConfig(Fields, frozen=True):
    """The kernel's setting stays where a field is None. An amount of 0 a second sets no limit."""

    read_iops: Amount | None = None
    write_iops: Amount | None = None
    read_bps: Amount | None = None
    write_bps: Amount | None = None
    io_weight_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    read_latency: Amount | None = None
    """In microseconds, as `write_latency`."""
    write_latency: Amount | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: Positive | None = None
    model_write_bps: Positive | None = None
    model_read_seq_iops: Positive | None = None
    model_write_seq_iops: Positive | None = None
    model_read_rand_iops: Positive | None = None
    model_write_rand_iops: Positive | None = None


class IoBlock(Fields, frozen=True):
    name: Name = ""
    type: Literal["device", "volumegroup", "podvolume"] | None = None
    io_cfg: IoConfig = IoConfig()


class BlkioQos(Fields, frozen=True):
    enable: bool = False
    blocks: Annotated[tuple[IoBlock, ...], Meta(max_length=128)] = ()


class NetworkQos(Fields, frozen=True):
    enable: bool = False
    ingress_request: Bandwidth = 0
    ingress_limit: Bandwidth = 0
    egress_request: Bandwidth = 0
    egress_limit: Bandwidth = 0


class QosClass(Fields, frozen=True):
    cpu_qos: CpuQos = CpuQos()
    resctrl_qos: ResctrlQos = ResctrlQos()
    memory_qos: MemoryQos = MemoryQos()
    blkio_qos: BlkioQos = BlkioQos()
    network_qos: NetworkQos = NetworkQos()


class QosPolicies(Fields, frozen=True):
    cpu_policy: Literal["groupIdentity", "coreSched"] = "groupIdentity"
    net_qos_policy: Literal["tc", "terway-qos"] = "tc"


class CgroupRoot(Fields, frozen=True):
    blkio_qos: BlkioQos = BlkioQos()


class ResourceQos(Fields, frozen=True):
    policies: QosPolicies = QosPolicies()
    lsr_class: QosClass = QosClass()
    ls_class: QosClass = QosClass()
    be_class: QosClass = QosClass()
    system_class: QosClass = QosClass()
    cgroup_root: CgroupRoot = CgroupRoot()


class CpuBurst(Fields, frozen=True):
    policy: Literal["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"] = "none"
    cpu_burst_percent: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    cfs_quota_burst_percent: Annotated[int, Meta(ge=100, le=_MAX)] = 300
    cfs_quota_burst_period_seconds: Annotated[int, Meta(ge=-1, le=_MAX)] = -1
    """-1: no limit."""
    share_pool_threshold_percent: Percent = 50


class System(Fields, frozen=True):
    """None: the kernel's setting stays."""

    min_free_kbytes_factor: Positive | None = None
    watermark_scale_factor: Annotated[int, Meta(ge=1, le=400)] | None = None
    memcg_reap_back_ground: Switch | None = None
    sched_group_identity_enabled: Switch | None = None
    sched_idle_saver_wmark: Amount | None = None
    sched_features: Annotated[dict[Name, bool], Meta(max_length=128)] | None = None
    page_cache_limit_enabled: Switch | None = None
    total_network_bandwidth: Amount | QuantityText = "0"


class CgroupPath(Fields, frozen=True):
    base: Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"] | None = None
    parent_dir: Path = ""
    relative_path: Path = ""


class HostApplication(Fields, frozen=True):
    name: Annotated[str, Meta(max_length=253, pattern=_BELOW)] = ""
    priority: PriorityClass | None = None
    qos: QoS | None = None
    cgroup_path: CgroupPath | None = None


class NodeSlo(Fields, frozen=True):
    resource_used_threshold_with_be: ResourceThreshold = ResourceThreshold()
    resource_qos_strategy: ResourceQos = ResourceQos()
    cpu_burst_strategy: CpuBurst = CpuBurst()
    system_strategy: System = System()
    host_applications: Annotated[tuple[HostApplication, ...], Meta(max_length=128)] = ()


_LATENCY_SENSITIVE: Final = {
    "cpuQOS": {"groupIdentity": 2, "coreExpeller": True},
    "memoryQOS": {"wmarkRatio": 95, "wmarkScalePermill": 20, "wmarkMinAdj": -25},
}
_ENABLED: Final = {
    "lsrClass": _LATENCY_SENSITIVE,
    "lsClass": _LATENCY_SENSITIVE,
    "beClass": {
        "cpuQOS": {"groupIdentity": -1},
        "resctrlQOS": {"catRangeEndPercent": 30},
        "memoryQOS": {"wmarkRatio": 95, "wmarkScalePermill": 20, "wmarkMinAdj": 50},
    },
}
"""The defaults of the blocks that are enabled, where they are not those of the fields."""


def overlaid(base: Any, over: Any) -> Any:
    """What is null or absent changes nothing."""
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {name: overlaid(base.get(name), value) for name, value in over.items()}
    return base if over is None else over


_BASE: Final = overlaid(msgspec.to_builtins(NodeSlo()), {"resourceQOSStrategy": _ENABLED})
RECOMMENDED: Final = msgspec.convert(_BASE["resourceQOSStrategy"], ResourceQos)
"""What a class has where its blocks are enabled, and nothing else is written."""


class _Written(msgspec.Struct, frozen=True):
    metadata: Any = None
    spec: dict[str, Any] | None = None


class _Object(msgspec.Struct, frozen=True):
    spec: NodeSlo


def node_slo(body: object) -> tuple[NodeSlo, dict[str, ObjectError]]:
    """What the node uses of a NodeSLO object, and a trouble for each section with a bad value, by
    the section's name in JSON, which names the object and the field: that section has its defaults,
    the others are in force. A spec that can't be read as a whole is a trouble of all sections."""
    try:
        written = converted(body, KIND, _Written)
    except ObjectError as error:
        return NodeSlo(), {"spec": error}
    sections, troubles = {}, {}
    for field in msgspec.structs.fields(NodeSlo):
        name = field.encode_name
        section = overlaid(_BASE[name], (written.spec or {}).get(name))
        alone = {"metadata": written.metadata, "spec": {name: section}}
        try:
            sections[field.name] = getattr(converted(alone, KIND, _Object).spec, field.name)
        except ObjectError as error:
            troubles[name] = error
    slo = NodeSlo(**sections)
    switched = _switched(slo.resource_qos_strategy)
    return msgspec.structs.replace(slo, resource_qos_strategy=switched), troubles


def _switched(qos: ResourceQos) -> ResourceQos:
    """What is off in a class of pods is neutral: koordlet writes it too."""
    pod_classes = {name: _with_neutral(getattr(qos, name)) for name in _POD_CLASSES}
    return msgspec.structs.replace(qos, **pod_classes)


def _with_neutral(qos: QosClass) -> QosClass:
    blocks = {name: getattr(qos, name) for name in _SWITCHED_BLOCKS}
    off = {name: type(block)() for name, block in blocks.items() if not block.enable}
    return msgspec.structs.replace(qos, **off)


_POD_CLASSES: Final = ("lsr_class", "ls_class", "be_class")
_SWITCHED_BLOCKS: Final = ("cpu_qos", "resctrl_qos", "memory_qos")
