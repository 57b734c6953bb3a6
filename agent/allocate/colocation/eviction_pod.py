"""A pod as evictions see it: what it frees, whether it may leave, and when (Koordinator:
apis/extension; pkg/koordlet/qosmanager/helpers)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model.pod.annotations import AnnotationError, decoded
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL, PriorityClass, QoS
from agent.model.pod.resource_request import pod_requests

EVICTION_POLICY: Final = "koordinator.sh/eviction-policy"
EVICTION_PRIORITY: Final = "koordinator.sh/eviction-priority"
EVICTION_ENABLED: Final = "koordinator.sh/eviction-enabled"
SUB_PRIORITY: Final = "koordinator.sh/priority"

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
USED_CPU: Final = "CPU in use"
USED_MEMORY: Final = "memory in use"
_PRIORITIES: Final[Mapping[str, int]] = {
    PriorityClass.PROD: 9500,
    PriorityClass.MID: 7500,
    PriorityClass.BATCH: 5500,
    PriorityClass.FREE: 3500,
}
"""The priority of a pod that has none, by its class."""
_OFFERED: Final[Mapping[str, Mapping[str, str]]] = {
    PriorityClass.MID: {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
    PriorityClass.BATCH: {"cpu": BATCH_CPU, "memory": "kubernetes.io/batch-memory"},
}
"""The resources in which the pods of a class request CPU and memory, other than Kubernetes' own."""


class EvictionPod(msgspec.Struct, frozen=True):
    """A pod as evictions see it."""

    uid: str
    title: str
    priority_class: str
    batch: bool
    """Its label says BE."""
    spec_priority: int | None
    priority: int
    """A pod without a priority, or with 0, has that of its class."""
    eviction_priority: int = 0
    """Pods with the highest leave last."""
    sub_priority: int = 0
    """It decides between pods of equal priority."""
    agreed: bool = False
    """A label says that it may be evicted."""
    allowed: frozenset[str] | None = None
    """The features that may take it; None for all."""
    spared: str = ""
    """Why it never leaves, "" if it may."""
    running: bool = True
    """Or it will run."""
    leaving: bool = False
    """It has been deleted, and still exists."""
    asked: bool = False
    """The agent has evicted it, and it still exists."""
    frees: Mapping[str, int] = {}
    """By resource, what it requests, CPU in milli-CPU and memory in bytes; and what it uses, if
    that is known."""
    faults: tuple[str, ...] = ()
    """Sentences about annotations with a bad value."""

    @property
    def used_cpu_milli(self) -> int | None:
        return self.frees.get(USED_CPU)

    @property
    def used_memory_bytes(self) -> int | None:
        return self.frees.get(USED_MEMORY)

    def resource(self, name: str) -> str:
        """The resource in which it requests CPU (`cpu`) or memory."""
        return _requested_as(self.priority_class, name)


def _requested_as(priority_class: str, name: str) -> str:
    return _OFFERED.get(priority_class, {}).get(name, name)


def requested_by_low_priority(
    pods: Iterable[EvictionPod], name: str, priority: int
) -> Counter[str]:
    """By resource, what the running pods up to this priority request of CPU (`cpu`) or memory."""
    requested: Counter[str] = Counter()
    for pod in pods:
        if pod.running and pod.priority <= priority:
            resource = pod.resource(name)
            requested[resource] += pod.frees.get(resource, 0)
    return requested


_MAX_POLICIES: Final = 32
_MAX_POLICY_BYTES: Final = 1 << 10
_Policies = Annotated[tuple[str, ...], msgspec.Meta(max_length=_MAX_POLICIES)]
_policies: Final = msgspec.json.Decoder(_Policies | None)
_32_BITS: Final = range(-(1 << 31), 1 << 31)


def eviction_pod(
    pod: ApiPod,
    priority_class: str,
    used_cpu_milli: int | None,
    used_memory_bytes: int | None,
    *,
    asked: bool = False,
) -> EvictionPod:
    """The pod with what it uses; None while that is not known.

    `asked`: the agent has evicted it."""
    faults = []
    try:
        policies = decoded(pod.annotations, EVICTION_POLICY, _policies, _MAX_POLICY_BYTES)
        allowed = None if policies is None else frozenset(policies)
    except AnnotationError as error:
        allowed = frozenset[str]()
        faults.append(f"Pod {pod.title} is not evicted: {error}")
    written = pod.annotations.get(EVICTION_PRIORITY, "0")
    eviction_priority = _number(written)
    if eviction_priority is None:
        faults.append(
            f"Pod {pod.title}: annotation {EVICTION_PRIORITY} counts as 0: {written[:40]!r} is no "
            "number of 32 bits"
        )
    priority = pod.priority or _PRIORITIES[priority_class]
    sub_priority = _number(pod.labels.get(SUB_PRIORITY, ""))
    batch = pod.labels.get(QOS_LABEL) == QoS.BE
    requests = pod_requests(pod)
    names = {_requested_as(priority_class, name) for name in ("cpu", "memory")}
    if batch:
        names.add(BATCH_CPU)
    used = {USED_CPU: used_cpu_milli, USED_MEMORY: used_memory_bytes}
    return EvictionPod(
        pod.uid,
        pod.title,
        priority_class,
        batch,
        pod.priority,
        priority,
        eviction_priority or 0,
        priority if sub_priority is None else sub_priority,
        pod.labels.get(EVICTION_ENABLED) == "true",
        allowed,
        pod.unmovable,
        pod.phase in (Phase.PENDING, Phase.RUNNING),
        pod.deleted,
        asked,
        {name: requests.get(name, 0) for name in sorted(names)}
        | {name: amount for name, amount in used.items() if amount is not None},
        tuple(faults),
    )


def _number(text: str) -> int | None:
    """The number; None if the text is not a number, or needs more than 32 bits."""
    if len(text) > len("-2147483648"):
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number in _32_BITS else None
