"""NodeMetric (slo.koordinator.sh/v1alpha1): what its spec asks for, and its status by the samples
(Koordinator: apis/slo/v1alpha1/nodemetric_types.go; pkg/koordlet/statesinformer/impl,
states_nodemetric.go)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, DeviceType
from agent.model.objects import ObjectError, converted
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.qos import PRIORITY_CLASS_LABEL, QOS_LABEL, KubeClass, PriorityClass, QoS
from agent.model.pod.resource_request import priority_band
from agent.model.quantities import amount, cpu
from agent.usage.gpus import UsedGpu
from agent.usage.prediction import Peak, Prediction
from agent.usage.sampler import Used
from agent.usage.series import Aggregate

KIND: Final = "NodeMetric"
Object = dict[str, Any]


class NodeMemoryPolicy(enum.StrEnum):
    """The memory that counts for the machine and for pods."""

    WITHOUT_PAGE_CACHE = "usageWithoutPageCache"
    WITH_HOT_PAGE_CACHE = "usageWithHotPageCache"
    """The kernel that tells hot pages from cold ones is Anolis'; elsewhere nothing is reported."""
    WITH_PAGE_CACHE = "usageWithPageCache"


class CollectPolicy(msgspec.Struct, frozen=True):
    """What the spec asks for, in seconds."""

    aggregate_seconds: int = 300
    """The window of `nodeUsage`, `systemUsage` and the pods."""
    interval_seconds: int = 60
    """The time between two reports."""
    durations: tuple[int, ...] = (300, 600, 1800)
    """The windows of the aggregated usages."""
    memory: NodeMemoryPolicy = NodeMemoryPolicy.WITHOUT_PAGE_CACHE


class UsedPod(msgspec.Struct, frozen=True):
    """A pod of the status."""

    namespace: str
    name: str
    priority_class: str
    qos: str
    used: Used


class UsedApplication(msgspec.Struct, frozen=True):
    """An application of the host in the status."""

    name: str
    priority_class: PriorityClass | None
    qos: QoS | None
    used: Used


class UsedNode(msgspec.Struct, frozen=True):
    """The values of one status."""

    node: Used
    system: Used
    aggregated: tuple[tuple[int, Used, Used], ...] = ()
    """For each duration in seconds, the use of the machine and of the system."""
    numa: Mapping[int, Used] = {}
    pods: tuple[UsedPod, ...] = ()
    prod: Prediction | None = None
    """None while it is not known."""
    applications: tuple[UsedApplication, ...] = ()


_Seconds = Annotated[int, msgspec.Meta(ge=1, le=86_400)]
_MAX_DURATIONS: Final = 16


class _AggregatePolicy(msgspec.Struct, frozen=True):
    durations: Annotated[tuple[str, ...], msgspec.Meta(max_length=_MAX_DURATIONS)] | None = None


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    aggregate_duration_seconds: _Seconds | None = None
    report_interval_seconds: _Seconds | None = None
    node_aggregate_policy: _AggregatePolicy | None = None
    node_memory_collect_policy: NodeMemoryPolicy | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    metric_collect_policy: _Policy | None = None


class _NodeMetric(msgspec.Struct, frozen=True):
    spec: _Spec | None = None


def collect_policy(body: object) -> CollectPolicy:
    """The policy of a NodeMetric object, the defaults for what it leaves out. Raises ObjectError,
    which names the object and the field."""
    spec = converted(body, KIND, _NodeMetric).spec or _Spec()
    policy, default = spec.metric_collect_policy or _Policy(), CollectPolicy()
    durations = default.durations
    written = (policy.node_aggregate_policy or _AggregatePolicy()).durations
    if written is not None:
        try:
            durations = tuple(map(_duration_seconds, written))
        except ValueError as error:
            field = "spec.metricCollectPolicy.nodeAggregatePolicy.durations"
            raise ObjectError(KIND, _name(body), f"{field}: {error}") from None
    return CollectPolicy(
        policy.aggregate_duration_seconds or default.aggregate_seconds,
        policy.report_interval_seconds or default.interval_seconds,
        durations,
        policy.node_memory_collect_policy or default.memory,
    )


def _name(body: object) -> str:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


_DURATION: Final = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?", re.ASCII)


def _duration_seconds(text: str) -> int:
    """Raises ValueError for a text that is not a Go duration of whole seconds above 0."""
    match = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= 86_400:
        raise ValueError(f"{text[:40]!r} is not a duration of whole seconds, up to 24h")
    return total


