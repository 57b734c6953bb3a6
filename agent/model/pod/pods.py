"""Pods and containers of a node, and the labels and annotations of a pod that decisions read."""

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
    """An ended container is an Ended, not a Container."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"


class Container(msgspec.Struct, frozen=True):
    """One container the runtime holds; `group` is its cpuset cgroup, None while it has none.

    `virtual`: it runs in a virtual machine, whose kernel has its cgroup. `created_at` is in
    nanoseconds since 1970. `shares`: of CPU time, as the runtime was asked for, 0 if unknown.
    """

    id: str
    name: str
    state: ContainerState
    group: str | None = None
    virtual: bool = False
    created_at: int = 0
    shares: int = 0


class Ended(msgspec.Struct, frozen=True):
    """A container that runs no more, of a pod that lives; `cpuset`: what it had last."""

    name: str
    created_at: int
    shares: int
    cpuset: str


class Pod(msgspec.Struct, frozen=True):
    """A pod on this node. `containers` leaves out the pause containers: they are `sandboxes`.
    `ended`: the newest container of each name that has none any more, where these matter.

    `named`: the containers of its spec, None while the spec is not known.

    `created_at` is in nanoseconds since 1970 (of the oldest sandbox, or of the notification for a
    pod that the runtime does not know yet).
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
    ended: tuple[Ended, ...] = ()
    named: tuple[str, ...] | None = None

    @property
    def qos(self) -> QoS:
        return qos_of(self.labels, self.kube_class)

    @property
    def title(self) -> str:
        """What logs and errors call it."""
        return f"{self.namespace}/{self.name}"


def pod_uid(uid: str, namespace: str, name: str) -> str:
    """The key of a pod; one created by hand, without a uid, is known by its name."""
    return uid or f"{namespace}/{name}"


LABELS: Final = (QOS_LABEL, GPU_ISOLATION_PROVIDER)
ANNOTATIONS: Final = {
    RESOURCE_STATUS: bounds.POD_TEXT_BYTES,
    SHARED_CONTAINERS: bounds.POD_VALUE_BYTES,
    EXTENDED_RESOURCE_SPEC: bounds.POD_LIST_BYTES,
    DEVICE_ALLOCATED: bounds.POD_LIST_BYTES,
}
"""With the bytes that a reader takes of each."""


class PodMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nothing but these."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def pod_metadata(labels: Mapping[str, str], annotations: Mapping[str, str]) -> PodMetadata:
    """Those of a pod."""
    return PodMetadata(
        {key: labels[key] for key in LABELS if key in labels},
        bounds.kept(annotations, ANNOTATIONS),
    )
