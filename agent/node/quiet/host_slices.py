"""The host's own processes leave the CPUs of owners: the groups beside those of pods, as
`/system.slice`, `/user.slice` and `/init.scope`, and the pause containers of all pods."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from agent.allocate.quiet.host_slices import HostGroup, narrowed, stuck
from agent.cgroup import limits, names
from agent.cgroup.hierarchy import CPUS, Controllers, GroupGone, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.limits import PARTITION, SLICE_CPUS
from agent.cgroup.order import ancestors
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.pod.pods import Pod
from agent.model.pod.qos import DEFAULT_POOL, pool_cpus
from agent.node.features import MOST_NAMED, Key, WantedFiles
from agent.node.quiet.moment import QuietMoment

HOST_SLICES: Final = "host-slices"
MOST_GROUPS: Final = 256
"""So many groups of the host are moved at most."""
_FIRST_PROCESS: Final = 1
_MEMBER: Final = "member"


class HostSlices:
    """On v1, where a group's CPUs contain those of the groups in it, all groups are written; on v2
    the first ones below `/`, and those beside pods."""

    name = HOST_SLICES

    def __init__(self, controllers: Controllers, hierarchy: Hierarchy, journal: Journal) -> None:
        self._controllers = controllers
        self._hierarchy = hierarchy
        self._journal = journal

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        """Raises CgroupError."""
        if not moment.quiet(self.name):
            return WantedFiles(self._beside_partitions(moment))
        left = moment.left(self.name)
        if not left:
            text = "owners have all CPUs, and the host's processes need some"
            return WantedFiles(problem=text)
        left = left - self._of_partitions(moment.pods) - moment.chain or left
        groups, problems = self._groups(moment.pods)
        if self._hierarchy.group_of(_FIRST_PROCESS) == "/":
            of_all = f"the processes in the group / of cgroup v{self._hierarchy.version}"
            problems = (*problems, f"{of_all} stay on all CPUs")
        cpus = narrowed(groups, left)
        if staying := stuck(groups, cpus):
            text = "the groups above them have no CPU that is left"
            problems = (*problems, f"{_named(staying)} stay: {text}")
        files = {(group, SLICE_CPUS): str(own) for group, own in cpus.items()}
        notes = [f"the host's groups run on CPUs {left}"]
        if pauses := pause_cpus(moment):
            notes.append(f"pause containers run on CPUs {pauses}")
        elif moment.chain:
            notes.append("pause containers stay in their pods, which are partitions of a chain")
        return WantedFiles(files, "; ".join(problems), tuple(notes))

    def _beside_partitions(self, moment: QuietMoment) -> dict[Key, str]:
        """What groups have that inherited their CPUs, as long as partitions have some: a group with
        processes can't inherit again, and would stay without these. Raises CgroupError."""
        inherited = [
            key
            for key in self._journal.files
            if key[1] == SLICE_CPUS and (entry := self._journal.value(*key)) and not entry.value
        ]
        if not inherited or moment.topology is None:
            return {}
        effective = self._hierarchy.effective_cpus("/")
        if moment.topology.online <= effective:
            return {}
        return dict.fromkeys(inherited, str(effective))

    def _of_partitions(self, pods: Iterable[Pod]) -> CpuSet:
        """The CPUs of partitions below `/` in which pods are, also of invalid ones: no other group
        can use them, and the kernel (as 6.1) ends a partition if another group lists one. Raises
        CgroupError."""
        _, above_pods = _groups_of(pods)
        cpus = EMPTY
        for group in self._hierarchy.children("/"):
            with contextlib.suppress(GroupGone):
                if (names.of_pods(group) or group in above_pods) and self._is_partition(group):
                    cpus |= self._hierarchy.own_cpus(group)
        return cpus

    def _groups(self, pods: Iterable[Pod]) -> tuple[dict[str, HostGroup], tuple[str, ...]]:
        """The groups, and what can't be moved. Raises CgroupError."""
        of_pods, above_pods = _groups_of(pods)
        groups: dict[str, HostGroup] = {}
        staying: dict[str, list[str]] = {}
        waiting = deque(self._hierarchy.children("/"))
        while waiting:
            group = waiting.popleft()
            if names.of_pods(group) or group in of_pods:
                continue
            if len(groups) == MOST_GROUPS:
                return groups, (f"the host has more than {MOST_GROUPS} groups",)
            try:
                if reason := self._stays(group):
                    if group not in above_pods:
                        staying.setdefault(reason, []).append(group)
                    continue
                own = self._own_cpus(group)
                if own is None:
                    continue
                groups[group] = HostGroup(own, group in above_pods)
                if self._hierarchy.version == 1 or group in above_pods:
                    waiting += self._hierarchy.children(group)
            except GroupGone:
                groups.pop(group, None)
        return groups, tuple(f"{_named(those)} {reason}" for reason, those in staying.items())

    def _stays(self, group: str) -> str:
        """Why the group stays where it is; "" where it need not. Raises CgroupError, GroupGone."""
        if self._is_partition(group):
            return "stay: they are partitions of another program"
        if self._hierarchy.version == 2 and self._controllers.read(group, CPUS) is None:
            return "stay: the group above has no cpuset in its cgroup.subtree_control"
        return ""

    def _is_partition(self, group: str) -> bool:
        """Raises CgroupError, GroupGone."""
        return (self._controllers.read(group, PARTITION) or _MEMBER) != _MEMBER

    def _own_cpus(self, group: str) -> CpuSet | None:
        """Those that the group has without the agent; None where no process can be in it. Raises
        CgroupError, GroupGone."""
        present = self._controllers.read(group, SLICE_CPUS) or ""
        entry = self._journal.value(group, SLICE_CPUS)
        own = CpuSet.parse(present if entry is None else limits.original(entry, present))
        return None if self._hierarchy.version == 1 and not own else own


def pause_cpus(moment: QuietMoment) -> CpuSet:
    """Where pause containers run: on the CPUs that are left and that pods share. Empty while no
    owner asks, if there are none, and in a chain, whose partitions are whole pods."""
    if moment.decision is None or moment.chain or not moment.quiet(HOST_SLICES):
        return EMPTY
    pool = pool_cpus(moment.decision.pools.get(DEFAULT_POOL.name, ()))
    return moment.left(HOST_SLICES) & pool


def _groups_of(pods: Iterable[Pod]) -> tuple[Collection[str], Collection[str]]:
    """The groups of their containers and pause containers, and the groups above these."""
    of_pods = {
        each.group
        for pod in pods
        for each in (*pod.containers, *pod.sandboxes)
        if each.group is not None
    }
    return of_pods, {above for group in of_pods for above in ancestors(group)}


def _named(groups: Collection[str]) -> str:
    """The first of them."""
    first = sorted(groups)[:MOST_NAMED]
    more = len(groups) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
