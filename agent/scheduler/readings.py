"""What is kept of the cluster's objects, each as a small value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.place.holding import Holding
from agent.allocate.zoned.pod import ZonedPod
from agent.scheduler.groupname import Group

# Of deploy/base too.
AGENT_LABELS: Final = {
    "app.kubernetes.io/name": "topolet",
    "app.kubernetes.io/component": "agent",
}


class Agents(msgspec.Struct, frozen=True):
    """Which pods are agents: those with all these labels, in `namespace` where that is not empty.
    Where nothing is said, no node needs one."""

    labels: Mapping[str, str] = msgspec.field(default_factory=AGENT_LABELS.copy)
    namespace: str = ""

    def include(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return (
            bool(self.labels)
            and self.namespace in ("", namespace)
            and all(labels.get(key) == value for key, value in self.labels.items())
        )


class PodReading(msgspec.Struct, frozen=True, gc=False):
    """One pod. `holding`: what it holds of its node, None where it has none or has ended for good;
    `agent_ready`: of an agent's pod only. Of a pod that holds something, for who looks for victims:
    `labels`, `started_at` in nanoseconds since 1970, `leaving` (somebody has asked for its end) and
    `fixed` (the API server can't end it: a static pod's mirror). For who counts what NUMA nodes
    have left: `zoned`, whatever its containers are called, and `begun` (its node says that it runs,
    so that a fingerprint of the node's pods has it); `ended`: the title of a pod that has ended for
    good and is still there, as one has it too. `group`: the one that it is a member of.
    """

    uid: str
    node: str
    holding: Holding | None = None
    agent_ready: bool | None = None
    labels: Mapping[str, str] = {}
    started_at: int = 0
    leaving: bool = False
    fixed: bool = False
    zoned: ZonedPod | None = None
    begun: bool = False
    group: Group | None = None
    ended: str = ""

    @property
    def title(self) -> str:
        """Of one that is on a node."""
        return self.holding.title if self.holding is not None else self.ended


class NodeReading(msgspec.Struct, frozen=True):
    """A Node; of its annotations those that something here reads. `allocatable` in milli-CPU and
    units."""

    name: str
    uid: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    allocatable: dict[str, int] = {}


class Unreadable(msgspec.Struct, frozen=True):
    """An object that is as good as missing; `text` names it, the field and the fault."""

    text: str
