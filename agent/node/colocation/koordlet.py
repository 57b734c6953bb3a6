"""Takes over a node that koordlet ran, and leaves it alone while koordlet runs.

Each value that koordlet left gets an entry in the journal with the value of the kernel or of the
kubelet as the original one. So a strategy writes over what is there, and whatever no strategy wants
is restored: no pod has, at any moment, less than before and less than it should."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from agent.allocate.colocation import koordlet_left
from agent.allocate.colocation.koordlet_left import GroupLevel, LeftGroup, LeftKind, LeftValue
from agent.allocate.colocation.resctrl import of_koordlet
from agent.cgroup import limits, writer
from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy
from agent.cgroup.journal import Journal, JournalError, Original, OriginalValue
from agent.cgroup.order import WriteState, parent
from agent.cgroup.resctrl import ControlGroups
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota, LinuxResources
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import kube_class
from agent.model.verdict import Code
from agent.node import koordlet_process
from agent.node.features import Key
from agent.rpc.grpc import RpcError
from agent.usage.sampler import kubepods, qos_groups

log = logging.getLogger(__name__)

SEARCH_SECONDS: Final = 10.0
"""How often the processes of the node are searched for a koordlet."""
ABSENT_SECONDS: Final = 30.0
"""A koordlet that has ended may start again, as in an update of its DaemonSet."""
_ROOTS: Final = ("/kubepods", "/kubepods.slice")
"""The kubelet's groups of all pods, where no pod tells it."""
_CPUS: Final = "cpuset.cpus"
_UNKNOWN: Final = KubeletConfiguration("", cpu_manager_policy="static", protects_memory=True)
"""A kubelet that may write the same files."""

Requested = Callable[[Container], CpuQuota | None]
"""Returns the quota that the kubelet has requested for a container; None if there is none. It may
raise RpcError."""


