"""Drift of a running container: what its pod's annotation, the kubelet's checkpoint and the agent's
snapshot say, and what its cgroup, its processes and the runtime's status have."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.allocate.device_holders import reported_devices
from agent.allocate.device_holders.reported_devices import Carriers
from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cgroup.names import absolute, of_cpuset, own_root
from agent.host import processes
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.devices.visibility import Visibility
from agent.model.pod.annotations import AnnotationError, resource_status
from agent.model.pod.pods import Container, Pod
from agent.model.pod.qos import QoS
from agent.model.snapshot import NOTHING, Owner, PodWanted
from agent.node.violations import may_hold

_NVIDIA: Final = "nvidia.com/"


class ObservedContainer(msgspec.Struct, frozen=True):
    """One running container and its CPUs by each source, None where the source has none."""

    pod_uid: str
    title: str
    qos: QoS
    claimed: CpuSet | None = None
    """By its pod's annotation."""
    kubelet: CpuSet | None = None
    """By the kubelet's checkpoint."""
    wanted: CpuSet | None = None
    """By the agent's snapshot."""
    group: CpuSet | None = None
    """The effective cpuset of its cgroup."""
    processes: CpuSet | None = None
    """The union of its processes' affinities."""
    problem: str = ""
    """Why the agent does not honor the pod's claim, or why the annotation can't be read."""
    wanted_mems: CpuSet | None = None
    """The NUMA nodes by the snapshot."""
    mems: CpuSet | None = None
    """The NUMA nodes by the cgroup."""
    devices_missing: tuple[str, ...] = ()
    """The allocated devices that the container does not have."""
    devices_foreign: tuple[str, ...] = ()
    """The GPUs that it has instead."""
    variables: tuple[str, ...] = ()
    """The names of variables with other values than decided."""


class DriftKind(enum.StrEnum):
    """The kinds of findings; scripts may rely on the values."""

    CLAIM = "claim-not-honoured"
    CLAIM_UNSEEN = "claim-not-seen-by-agent"
    NO_GROUP = "no-cgroup"
    GROUP = "cgroup-differs"
    PROCESSES = "processes-outside-cgroup"
    KUBELET = "kubelet-differs"
    OVERLAP = "overlap"
    MEMORY_NODES = "memory-nodes-differ"
    DEVICES = "devices-differ"
    ENVIRONMENT = "environment-differs"


DRIFT_REMEDIES: Final = {
    DriftKind.CLAIM: "correct the pod's annotation or its limits, or delete the pod so that it is "
    "scheduled anew",
    DriftKind.CLAIM_UNSEEN: "read the agent's /readyz, and start it without --standalone",
    DriftKind.NO_GROUP: "restart the container: the runtime lists it, and the kernel has no group",
    DriftKind.GROUP: "find who else writes cpusets (docs/kubelet.md), or read in the agent's "
    "log why the kernel refuses",
    DriftKind.PROCESSES: "restart the container, or do not set affinities outside of its CPUs",
    DriftKind.KUBELET: "find who else writes cpusets (docs/kubelet.md), and restart the pod",
    DriftKind.OVERLAP: "read in the agent's log why it can't move the container, or delete its pod",
    DriftKind.MEMORY_NODES: "restart the container; with --migrate-memory the agent moves pages of "
    "running containers",
    DriftKind.DEVICES: "delete the pod so that it is created anew behind the proxy or the NRI "
    "plugin (docs/devices.md)",
    DriftKind.ENVIRONMENT: "delete the pod so that it is created anew behind the proxy or the NRI "
    "plugin (docs/devices.md)",
}


_WARNINGS: Final = frozenset({DriftKind.CLAIM, DriftKind.CLAIM_UNSEEN})
"""What the author of a pod can cause by its annotations."""


