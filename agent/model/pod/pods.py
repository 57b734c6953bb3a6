"""Pods and containers of a node, and the labels and annotations of pods that decisions use."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    DEVICE_LOCALITY,
    EXTENDED_RESOURCE_SPEC,
    GPU_ISOLATION_PROVIDER,
    MIXED_CONTAINERS,
    QUIET_BYTES,
    RESOURCE_STATUS,
    SHARED_CONTAINERS,
    with_crio_names,
)
from agent.model.pod.qos import QOS_LABEL, KubeClass, QoS, qos_of


class ContainerState(enum.StrEnum):
    """Containers in the state ENDED are represented by EndedContainer, not by Container."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"


class Container(msgspec.Struct, frozen=True):
    """A container that the runtime has."""

    id: str
    name: str
    state: ContainerState
    group: str | None = None
    """Its cpuset cgroup, None while it has none."""
    virtual: bool = False
    """It runs in a virtual machine, whose kernel has its cgroup."""
    created_at: int = 0
    """Nanoseconds since 1970."""
    shares: int = 0
    """The requested cpu shares, 0 if unknown."""
    hugepages: Mapping[int, int] = {}
    """The requested bytes by page size."""
    pid: int = 0
    """Its first process on the host, 0 if the runtime did not report it."""


class EndedContainer(msgspec.Struct, frozen=True):
    """An ended container of a pod whose sandbox runs."""

    name: str
    created_at: int
    shares: int
    cpuset: str
    """Its last cpuset."""


class Pod(msgspec.Struct, frozen=True):
    """A pod on this node."""

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    kube_class: KubeClass | None
    created_at: int
    """Nanoseconds since 1970: the time of the oldest sandbox, or of the notification if the runtime
    does not have the pod yet."""
    containers: tuple[Container, ...] = ()
    """Without pause containers."""
    sandboxes: tuple[Container, ...] = ()
    """The pause containers."""
    ended: tuple[EndedContainer, ...] = ()
    """The newest ended container of each name that no other container has; only for pods whose
    ended containers count."""
    named: tuple[str, ...] | None = None
    """The container names in its spec, None while the spec is unknown."""
    unequal: str = ""
    """The message about a CPU limit that differs from the request (`apiobjects.unequal_cpu`), ""
    for none or if unknown."""
    batch_excess: str = ""
    """The message about an extended-resource-spec with more than the pod's spec
    (`batch.batch_excess`), "" for none or if unknown."""

    @property
    def qos(self) -> QoS:
        """The class for decisions of the node. BE counts only in a BestEffort cgroup: another
        cgroup has a higher weight, with which the pod would take CPU time from LSR pods in the BE
        pool."""
        of_labels = qos_of(self.labels, self.kube_class)
        return QoS.LS if of_labels is QoS.BE and self.kube_class != "besteffort" else of_labels

    @property
    def title(self) -> str:
        """The pod's name in logs and errors."""
        return f"{self.namespace}/{self.name}"


def pod_uid(uid: str, namespace: str, name: str) -> str:
    """The key of a pod: its uid, or its name if it was created by hand without a uid."""
    return uid or f"{namespace}/{name}"


LABELS: Final = (QOS_LABEL, GPU_ISOLATION_PROVIDER)
_MAX_LABEL_CHARACTERS: Final = 63  # of a value that the API server accepts
ANNOTATIONS: Final = {
    RESOURCE_STATUS: bounds.POD_TEXT_BYTES,
    SHARED_CONTAINERS: bounds.POD_VALUE_BYTES,
    MIXED_CONTAINERS: bounds.POD_VALUE_BYTES,
    EXTENDED_RESOURCE_SPEC: bounds.POD_LIST_BYTES,
    DEVICE_ALLOCATED: bounds.POD_LIST_BYTES,
    DEVICE_LOCALITY: bounds.POD_VALUE_BYTES,
    **QUIET_BYTES,
}
"""The annotations that decisions use, with the longest length of each in bytes."""


class PodMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The labels and annotations of a pod that decisions use. The messages are those of `Pod`."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    unequal: str = ""
    batch_excess: str = ""


def pod_metadata(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    unequal: str = "",
    batch_excess: str = "",
) -> PodMetadata:
    """The metadata of a pod that decisions use."""
    return PodMetadata(
        {key: labels[key][: _MAX_LABEL_CHARACTERS + 1] for key in LABELS if key in labels},
        bounds.kept(with_crio_names(annotations), ANNOTATIONS),
        unequal,
        batch_excess,
    )
