"""Pods and containers as far as Topolet cares, whatever told us of them."""

from __future__ import annotations

import enum

import msgspec

from agent.model.qos import KubeClass, QoS, qos_of


class ContainerState(enum.StrEnum):
    """Containers that ended are no `Container`, see Ended."""

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
    ended: tuple[Ended, ...] = ()

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