class KoordletTakeover:
    """`blocked` and `take` are called from the thread of the passes.

    `controllers`: they keep no file open, because each is read once.
    `proc`: the procfs of the host.
    `kubelet`: returns the kubelet's configuration; None while it is not known.
    `resctrl`: None on a machine without."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        controllers: Controllers,
        journal: Journal,
        proc: str,
        kubelet: Callable[[], KubeletConfiguration | None],
        requested: Requested,
        resctrl: ControlGroups | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hierarchy = hierarchy
        self._controllers = controllers
        self._journal = journal
        self._proc = proc
        self._kubelet = kubelet
        self._requested = requested
        self._resctrl = resctrl
        self._clock = clock
        self._searched_at = -SEARCH_SECONDS
        self._ran_at: float | None = None
        self._blocked = ""
        self._taken = False

    def blocked(self) -> str:
        """Why the agent must write nothing of colocation: a koordlet would write the same files.
        Empty if none does."""
        now = self._clock()
        if now - self._searched_at < SEARCH_SECONDS:
            return self._blocked
        self._searched_at, self._blocked = now, ""
        process = koordlet_process.find(self._proc)
        on = process and koordlet_process.gates(process.argv, koordlet_process.OF_COLOCATION)
        if process and on:
            self._blocked = f"koordlet runs (process {process.pid}) with {', '.join(on)}"
            self._ran_at, self._taken = now, False
        elif self._ran_at is not None and now - self._ran_at < ABSENT_SECONDS:
            self._blocked = "koordlet has just ended, and may start again"
        return self._blocked

    def take(self, pods: Collection[Pod]) -> Collection[Key]:
        """Looks at all groups of pods, once for each koordlet. Returns the files with a value of
        koordlet. They are in the journal afterwards, to be restored unless a strategy wants another
        value. If it fails, `blocked` has the reason until the next search.

        `pods`: all of the runtime that the agent manages."""
        try:
            return () if self._taken else self._take(pods)
        except (RpcError, JournalError) as error:
            self._blocked = f"what koordlet left is not known: {error}"
            return ()

    def _take(self, pods: Collection[Pod]) -> Collection[Key]:
        """Raises RpcError and JournalError."""
        kubelet = self._kubelet() or _UNKNOWN
        entries = self._journal.values
        values = (
            *koordlet_left.left(
                read(self._controllers, pods, self._requested, entries),
                kubelet_protects=kubelet.protects_memory,
            ),
            *control_groups(self._resctrl, entries),
        )
        keys = [(each.group, each.file) for each in values]
        self._journal.update_values(
            (_entry(each, entries.get(key)) for key, each in zip(keys, values, strict=True)), keys
        )
        dangers = [(each.group, each.file) for each in values if each.kind is LeftKind.DANGER]
        if dangers:
            limits.restore(self._controllers, self._journal, dangers)
        self._widen(pods, static=kubelet.static)
        for each in values:
            log.info("koordlet left a value: %s", each.text)
        self._taken = True
        # Passes write, or restore, the limits of BE pods by their batch resources.
        return [
            key
            for key, each in zip(keys, values, strict=True)
            if each.kind not in (LeftKind.BATCH, LeftKind.DANGER)
        ]

    def _widen(self, pods: Iterable[Pod], *, static: bool) -> None:
        """Gives BestEffort pods all CPUs of pods. Their containers get theirs by a pass.

        `static`: a kubelet with this policy writes the CPUs of containers.

        Raises JournalError."""
        values = tuple(cpus(self._hierarchy, pods, self._journal.originals, static=static))
        groups = [each.group for each in values]
        self._journal.update((Original(each.group, each.kernel) for each in values), groups)
        for each in values:
            log.info("koordlet left a value: %s", each.text)
        wide = {each.group for each in values if each.group in _shared_and_pods(pods)}
        outcome = writer.restore(self._hierarchy, self._journal, only=wide)
        for change in outcome.having(WriteState.FAILED):
            log.warning("%s: %s", change.group, change.note)


def read(
    controllers: Controllers,
    pods: Collection[Pod],
    requested: Requested,
    originals: Mapping[Key, OriginalValue],
) -> Iterator[LeftGroup]:
    """The groups of these pods, and those that all pods share. Of a file in the journal the
    original value counts. Raises RpcError."""
    for root in _roots(controllers, pods):
        burstable, besteffort = qos_groups(root)
        for group, level in (
            (root, GroupLevel.NODE),
            (f"{root}/{burstable}", GroupLevel.SERVICES),
            (f"{root}/{besteffort}", GroupLevel.BATCH),
        ):
            yield LeftGroup(group, level, _texts(controllers, group, originals))
    for pod in pods:
        yield from _of_pod(controllers, pod, requested, originals)


def _of_pod(
    controllers: Controllers,
    pod: Pod,
    requested: Requested,
    originals: Mapping[Key, OriginalValue],
) -> Iterator[LeftGroup]:
    file = limits.QUOTA if controllers.version("cpu") == 1 else limits.MAX
    of_pod = pod_group(pod)
    best_effort = kube_class(of_pod or "") == "besteffort"
    containers: list[tuple[CpuQuota, CpuQuota]] = []
    scaled = batch = False
    for container in _running(pod):
        group = container.group or ""
        texts = _texts(controllers, group, originals)
        of_request = None
        if not best_effort and file in texts and (group, file) not in originals:
            with contextlib.suppress(CgroupError, ValueError):  # a group that is gone
                if (quota := _requested(requested, container)) is not None:
                    resources = LinuxResources(quota=quota)
                    of_request = limits.text(controllers, group, file, resources, texts[file])
                    present = _quota(controllers, group, file, texts[file])
                    containers.append((present, quota))
                    scaled |= not limits.same(file, texts[file], of_request)
        of_container = LeftGroup(group, GroupLevel.CONTAINER, texts, best_effort, of_request)
        batch |= koordlet_left.has_batch_limits(of_container)
        yield of_container
    if of_pod is not None:
        texts, of_request = _texts(controllers, of_pod, originals), None
        if scaled and file in texts and (of_pod, file) not in originals:
            with contextlib.suppress(CgroupError, ValueError):
                present = _quota(controllers, of_pod, file, texts[file])
                resources = LinuxResources(quota=koordlet_left.pod_quota(present, containers))
                of_request = limits.text(controllers, of_pod, file, resources, texts[file])
        yield LeftGroup(of_pod, GroupLevel.POD, texts, batch, of_request)


def cpus(
    hierarchy: Hierarchy,
    pods: Iterable[Pod],
    originals: Mapping[str, Original],
    *,
    static: bool,
) -> Iterator[LeftValue]:
    """The groups of BestEffort pods whose CPUs koordlet has taken.

    `static`: the CPUs of containers are those of a kubelet with this policy."""
    above: dict[str, CpuSet] = {}
    for pod in pods:
        of_pod = pod_group(pod)
        root = of_pod and kubepods(of_pod)
        if not of_pod or not root or kube_class(of_pod) != "besteffort":
            continue
        with contextlib.suppress(CgroupError):  # a group that is gone
            groups = [of_pod] if static else [of_pod, *hierarchy.children(of_pod)]
            if root not in above:
                above[root] = hierarchy.own_cpus(root)
                groups.insert(0, parent(of_pod))
            for group in groups:
                original = originals.get(group)
                if original is not None and original.note is not None:
                    continue  # the agent itself has narrowed it for a moment
                own = CpuSet.parse(original.cpus) if original else hierarchy.own_cpus(group)
                inherits = hierarchy.version == 2
                kernel = koordlet_left.left_cpus(own, above[root], inherits=inherits)
                if kernel is not None:
                    yield LeftValue(LeftKind.CPUS, group, _CPUS, str(own), str(kernel))


def control_groups(
    resctrl: ControlGroups | None, originals: Mapping[Key, OriginalValue]
) -> Iterator[LeftValue]:
    """The groups of resctrl that are not in the journal."""
    if resctrl is None:
        return
    with contextlib.suppress(CgroupError):  # it can't be listed
        for name in sorted(of_koordlet(resctrl.names())):
            group = f"/{name}"
            if (group, limits.SCHEMATA) not in originals:
                present = resctrl.read(group, limits.SCHEMATA)
                yield LeftValue(LeftKind.CACHE, group, limits.SCHEMATA, present, "")


def pod_group(pod: Pod) -> str | None:
    """The group of a pod; None while none of its containers has one."""
    running = (*_running(pod), *pod.sandboxes)
    return next((parent(each.group) for each in running if each.group is not None), None)


def _running(pod: Pod) -> Iterator[Container]:
    for each in pod.containers:
        if each.state is ContainerState.RUNNING and each.group is not None and not each.virtual:
            yield each


def _shared_and_pods(pods: Iterable[Pod]) -> set[str]:
    groups = {group for pod in pods if (group := pod_group(pod)) is not None}
    return groups | {parent(group) for group in groups}


def _roots(controllers: Controllers, pods: Iterable[Pod]) -> list[str]:
    of_pods = {group and kubepods(group) for group in map(pod_group, pods)}
    roots = sorted(root for root in of_pods if root)
    return roots or [root for root in _ROOTS if controllers.has(root, limits.IDLE)]


def _texts(
    controllers: Controllers, group: str, originals: Mapping[Key, OriginalValue]
) -> dict[str, str]:
    texts = {}
    for file in koordlet_left.FILES:
        entry = originals.get((group, file))
        with contextlib.suppress(CgroupError):  # a controller or a group that does not exist
            if (text := controllers.read(group, file)) is not None:
                texts[file] = text if entry is None else limits.original(entry, text)
    return texts


def _entry(value: LeftValue, before: OriginalValue | None) -> OriginalValue:
    """The entry of a file with a value of koordlet. The kernel changes the weight of a group that
    is idle no more, and the caches of a group of resctrl."""
    changes = (before is not None and not before.written) or value.kind is LeftKind.CACHE
    if changes or (value.kind is LeftKind.DANGER and value.file != limits.IDLE):
        return OriginalValue(value.group, value.file, value.kernel)
    written = before.written if before else ()
    return OriginalValue(value.group, value.file, value.kernel, (*written, value.value))


def _requested(requested: Requested, container: Container) -> CpuQuota | None:
    """None for a container that has just ended. Raises RpcError."""
    try:
        return requested(container)
    except RpcError as error:
        if error.code == Code.NOT_FOUND:
            return None
        raise


def _quota(controllers: Controllers, group: str, file: str, text: str) -> CpuQuota:
    """Raises CgroupError."""
    quota = limits.parsed(controllers, group, {file: text}).quota
    if quota is None:
        raise CgroupError(f"{group!r} has no quota")
    return quota
