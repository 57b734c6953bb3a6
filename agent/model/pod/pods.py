"""Pods and containers of a node, and the labels and annotations of pods that decisions use."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    EXTENDED_RESOURCE_SPEC,
    GPU_ISOLATION_PROVIDER,
    RESOURCE_STATUS,
    SHARED_CONTAINERS,
)
from agent.model.pod.qos import QOS_LABEL, KubeClass, QoS, qos_of


class ContainerState(enum.StrEnum):
    """Containers in the state ENDED are represented by EndedContainer, not by Container."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"


class Container(msgspec.Struct, frozen=True):
    """A container that the runtime has. `group`: its cpuset cgroup, None while it has none.

    `virtual`: it runs in a virtual machine, whose kernel has its cgroup. `created_at`: nanoseconds
    since 1970. `shares`: the requested cpu shares, 0 if unknown. `hugepages`: by page size, the
    requested bytes.
    """

    id: str
    name: str
    state: ContainerState
    group: str | None = None
    virtual: bool = False
    created_at: int = 0
    shares: int = 0
    hugepages: Mapping[int, int] = {}


class EndedContainer(msgspec.Struct, frozen=True):
    """An ended container of a pod whose sandbox runs. `cpuset`: its last cpuset."""

    name: str
    created_at: int
    shares: int
    cpuset: str


class Pod(msgspec.Struct, frozen=True):
    """A pod on this node. `containers`: without the pause containers, which are `sandboxes`.
    `ended`: the newest ended container of each name that no other container has; only for pods
    whose ended containers count.

    `named`: the container names in its spec, None while the spec is unknown. `unequal`: the
    message about a CPU limit that differs from the request (`apiobjects.unequal_cpu`).
    `batch_excess`: the message about an extended-resource-spec with more than the pod's spec
    (`batch.batch_excess`). Both are "" for none, or if unknown.

    `created_at`: nanoseconds since 1970, of the oldest sandbox, or of the notification if the
    runtime does not have the pod yet.
    """

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    kube_class: KubeClass | None
    created_at: int
    containers: tuple[Container, ...] = ()
    sandboxes: tuple[Container, ...] = ()
    ended: tuple[EndedContainer, ...] = ()
    named: tuple[str, ...] | None = None
    unequal: str = ""
    batch_excess: str = ""

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
    EXTENDED_RESOURCE_SPEC: bounds.POD_LIST_BYTES,
    DEVICE_ALLOCATED: bounds.POD_LIST_BYTES,
}
"""The annotations that decisions use, with the longest length of each in bytes."""


class PodMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Only the labels and annotations that decisions use; `unequal` and `batch_excess` as in
    Pod."""

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
        bounds.kept(annotations, ANNOTATIONS),
        unequal,
        batch_excess,
    )