def duration_text(seconds: int) -> str:
    """A duration as Go writes it: `5m0s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def status(used: UsedNode, update_time: str) -> Object:
    """The status. `update_time`: RFC 3339. Fields without a value are left out, and pods without
    one too; an aggregated usage whose samples span less than half of its duration is empty."""
    node: Object = {
        "nodeUsage": _usage(used.node),
        "systemUsage": _usage(used.system),
        "aggregatedNodeUsages": [
            _aggregated(seconds, of_node) for seconds, of_node, _ in used.aggregated
        ],
        "aggregatedSystemUsages": [
            _aggregated(seconds, of_system) for seconds, _, of_system in used.aggregated
        ],
        "numaUsages": [
            {"numaNodeID": node, "nodeUsage": _usage(of_node)}
            for node, of_node in sorted(used.numa.items())
        ],
    }
    pods = sorted(used.pods, key=lambda pod: (pod.namespace, pod.name))
    prod = used.prod
    of_prod = (
        (("prodReclaimableMetric", prod.reclaimable), ("prodPeakMetric", prod.peak)) if prod else ()
    )
    return {
        **{name: {"resource": _peak(peak)} for name, peak in of_prod},
        "updateTime": update_time,
        "nodeMetric": node,
        "podsMetric": [
            {
                "name": pod.name,
                "namespace": pod.namespace,
                "podUsage": usage,
                **({"priority": pod.priority_class} if pod.priority_class else {}),
                "qos": pod.qos,
            }
            for pod in pods
            if (usage := _usage(pod.used))
        ],
        "hostApplicationMetric": [
            {
                "name": application.name,
                "usage": usage,
                **(
                    {"priority": application.priority_class.value}
                    if application.priority_class
                    else {}
                ),
                **({"qos": application.qos.value} if application.qos else {}),
            }
            for application in sorted(used.applications, key=lambda application: application.name)
            if (usage := _usage(application.used))
        ],
    }


def _usage(used: Used) -> Object:
    return _resources(used, "average")


def _resources(used: Used, name: str) -> Object:
    """One aggregation of all resources: CPU in milli, memory in bytes, GPUs in percent of a card;
    all are cut off."""
    resources = {}
    if used.cpus is not None:
        resources["cpu"] = cpu(int(1000 * getattr(used.cpus, name)))
    if used.memory_bytes is not None:
        resources["memory"] = amount("memory", int(getattr(used.memory_bytes, name)))
    devices = [device for gpu in used.gpus if (device := _gpu(gpu, name))]
    return {
        **({"resources": resources} if resources else {}),
        **({"devices": devices} if devices else {}),
    }


def _gpu(gpu: UsedGpu, name: str) -> Object:
    resources = {}
    if gpu.core_percent is not None:
        resources[GPU_CORE] = str(int(getattr(gpu.core_percent, name)))
    if gpu.memory_bytes is not None:
        memory = int(getattr(gpu.memory_bytes, name))
        resources[GPU_MEMORY] = amount("memory", memory)
        if gpu.memory_total_bytes:
            resources[GPU_MEMORY_RATIO] = str(100 * memory // gpu.memory_total_bytes)
    if not resources:
        return {}
    return {
        "id": gpu.uuid,
        "minor": gpu.minor,
        "type": DeviceType.GPU.value,
        "resources": resources,
    }


def _peak(peak: Peak) -> Object:
    memory = amount("memory", peak.memory_bytes)
    return {"resources": {"cpu": cpu(peak.cpu_milli), "memory": memory}}


_AGGREGATIONS: Final = {"avg": "average", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def _aggregated(seconds: int, used: Used) -> Object:
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            core_percent=_spanning(gpu.core_percent, seconds),
            memory_bytes=_spanning(gpu.memory_bytes, seconds),
        )
        for gpu in used.gpus
    )
    spanning = Used(_spanning(used.cpus, seconds), _spanning(used.memory_bytes, seconds), gpus)
    usage = {
        name: resources
        for name, field in _AGGREGATIONS.items()
        if (resources := _resources(spanning, field))
    }
    return {"usage": usage, "duration": duration_text(seconds)}


def _spanning(aggregate: Aggregate | None, seconds: int) -> Aggregate | None:
    return aggregate if aggregate is not None and aggregate.span_seconds >= seconds / 2 else None


_QOS_OF_KUBERNETES: Final[Mapping[str, QoS]] = {
    "guaranteed": QoS.LSR,
    "burstable": QoS.LS,
    "besteffort": QoS.BE,
}


def qos_of_pod(pod: ApiPod) -> QoS:
    """The QoS class as koordlet reports it: that of the label, else by that of Kubernetes."""
    return reported_qos(pod.labels, pod.kube_class or kube_class_of(pod))


def reported_qos(labels: Mapping[str, str], kube_class: KubeClass) -> QoS:
    """The same of a pod with these labels and this class of Kubernetes."""
    label = labels.get(QOS_LABEL, "")
    return QoS(label) if label in tuple(QoS) else _QOS_OF_KUBERNETES[kube_class]


def priority_class_of_pod(pod: ApiPod) -> str:
    """The priority class as koordlet reports it. Without one it is koord-batch for BE pods, and
    koord-prod for all others."""
    default = PriorityClass.BATCH if qos_of_pod(pod) is QoS.BE else PriorityClass.PROD
    label = pod.labels.get(PRIORITY_CLASS_LABEL, "")
    return priority_band(pod.priority, label) or default.value