class Finding(msgspec.Struct, frozen=True):
    """A difference between two sources, as CPU lists, where two can be compared."""

    kind: DriftKind
    container: str
    expected: str = ""
    found: str = ""
    detail: str = ""
    """An explanation, such as the owner of the CPUs that overlap."""

    @property
    def remedy(self) -> str:
        return DRIFT_REMEDIES[self.kind]

    @property
    def severity(self) -> str:
        """error or warning."""
        return "warning" if self.kind in _WARNINGS else "error"


def findings(seen: Sequence[ObservedContainer], owners: Sequence[Owner]) -> tuple[Finding, ...]:
    """`owners` of the agent's snapshot, none without one."""
    drifts: list[Finding] = []
    for each in seen:
        drifts += _of_container(each, owners)
    return tuple(drifts)


def _of_container(seen: ObservedContainer, owners: Sequence[Owner]) -> list[Finding]:
    drifts: list[Finding] = []

    def add(
        kind: DriftKind,
        expected: CpuSet | None = None,
        actual: CpuSet | None = None,
        detail: str = "",
    ) -> None:
        texts = ["" if cpus is None else str(cpus) for cpus in (expected, actual)]
        drifts.append(Finding(kind, seen.title, texts[0], texts[1], detail))

    own = next((owner.cpus for owner in owners if owner.uid == seen.pod_uid), None)
    if seen.problem:
        add(DriftKind.CLAIM, seen.claimed, seen.group, seen.problem)
    elif seen.claimed and own is None:
        add(DriftKind.CLAIM_UNSEEN, seen.claimed, seen.group)
    elif seen.claimed and own is not None and (lost := seen.claimed - own):
        # An owner may have more: CPUs of its ResourceClaims.
        add(DriftKind.CLAIM, seen.claimed, own, f"CPUs {lost} are not online")
    if seen.group is None:
        add(DriftKind.NO_GROUP)
        return drifts
    wanted = seen.wanted
    if wanted is None and seen.kubelet:
        if seen.kubelet != seen.group:
            add(DriftKind.KUBELET, seen.kubelet, seen.group)
    elif wanted is not None and wanted != seen.group:
        add(DriftKind.GROUP, wanted, seen.group)
    if seen.processes is not None and not seen.processes <= seen.group:
        add(DriftKind.PROCESSES, seen.group, seen.processes)
    for owner in owners:
        common = seen.group & owner.cpus
        if common and not may_hold(seen.pod_uid, seen.qos, owner):
            add(DriftKind.OVERLAP, None, common, f"{owner.title} owns them")
    if seen.wanted_mems and seen.mems is not None and seen.wanted_mems != seen.mems:
        add(DriftKind.MEMORY_NODES, seen.wanted_mems, seen.mems)
    if seen.devices_missing or seen.devices_foreign:
        missing, foreign = map(", ".join, (seen.devices_missing, seen.devices_foreign))
        drifts.append(Finding(DriftKind.DEVICES, seen.title, missing, foreign))
    if seen.variables:
        # Not the values: others may have put secrets there.
        detail = f"not the decided value: {', '.join(seen.variables)}"
        drifts.append(Finding(DriftKind.ENVIRONMENT, seen.title, detail=detail))
    return drifts


