"""CPU priority: which groups of pods are idle, or have another group identity."""

from __future__ import annotations

from typing import Final

from agent.allocate.colocation import priority
from agent.allocate.colocation.priority import KernelPriority
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.node.colocation.moment import Moment
from agent.node.features import WantedFiles

_FILES: Final = {
    priority.BVT: KernelPriority.GROUP_IDENTITY,
    priority.IDLE: KernelPriority.IDLE_GROUPS,
}


class CpuPriority:
    """The strategy `cpuQOS`."""

    name = "cpu-priority"

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._of_kernel: KernelPriority | None = None

    def wanted(self, moment: Moment) -> WantedFiles:
        wanting = [pod for pod in moment.pods if pod.strategies.cpu_qos.enable]
        if not wanting:
            return WantedFiles()
        of_kernel = self._kernel(wanting[0].group)
        if of_kernel is KernelPriority.NEITHER:
            return WantedFiles(problem=f"this kernel has neither {' nor '.join(_FILES)}")
        return WantedFiles(
            {
                (pod.group, file): text
                for pod in wanting
                for file, text in priority.priority(
                    pod.qos, pod.strategies.cpu_qos, of_kernel
                ).items()
            }
        )

    def _kernel(self, group: str) -> KernelPriority:
        """What the kernel has, by the files of a group of a pod."""
        if self._of_kernel is None:
            try:
                self._of_kernel = next(
                    (
                        of_kernel
                        for file, of_kernel in _FILES.items()
                        if self._controllers.read(group, file) is not None
                    ),
                    KernelPriority.NEITHER,
                )
            except CgroupError:  # the group is gone: the next second asks again
                return KernelPriority.NEITHER
        return self._of_kernel
