"""Cache and memory bandwidth: the control groups of QoS classes and of single pods in resctrl."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.colocation import resctrl as groups
from agent.allocate.colocation.resctrl import (
    AMD_WHOLE,
    CLASS_GROUPS,
    POD_PREFIX,
    CacheWays,
    MemoryBandwidth,
    ResctrlGroups,
    ResctrlMachine,
    ResctrlParts,
    ResctrlPod,
)
from agent.cgroup import resctrl
from agent.cgroup.hierarchy import CgroupError, GroupGone
from agent.cgroup.journal import Journal
from agent.cgroup.limits import RESCTRL_GROUP, SCHEMATA
from agent.cgroup.resctrl import ControlGroups
from agent.host.files import Tree, reason
from agent.model.node_slo import ResctrlQos
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.node.features import CHECK_SECONDS, Key, WantedFiles
from agent.usage.pod_strategies import CLASS_FIELDS, PodResctrl

RETRY_SECONDS: Final = 60.0
"""The time until a kernel that had no group left is asked for one again."""
_MOST_NAMED: Final = 5
_PERCENT: Final = 100
_AMD_UNLIMITED: Final = 2048
"""The value of a group of AMD without a limit, at least."""


class CacheAndBandwidth:
    """The strategy `resctrlQOS`, and the annotation `node.koordinator.sh/resctrl` of pods.

    `journal`: has the groups that the agent has made."""

    name = "resctrl"

    def __init__(
        self,
        resctrl: ControlGroups,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resctrl = resctrl
        self._journal = journal
        self._clock = clock
        self._made_of: tuple[object, object] = (None, None)
        self._made_at = 0.0
        self._full_since: float | None = None
        self._wanted = WantedFiles()

    def wanted(self, moment: Moment) -> WantedFiles:
        slo, now = moment.strategies.slo.resource_qos_strategy, self._clock()
        changed = moment.pods is not self._made_of[0] or slo is not self._made_of[1]
        if changed or now - self._made_at >= CHECK_SECONDS:
            classes: dict[str, ResctrlQos] = {
                group: getattr(slo, CLASS_FIELDS[qos]).resctrl_qos
                for qos, group in CLASS_GROUPS.items()
            }
            self._made_of, self._made_at = (moment.pods, slo), now
            self._wanted = self._groups(classes, moment.pods)
        return self._wanted

    def _groups(
        self, classes: Mapping[str, ResctrlQos], pods: Collection[ColocatedPod]
    ) -> WantedFiles:
        wanting = any(qos.enable for qos in classes.values()) or any(
            pod.strategies.resctrl is not None for pod in pods
        )
        if not wanting:
            return WantedFiles()
        if not self._resctrl.mounted():
            return WantedFiles(problem=f"resctrl is not mounted on /{resctrl.FOLDER}")
        try:
            return self._of_machine(classes, pods)
        except (CgroupError, OSError, ValueError) as error:
            text = reason(error) if isinstance(error, OSError) else str(error)
            return WantedFiles(problem=f"resctrl can't be read: {text}")

    def _of_machine(
        self, classes: Mapping[str, ResctrlQos], pods: Collection[ColocatedPod]
    ) -> WantedFiles:
        """Raises CgroupError, OSError, ValueError."""
        present = self._resctrl.names()
        own_groups = {
            group.removeprefix("/")
            for (group, file), original in self._journal.values.items()
            if file == SCHEMATA and not original.value
        }
        possible = {group for group, qos in classes.items() if qos.enable} | {
            f"{POD_PREFIX}{pod.uid}" for pod in pods if pod.strategies.resctrl is not None
        }
        of_machine = groups.wanted(
            self._room(machine(Tree(self._resctrl.path)), len(present)),
            classes,
            [
                ResctrlPod(pod.uid, pod.title, pod.qos, parts(pod.strategies.resctrl))
                for pod in pods
            ],
            present=present,
            others=len(present - possible - own_groups),
        )
        foreign = {
            each
            for each in present - possible - own_groups - {*classes}
            if not each.startswith(POD_PREFIX)
        }
        files: dict[Key, str] = {
            (f"/{group}", SCHEMATA): text for group, text in of_machine.schemata.items()
        }
        faults, members = list(of_machine.faults), dict(of_machine.members)
        self._resctrl.look()
        for pod in pods:
            if (group := members.get(pod.uid)) is None:
                continue
            cgroups = (*pod.containers.values(), *pod.sandboxes)
            if foreign and (other := self._foreign(foreign, cgroups)) is not None:
                del members[pod.uid]
                faults.append(
                    f"Pod {pod.title} stays in the group {other}, which another program has made."
                )
                continue
            files |= {(cgroup, RESCTRL_GROUP): f"/{group}" for cgroup in cgroups}
        return WantedFiles(files, _few(faults), tuple(_notes(of_machine, members)))

    def _room(self, stated: ResctrlMachine, present: int) -> ResctrlMachine:
        """The machine, with no more groups than it has now for a while after the kernel has made no
        further one: monitoring has bounds too."""
        if not self._resctrl.full:
            self._full_since = None
            return stated
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since >= RETRY_SECONDS:
            self._resctrl.full = False
            return stated
        return msgspec.structs.replace(stated, groups=min(stated.groups, present + 1))

    def _foreign(self, foreign: Collection[str], cgroups: Iterable[str]) -> str | None:
        """The group of another program in which threads of the cgroups are. Raises CgroupError."""
        by_thread = self._resctrl.groups()
        for cgroup in cgroups:
            try:
                threads = self._resctrl.threads(cgroup)
            except GroupGone:
                continue
            for thread in threads:
                group = by_thread.get(thread, resctrl.ROOT).removeprefix("/")
                if group in foreign:
                    return group
        return None


def machine(tree: Tree) -> ResctrlMachine:
    """What resctrl states about the machine.

    `tree`: the mount point.

    Raises OSError, ValueError."""
    domains = resctrl.parts(tree.text("schemata") or "")
    caches: dict[str, CacheWays] = {
        name: CacheWays(
            tuple(sorted(domains[name])),
            int(tree.text(f"info/{name}/cbm_mask") or "0", 16),
            int(tree.text(f"info/{name}/min_cbm_bits") or "1"),
        )
        for name in resctrl.CACHES
        if name in domains
    }
    numbers = [
        int(number)
        for name in tree.names("info")
        if (number := tree.text(f"info/{name}/num_closids")) is not None
    ]
    return ResctrlMachine(caches, _bandwidth(tree, domains), min(numbers, default=1))


def _bandwidth(tree: Tree, domains: Mapping[str, Mapping[int, int]]) -> MemoryBandwidth | None:
    """Only AMD has limits that do not delay in steps, and states them in eighths of a GB/s. Values
    above 100 are otherwise those of the mount option `mba_MBps`: nothing states what 100 percent
    of them are. Raises OSError, ValueError."""
    values = domains.get(resctrl.BANDWIDTH)
    if not values:
        return None
    folder = f"info/{resctrl.BANDWIDTH}"
    least = int(tree.text(f"{folder}/min_bandwidth") or "0")
    step = int(tree.text(f"{folder}/bandwidth_gran") or "1")
    most, whole = max(values.values()), _PERCENT
    bandwidth = MemoryBandwidth(tuple(sorted(values)), _PERCENT, max(1, least), max(1, step))
    if tree.text(f"{folder}/delay_linear") == "0":
        most, whole = max(most, _AMD_UNLIMITED), AMD_WHOLE
        return msgspec.structs.replace(bandwidth, unlimited=most, whole=whole)
    if most > _PERCENT:
        return msgspec.structs.replace(bandwidth, unlimited=most, whole=None)
    return bandwidth


def parts(of_pod: PodResctrl | None) -> ResctrlParts | None:
    """The parts that an annotation gives."""
    if of_pod is None:
        return None
    llc, mb = of_pod.llc, of_pod.mb
    return ResctrlParts(
        llc.schemata.range if llc and llc.schemata else None,
        {each.cache_id: each.range for each in llc.schemata_per_cache if each.range is not None}
        if llc
        else {},
        mb.schemata.percent if mb and mb.schemata else None,
        {each.cache_id: each.percent for each in mb.schemata_per_cache if each.percent is not None}
        if mb
        else {},
    )


def _notes(of_machine: ResctrlGroups, members: Mapping[str, str]) -> Iterator[str]:
    for group, text in of_machine.schemata.items():
        number = sum(of_pod == group for of_pod in members.values())
        yield f"group {group} has {text}, for {number} {'pod' if number == 1 else 'pods'}"


def _few(faults: list[str]) -> str:
    left = len(faults) - _MOST_NAMED
    more = [f"{left} more of them."] if left > 0 else []
    return " ".join((*faults[:_MOST_NAMED], *more))
