"""Core scheduling: which pods share cores with which, for the hardware threads of a core."""

from __future__ import annotations

from collections import Counter

from agent.allocate.colocation.core_scheduling import core_group
from agent.cgroup.core_scheduling import CoreGroups
from agent.cgroup.limits import CORE_GROUP
from agent.node.colocation.moment import Moment
from agent.node.features import Key, WantedFiles


class CoreScheduling:
    """The strategy `cpuQOS` with the policy `coreSched`, and the labels
    `koordinator.sh/core-sched-group-id` and `koordinator.sh/core-sched-policy` of pods."""

    name = "core-scheduling"

    def __init__(self, groups: CoreGroups) -> None:
        self._groups = groups

    def wanted(self, moment: Moment) -> WantedFiles:
        if moment.strategies.slo.resource_qos_strategy.policies.cpu_policy != "coreSched":
            return WantedFiles()
        files: dict[Key, str] = {}
        members: Counter[str] = Counter()
        for pod in moment.pods:
            group = core_group(pod.uid, pod.qos, pod.api_pod.labels, pod.strategies.cpu_qos)
            if group is not None:
                files |= {(cgroup, CORE_GROUP): group for cgroup in pod.containers.values()}
                members[group] += 1
        if files and (problem := self._groups.problem()):
            return WantedFiles(problem=problem)
        return WantedFiles(
            files,
            notes=tuple(
                f"group {group} has {number} {'pod' if number == 1 else 'pods'}"
                for group, number in sorted(members.items())
            ),
        )
