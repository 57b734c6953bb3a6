"""The records that the scheduler keeps of API objects, and a pool that stores equal values once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Final, Generic, TypeVar

import msgspec

from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.nrt.pod import ZonedPod
from agent.scheduler.pod_group import PodGroup

# Of deploy/base too.
AGENT_LABELS: Final = {
    "app.kubernetes.io/name": "topolet",
    "app.kubernetes.io/component": "agent",
}


class AgentSelector(msgspec.Struct, frozen=True):
    """Selects the agents' pods: those with all these labels, in `namespace` unless it is empty.
    Without labels no node needs an agent."""

    labels: Mapping[str, str] = msgspec.field(default_factory=AGENT_LABELS.copy)
    namespace: str = ""

    def include(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return (
            bool(self.labels)
            and self.namespace in ("", namespace)
            and all(labels.get(key) == value for key, value in self.labels.items())
        )


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """A pod. `holding` is what it holds of its node, None where it has no node or is terminated.
    `agent_ready` is set for agents only.

    Fields for the selection of victims, of pods with a holding: `labels`, `started_at` in
    nanoseconds since 1970, `terminating` (its deletion has begun) and `fixed` (the API server can't
    end it: the mirror of a static pod).

    Fields for the zone report: `zoned` without names of containers, `begun` (the pod runs, so that
    a fingerprint of the node's pods contains it), and `ended`, the title of a terminated pod that
    still exists, since a fingerprint may contain it too.

    `group` is the pod's group.
    """

    uid: str
    node: str
    holding: AssignedPod | None = None
    agent_ready: bool | None = None
    labels: Mapping[str, str] = {}
    started_at: int = 0
    terminating: bool = False
    fixed: bool = False
    zoned: ZonedPod | None = None
    begun: bool = False
    group: PodGroup | None = None
    ended: str = ""

    @property
    def title(self) -> str:
        """The namespace/name of a pod on a node."""
        return self.holding.title if self.holding is not None else self.ended


class NodeRecord(msgspec.Struct, frozen=True):
    """A Node, with the annotations that the scheduler reads. `allocatable` is in milli-CPU and
    units."""

    name: str
    uid: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    allocatable: dict[str, int] = {}


class Unreadable(msgspec.Struct, frozen=True):
    """An invalid object, which counts as missing. `text` names object, field and fault."""

    text: str


T = TypeVar("T")

MAX_VALUES: Final = 4096


class InternPool(Generic[T]):
    """Keeps the first of equal values, by their JSON; nobody may change a value. A full pool begins
    anew, since most values may be unused by then. Two threads may both keep a value, which costs
    only memory."""

    def __init__(self, most_kept: int = MAX_VALUES) -> None:
        self._most = most_kept
        self._kept: dict[bytes, T] = {}

    def of(self, value: T) -> T:
        return self.made(value, lambda: value)

    def made(self, of: object, make: Callable[[], T]) -> T:
        """Returns the value of `make`, which must depend on `of` alone."""
        key = msgspec.json.encode(of)
        kept = self._kept.get(key)
        if kept is None:
            kept = make()
            if len(self._kept) >= self._most:
                self._kept.clear()
            self._kept[key] = kept
        return kept


def interned(texts: Mapping[str, str]) -> dict[str, str]:
    """The same mapping, of interned strings."""
    return {intern(key): intern(value) for key, value in texts.items()}
