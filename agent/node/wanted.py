"""The values of cgroups that follow from a decision about pods."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from agent.allocate.pools import Decision
from agent.cgroup.order import parent
from agent.model.cpuset import CpuSet
from agent.model.pods import Pod
from agent.model.snapshot import NO_LIMITS, UNLIMITED, CgroupLimits


def cpusets(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CpuSet]:
    """By group: the cpusets of running containers, without hands-off ones."""
    wanted = {}
    for pod in pods:
        of_pod = decision.pods[pod.uid]
        for container in pod.containers:
            cpus = parsed(of_pod.of(container.name).cpuset)
            if container.group is not None and cpus is not None:
                wanted[container.group] = cpus
    return wanted


def sandbox_cpusets(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CpuSet]:
    """By group: the cpusets of pause containers."""
    return {
        sandbox.group: cpus
        for pod in pods
        if (cpus := parsed(decision.pods[pod.uid].each.cpuset)) is not None
        for sandbox in pod.sandboxes
        if sandbox.group is not None
    }


def limits(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CgroupLimits]:
    """By group: the limits of pods, their running containers and sandboxes."""
    wanted = {}
    for pod in pods:
        of_pod = decision.pods[pod.uid]
        for container in (*pod.containers, *pod.sandboxes):
            if container.group is None:
                continue
            of_container = of_pod.of(container.name)
            held = of_container.limits
            if of_container.lifts_quota:
                held = msgspec.structs.replace(held, quota_microseconds=UNLIMITED)
            if held != NO_LIMITS and container.name:
                wanted[container.group] = held
            elif held.mems is not None:
                wanted[container.group] = CgroupLimits(mems=held.mems)
            above = parent(container.group)
            if of_pod.group != NO_LIMITS and pod.uid.replace("-", "_") in above.replace("-", "_"):
                wanted[above] = of_pod.group
    return wanted


@lru_cache(maxsize=1_024)  # hundreds of containers share a handful of cpusets
def parsed(cpuset: str | None) -> CpuSet | None:
    """None for hands off."""
    return None if cpuset is None else CpuSet.parse(cpuset)
