"""From what pods get to what their groups get."""

from __future__ import annotations

from functools import lru_cache

from agent.allocate.pools import Decision
from agent.model.cpuset import CpuSet
from agent.model.pods import Pod


def cpusets(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CpuSet]:
    """By group: what running containers and sandboxes are to have; nothing for hands off."""
    wanted = {}
    for pod in pods:
        of_pod = decision.pods[pod.uid]
        for container in (*pod.containers, *pod.sandboxes):
            cpus = parsed(of_pod.of(container.name).cpuset)
            if container.group is not None and cpus is not None:
                wanted[container.group] = cpus
    return wanted


@lru_cache(maxsize=1_024)  # hundreds of containers share a handful of cpusets
def parsed(cpuset: str | None) -> CpuSet | None:
    """None for hands off."""
    return None if cpuset is None else CpuSet.parse(cpuset)