def device_drift(
    visible: Visibility, carriers: Carriers
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Three differences between a decision (`visible`) and what a container shows: the allocated
    devices that it does not have, the GPUs that it has instead, and the names of variables with
    other values."""
    if visible.refused:
        return (), (), ()
    missing, foreign = [], []
    gpus = visible.gpus or ()
    if gpus:
        shown = {
            name
            for each in reported_devices.of_carriers("", "", carriers)
            if not each.resource or each.resource.startswith(_NVIDIA)
            for name in each.names
            if not name.startswith("/")
        }
        own = {name for each in gpus for name in (each.uuid, each.index)}
        missing = [each.uuid for each in gpus if not {each.uuid, each.index} & shown]
        foreign = sorted(shown - own)
    if not carriers.privileged:
        nodes = set(carriers.nodes)
        missing += [
            each.path for kind in visible.nodes.values() for each in kind if each.path not in nodes
        ]
    environment = dict(carriers.environment)
    variables = [name for name, value in visible.environment if environment.get(name) != value]
    return tuple(missing), tuple(foreign), tuple(variables)


def own_numbers(proc: str) -> bool:
    """Whether the procfs numbers processes as this process's PID namespace does, in which the
    kernel lists the processes of a cgroup. In a container the host's procfs does not."""
    try:
        return os.readlink(f"{proc}/self") == str(os.getpid())
    except OSError:
        return False


def members(hierarchy: Hierarchy) -> Callable[[str], Sequence[int]]:
    """Returns a function from a group to its processes, by their numbers in the hierarchy's procfs;
    none without a procfs. The function raises CgroupError."""
    if own_numbers(hierarchy.proc):
        return hierarchy.processes
    of_process = group_reader(hierarchy)
    pids: Sequence[int] = ()
    with contextlib.suppress(OSError):  # no procfs: the processes are not known
        pids = processes.pids(hierarchy.proc)
    by_group: dict[str, list[int]] = {}
    for pid in pids:
        if (group := of_process(pid)) is not None:
            by_group.setdefault(group, []).append(pid)
    return lambda group: by_group.get(group, ())


def group_reader(hierarchy: Hierarchy) -> Callable[[int], str | None]:
    """Returns a function from a process of the hierarchy's procfs to its group, also where this
    process is in another cgroup namespace; None for one that has ended or is outside."""
    own = own_root(hierarchy)

    def of_process(pid: int) -> str | None:
        try:
            with Process(hierarchy.proc, pid) as process:
                group = of_cpuset(process.groups())
        except (ProcessGoneError, UnreadableError):
            return None
        return absolute(group, own) if group and own else None

    return of_process


def observed(
    pod: Pod,
    container: Container,
    of_pod: PodWanted | None,
    kubelet: CpuSet | None,
    hierarchy: Hierarchy,
    pids_of: Callable[[str], Sequence[int]],
    carriers: Carriers | None,
) -> ObservedContainer:
    """Observes one running container.

    `of_pod`: the agent's decision about its pod, None without one.
    `kubelet`: the pod's CPUs in the kubelet's checkpoint.
    `pids_of`: see `members`.
    `carriers`: what shows its devices, None if no devices were decided."""
    wanted = of_pod.of(container.name) if of_pod else NOTHING
    claimed, problem = _claim(pod, of_pod)
    group = in_group = mems = None
    if container.group is not None:
        try:
            group = hierarchy.effective_cpus(container.group)
            mems = hierarchy.effective_mems(container.group)
            pids = pids_of(container.group)
            allowed = [processes.allowed_cpus(hierarchy.proc, pid) for pid in pids]
            in_group = union(CpuSet.parse(cpus) for cpus in allowed if cpus is not None)
        except CgroupError as error:
            problem = problem or str(error)
    missing, foreign, variables = (
        device_drift(wanted.visible, carriers) if wanted.visible and carriers else ((), (), ())
    )
    return ObservedContainer(
        pod_uid=pod.uid,
        title=f"{pod.title} {container.name}",
        qos=pod.qos,
        claimed=claimed,
        kubelet=kubelet,
        wanted=None if wanted.cpuset is None else CpuSet.parse(wanted.cpuset),
        group=group,
        processes=in_group or None,
        problem=problem,
        wanted_mems=None if wanted.resources.mems is None else CpuSet.parse(wanted.resources.mems),
        mems=mems,
        devices_missing=missing,
        devices_foreign=foreign,
        variables=variables,
    )


def _claim(pod: Pod, wanted: PodWanted | None) -> tuple[CpuSet | None, str]:
    try:
        claimed = resource_status(pod.annotations).cpus() or None
    except AnnotationError as error:
        return None, str(error)
    return claimed, (wanted.refused or wanted.each.blocked) if wanted else ""
