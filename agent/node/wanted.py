"""From what pods get to what their groups get."""

from __future__ import annotations

from agent.allocate.pools import Decision
from agent.model.cpuset import CpuSet
from agent.model.pods import Pod


def cpusets(pods: tuple[Pod, ...], decision: Decision) -> dict[str, CpuSet]:
    """By group: what running containers and sandboxes are to have; nothing for hands off."""
    parsed: dict[str, CpuSet] = {}
    wanted = {}
    for pod in pods:
        text = decision.pods[pod.uid].cpuset
        if text is None:
            continue
        cpus = parsed.get(text)
        if cpus is None:
            cpus = parsed[text] = CpuSet.parse(text)
        for container in (*pod.containers, *pod.sandboxes):
            if container.group is not None:
                wanted[container.group] = cpus
    return wanted
