"""Memory QoS: what protects and throttles memory of pods, and reclaim from batch containers."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from agent.allocate.colocation import memory_qos
from agent.allocate.colocation.memory_qos import MemoryProtection, MemoryValues
from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.linux_resources import UNLIMITED
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.node.features import Key, WantedFiles
from agent.usage.sampler import kubepods, qos_groups

RECLAIM: Final = "memory.reclaim"
_USED: Final = limits.USE[limits.MEMORY_MAX]
_MOST_IN_A_SECOND: Final = 8 * memory_qos.RECLAIMED_BYTES
"""Of all containers: the pass waits until the kernel has reclaimed them."""
_MOST_SECONDS: Final = 0.25
"""The same: after so long no further container is asked for memory. Swap may be slow."""
_NO_RECLAIM: Final = f"this kernel has no {RECLAIM}, which Linux has since 5.19"


class PodMemoryQos:
    """The strategy `memoryQOS`.

    `allocatable_bytes`: returns the node's allocatable memory; None while it is not known.
    `kubelet`: returns the kubelet's configuration; None while it is not known.
    `acts`: False reclaims nothing."""

    name = "memory-qos"

    def __init__(
        self,
        controllers: Controllers,
        allocatable_bytes: Callable[[], int | None],
        kubelet: Callable[[], KubeletConfiguration | None],
        clock: Callable[[], float] = time.monotonic,
        *,
        acts: bool,
    ) -> None:
        self._controllers = controllers
        self._clock = clock
        self._allocatable_bytes = allocatable_bytes
        self._kubelet = kubelet
        self._acts = acts
        self._made_of: object = None
        self._files: dict[Key, str] = {}
        self._reason = ""
        self._reclaimable: list[tuple[str, MemoryValues]] = []
        self._first = 0
        self.above_mark_bytes = 0
        """The use above their marks of the containers of which the last second has read it; 0 only
        if no container is above its mark, or nothing is reclaimed."""

    def wanted(self, moment: Moment) -> WantedFiles:
        pods = [pod for pod in moment.pods if pod.strategies.memory_qos.enable]
        self.above_mark_bytes = 0
        if not pods:
            return WantedFiles()
        version = self._controllers.version("memory")
        if version != 2:
            has = "no memory controller" if version is None else "that of cgroup v1"
            return WantedFiles(problem=f"the memory controller of cgroup v2 is needed, not {has}")
        allocatable = self._allocatable_bytes()
        if allocatable is None:
            return WantedFiles(problem="the allocatable memory of the node is not known")
        made_of = (moment.pods, allocatable, self._kubelet())
        if made_of != self._made_of:
            self._made_of = made_of
            self._follow(pods, allocatable, made_of[2])
        highs, reclaim_problem = self._reclaim()
        problem = "; ".join(filter(None, (self._reason, reclaim_problem)))
        return WantedFiles(self._files | highs, problem)

    def _follow(
        self, pods: list[ColocatedPod], allocatable: int, kubelet: KubeletConfiguration | None
    ) -> None:
        protection = memory_qos.wanted(
            [(pod.api_pod, pod.strategies.memory_qos) for pod in pods],
            allocatable,
            page_bytes=resource.getpagesize(),
            kubelet_protects=kubelet is None or kubelet.protects_memory,
            kubelet_kills_single=kubelet is None or kubelet.kills_single_process,
        )
        groups = list(_groups(pods, protection))
        self._files = {
            (group, file): text for group, values in groups for file, text in _texts(values)
        }
        self._reclaimable = [
            (group, values)
            for group, values in groups
            if (values.high_bytes, values.mark_bytes) != (None, None)
        ]
        self._reason = protection.reason
        if kubelet is None:
            self._reason = "the kubelet's configuration is not known: it may set the same files"

    def _reclaim(self) -> tuple[dict[Key, str], str]:
        """The next `memory.high` of containers, and a problem. Each second another container is the
        first to be reclaimed from."""
        highs: dict[Key, str] = {}
        problem = ""
        left, began = _MOST_IN_A_SECOND, self._clock()
        above = 0
        self._first = (self._first + 1) % max(1, len(self._reclaimable))
        turns = (*self._reclaimable[self._first :], *self._reclaimable[: self._first])
        for group, values in turns:
            try:
                lost = 0
                if values.high_bytes is not None:
                    high, lost = self._next_high(group, values.high_bytes, left)
                    highs[group, limits.MEMORY_HIGH] = high
                if values.mark_bytes is not None and left and not lost and self._acts:
                    used = self._used(group)
                    above += max(0, used - values.mark_bytes)
                    lost = min(left, memory_qos.reclaimed(values, used))
                    if lost:
                        self._write(group, lost)
                        if self._clock() - began >= _MOST_SECONDS:
                            left = 0
                left = max(0, left - lost)
            except GroupGone:
                continue
            except (CgroupError, ValueError) as error:
                problem = str(error)
        self.above_mark_bytes = above
        return highs, problem

    def _next_high(self, group: str, wanted: int, left: int) -> tuple[str, int]:
        """The content of `memory.high`, and the bytes that its write reclaims. Without bytes left
        it stays. Raises CgroupError, ValueError."""
        text = self._controllers.read(group, limits.MEMORY_HIGH) or "max"
        amount = limits.memory_of(text)
        present = None if amount == UNLIMITED else amount
        if present is not None and present <= wanted:
            return str(wanted), 0
        if not left:
            return text, 0
        used = self._used(group)
        high = memory_qos.lowered(wanted, present, used)
        return str(high), max(0, used - high)

    def _used(self, group: str) -> int:
        """Raises CgroupError, GroupGone, ValueError."""
        return int(self._controllers.read(group, _USED) or 0)

    def _write(self, group: str, reclaimed_bytes: int) -> None:
        """Raises CgroupError, GroupGone."""
        try:
            self._controllers.write(group, RECLAIM, str(reclaimed_bytes))
        except GroupGone:
            raise
        except CgroupError as error:
            number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
            if number == errno.ENOENT:
                raise CgroupError(_NO_RECLAIM) from error
            if number != errno.EAGAIN:  # the kernel has reclaimed what it could
                raise


def _groups(
    pods: Iterable[ColocatedPod], protection: MemoryProtection
) -> Iterator[tuple[str, MemoryValues]]:
    root = next((root for pod in pods if (root := kubepods(pod.group))), None)
    if root is not None:
        yield root, protection.root
        burstable, besteffort = qos_groups(root)
        classes = protection.classes
        yield f"{root}/{burstable}", classes.get("burstable", memory_qos.NO_VALUES)
        yield f"{root}/{besteffort}", classes.get("besteffort", memory_qos.NO_VALUES)
    for pod in pods:
        if (of_pod := protection.pods.get(pod.api_pod.uid)) is not None:
            yield pod.group, of_pod.group
            for name, group in pod.containers.items():
                yield group, of_pod.containers.get(name, memory_qos.NO_VALUES)


def _texts(values: MemoryValues) -> Iterator[tuple[str, str]]:
    for file, value in (
        (limits.MEMORY_MIN, values.min_bytes),
        (limits.MEMORY_LOW, values.low_bytes),
        (limits.OOM_GROUP, 1 if values.oom_group else None),
    ):
        if value is not None:
            yield file, str(value)
