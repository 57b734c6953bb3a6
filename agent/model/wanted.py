"""What containers get, decided by the agent and obeyed by its writes and by the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model.cpuset import CpuSet
from agent.model.qos import QoS
from agent.model.visible import Visible

UNLIMITED: Final = -1
PERIOD_MICROSECONDS: Final = 100_000
"""The kernel's own default period, and the one that every quota here is for."""
LEAST_QUOTA_MICROSECONDS: Final = 1_000
LEAST_SHARES: Final = 2
MOST_SHARES: Final = 262_144
"""What the kernel takes; it bends shares beyond these by itself, and refuses a lesser quota."""


class CgroupLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Values of one cgroup; None: undecided, stays as it is. `quota_microseconds` of CPU time in
    each 100,000 and `memory_limit_bytes` may be UNLIMITED. `mems` are NUMA nodes; on cgroup v2 an
    empty set means the parent's. `migrate`: whether pages follow when `mems` change: a choice on v1
    alone, v2 always moves them."""

    quota_microseconds: int | None = None
    shares: int | None = None
    memory_limit_bytes: int | None = None
    mems: CpuSet | None = None
    migrate: bool | None = None


NO_LIMITS: Final = CgroupLimits()


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The wanted values of one container; `cpuset` None: stays as it is. `exclusive`: its pod owns
    the CPUs; `kubelet`: a static kubelet gave them, and a cpuset in its request overrides ours;
    `keeps_quota`: the CFS quota of the request stays. `blocked`: why it must not be created yet:
    its CPUs are in use, or it has none. `visible` None: its devices are undecided."""

    cpuset: str | None = None
    exclusive: bool = False
    kubelet: bool = False
    keeps_quota: bool = False
    limits: CgroupLimits = NO_LIMITS
    blocked: str = ""
    visible: Visible | None = None

    @property
    def hands_off(self) -> bool:
        """Whether neither CPUs nor limits of the container are ours."""
        return self.cpuset is None and self.limits == NO_LIMITS

    @property
    def lifts_quota(self) -> bool:
        """Whether the container runs without a CFS quota, though `limits` has none."""
        has_quota = self.limits.quota_microseconds is not None
        return self.exclusive and not has_quota and not self.keeps_quota

    def without_memory(self) -> Wanted:
        """The same without a decision about memory nodes."""
        if self.limits.mems is None:
            return self
        limits = msgspec.structs.replace(self.limits, mems=None)
        return msgspec.structs.replace(self, limits=limits)


NOTHING: Final = Wanted()


class PodWanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod's containers get: `each` those that are not in `containers`, by name.

    `refused`: why the CPUs that the pod claims are not its own. `group`: the limits of the pod's
    own cgroup."""

    title: str
    qos: QoS
    each: Wanted
    containers: dict[str, Wanted] = {}
    refused: str = ""
    group: CgroupLimits = NO_LIMITS

    def of(self, container_name: str) -> Wanted:
        """What the container of that name gets."""
        return self.containers.get(container_name, self.each)

    def seeing(self, each: Visible | None, containers: Mapping[str, Visible]) -> PodWanted:
        """The same with what its containers see, by name; `each` for any other."""
        names = self.containers.keys() | containers.keys()
        return msgspec.structs.replace(
            self,
            each=msgspec.structs.replace(self.each, visible=each),
            containers={
                name: msgspec.structs.replace(self.of(name), visible=containers.get(name, each))
                for name in sorted(names)
            },
        )

    @property
    def exclusive(self) -> bool:
        """Whether one of its containers may have CPUs of its own."""
        return self.each.exclusive or any(each.exclusive for each in self.containers.values())
