"""Pods and containers as far as Topolet cares, whatever told us of them."""

from __future__ import annotations

import enum

import msgspec

from agent.model.qos import KubeClass, QoS, qos_of


class ContainerState(enum.StrEnum):
    """Containers that left are not carried at all."""

    CREATED = "created"
    RUNNING = "running"


class Container(msgspec.Struct, frozen=True):
    """One container the runtime holds; `group` is its cpuset cgroup, None while it has none.

    `virtual`: it runs in a virtual machine, whose kernel has its cgroup.
    """

    id: str
    name: str
    state: ContainerState
    group: str | None = None
    virtual: bool = False


class Pod(msgspec.Struct, frozen=True):
    """A pod on this node. `containers` leaves out the pause containers: they are `sandboxes`.

    `created_at` is in nanoseconds since 1970 (of the oldest sandbox, or of the ring for a pod that
    the runtime does not know yet).
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
