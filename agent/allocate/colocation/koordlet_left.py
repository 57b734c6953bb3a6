"""What a koordlet that has ended left in cgroups: the kernel keeps every value that it wrote.

A value counts as left where neither the kernel nor the kubelet sets one, or where the runtime
stores another one. Values that the agent has replaced are compared by what it would give back."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.linux_resources import NO_QUOTA, CpuQuota


class LeftKind(enum.StrEnum):
    """What a value does to pods, the most dangerous first."""

    DANGER = "danger"
    """One kill ends all pods of a class, or a kubelet does not start again."""
    QUOTA = "quota"
    BURST = "burst"
    PRIORITY = "priority"
    MEMORY = "memory"
    BATCH = "batch"
    """Limits of BE pods by their batch resources."""
    CPUS = "cpus"
    CACHE = "cache"
    """Groups of resctrl."""


class GroupLevel(enum.StrEnum):
    """Whose group it is."""

    NODE = "node"
    """All pods."""
    SERVICES = "services"
    """All burstable pods."""
    BATCH = "batch"
    """All BestEffort pods."""
    POD = "pod"
    CONTAINER = "container"


class LeftGroup(msgspec.Struct, frozen=True):
    """A group of pods, as it is read."""

    group: str
    level: GroupLevel
    texts: Mapping[str, str]
    """The contents of files, as far as they exist."""
    best_effort: bool = False
    """Whether it is in the group of all BestEffort pods."""
    requested: str | None = None
    """The quota that the kubelet has requested; None if nobody knows it, or if the kubelet sets no
    limit."""


class LeftValue(msgspec.Struct, frozen=True):
    """A value that koordlet left."""

    kind: LeftKind
    group: str
    file: str
    value: str
    kernel: str
    """What the file has without koordlet."""

    @property
    def text(self) -> str:
        if self.kind is LeftKind.CACHE:
            return f"the group {self.group} of resctrl"
        return f"{self.group} {self.file} is {self.value or 'empty'}, not {self.kernel or 'empty'}"


QUOTAS: Final = ("cpu.cfs_quota_us", "cpu.max")
_PROTECTED: Final = {"memory.min": "0", "memory.low": "0", "memory.high": "max"}
"""A kubelet that protects memory writes them too."""
_OF_ANOLIS: Final = {
    "memory.wmark_ratio": "0",
    "memory.wmark_scale_factor": "50",
    "memory.wmark_min_adj": "0",
    "memory.priority": "0",
    "memory.use_priority_oom": "0",
}
"""Only Alibaba's kernel has these files; the values are its defaults."""
_BURSTS: Final = {"cpu.cfs_burst_us": "0", "cpu.max.burst": "0"}
_IDENTITY: Final = {"cpu.bvt_warp_ns": "0"}
_DANGERS: Final = {"cpu.idle": "0", "memory.oom.group": "0"}
_WEIGHTS: Final = {"cpu.shares": "2", "cpu.weight": "1"}
"""What the kubelet gives to BestEffort pods, and to their group."""
_BATCH_MEMORY: Final = {"memory.limit_in_bytes": "-1", "memory.max": "max"}
_OF_GROUPS: Final = (
    (LeftKind.PRIORITY, _IDENTITY),
    (LeftKind.MEMORY, _PROTECTED),
    (LeftKind.MEMORY, _OF_ANOLIS),
)
_OF_SHARED: Final = ((LeftKind.DANGER, _DANGERS), *_OF_GROUPS)
_OF_PODS: Final = ((LeftKind.BURST, _BURSTS), *_OF_GROUPS)
FILES: Final = (
    *QUOTAS,
    *(
        file
        for table in (_DANGERS, _BURSTS, _IDENTITY, _PROTECTED, _OF_ANOLIS, _WEIGHTS, _BATCH_MEMORY)
        for file in table
    ),
)
"""All files that are compared, without cpusets."""
_UNLIMITED_BYTES: Final = 1 << 62
"""A limit of memory beyond it is none: v1 has the largest number of whole pages."""


def left(groups: Iterable[LeftGroup], *, kubelet_protects: bool) -> Iterator[LeftValue]:
    """The values that koordlet left.

    `kubelet_protects`: whether the kubelet protects or throttles memory, or may do so."""
    for read in groups:
        for kind, file, kernel in _expected(read, kubelet_protects=kubelet_protects):
            value = read.texts.get(file)
            if value is not None and not _same(file, value, kernel):
                yield LeftValue(kind, read.group, file, value, kernel)


def has_batch_limits(read: LeftGroup) -> bool:
    """Whether koordlet has limited the group by batch resources. A pod has such limits as its
    containers do; those of the pod alone are of the overhead of its RuntimeClass."""
    return any(each.kind is LeftKind.BATCH for each in left([read], kubelet_protects=True))


def _expected(read: LeftGroup, *, kubelet_protects: bool) -> Iterator[tuple[LeftKind, str, str]]:
    shared = read.level not in (GroupLevel.POD, GroupLevel.CONTAINER)
    for kind, kernel_values in _OF_SHARED if shared else _OF_PODS:
        if kernel_values is not _PROTECTED or not kubelet_protects:
            yield from ((kind, file, kernel) for file, kernel in kernel_values.items())
    if read.level is GroupLevel.POD:
        yield LeftKind.MEMORY, "memory.oom.group", "0"
    if read.level is GroupLevel.BATCH:
        # The kernel gives a group that is idle no more the weight of any other group.
        if read.texts.get("cpu.idle", "0") != "0":
            yield from ((LeftKind.DANGER, file, least) for file, least in _WEIGHTS.items())
        yield from ((LeftKind.QUOTA, file, _without(file, read)) for file in QUOTAS)
    elif read.best_effort:
        yield from ((LeftKind.BATCH, file, _without(file, read)) for file in QUOTAS)
        for of_batch in (_WEIGHTS, _BATCH_MEMORY):
            yield from ((LeftKind.BATCH, file, kernel) for file, kernel in of_batch.items())
    elif read.requested is not None:
        yield from ((LeftKind.QUOTA, file, read.requested) for file in QUOTAS)


def _without(file: str, read: LeftGroup) -> str:
    """No quota, in the notation of the file."""
    if file != "cpu.max":
        return "-1"
    return f"max {read.texts.get(file, '').partition(' ')[2] or '100000'}"


def _same(file: str, value: str, kernel: str) -> bool:
    if value == kernel:
        return True
    if file in _BATCH_MEMORY:
        return value.isdecimal() and int(value) >= _UNLIMITED_BYTES
    return file in QUOTAS and value.startswith("-") and kernel.startswith("-")


def pod_quota(present: CpuQuota, containers: Iterable[tuple[CpuQuota, CpuQuota]]) -> CpuQuota:
    """The quota that a pod has without koordlet, which adds to it what it adds to containers.

    `present`: that of the pod.
    `containers`: what each has, and what the kubelet has requested for it."""
    if present == NO_QUOTA:
        return present
    period = present.period_microseconds
    microseconds, of_containers = present.microseconds, 0
    for has, requested in containers:
        wanted = requested.microseconds * period // requested.period_microseconds
        of_containers += wanted
        if has != NO_QUOTA:
            microseconds -= has.microseconds * period // has.period_microseconds - wanted
    return CpuQuota(max(microseconds, of_containers), period)


def left_cpus(own: CpuSet, above: CpuSet, *, inherits: bool) -> CpuSet | None:
    """The CPUs that a group of BestEffort pods has without koordlet; None if it has these.

    `own`: its own value.
    `above`: the CPUs of all pods.
    `inherits`: whether a group without a value has those of the group above it, as on v2."""
    kernel = EMPTY if inherits else above
    return None if own == kernel or (not own and not inherits) else kernel
