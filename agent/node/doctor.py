"""Examines a node from outside of its agent: compares the annotation, the kubelet's checkpoint, the
snapshot, the cgroup and the processes of each running container, and finds where they have drifted
apart. Changes nothing.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cri.client import Cri
from agent.host import processes
from agent.kubelet.statefile import StateFileError
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.annotations import AnnotationError, resource_status
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.pod.qos import QoS
from agent.model.settings import options
from agent.model.settings.agent import DoctorSettings
from agent.model.snapshot import NOTHING, Owner, PodWanted, Snapshot, SnapshotError
from agent.node.kubelet_view import CpuManagerStateView
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.violations import may_hold


class ObservedContainer(msgspec.Struct, frozen=True):
    """One running container and its CPUs by each source; None when a source has none. `claimed`:
    its pod's annotation; `kubelet`: the kubelet's checkpoint; `wanted`: the agent's snapshot;
    `group`: the effective cpuset of its cgroup; `processes`: the union of its processes'
    affinities. `problem`: why the agent does not honor the pod's claim, or why the annotation
    can't be read."""

    pod_uid: str
    title: str
    qos: QoS
    claimed: CpuSet | None = None
    kubelet: CpuSet | None = None
    wanted: CpuSet | None = None
    group: CpuSet | None = None
    processes: CpuSet | None = None
    problem: str = msgspec.field(default="", name="trouble")


class DriftKind(enum.StrEnum):
    """The kinds of findings; scripts may rely on the values."""

    CLAIM = "claim-not-honoured"
    CLAIM_UNSEEN = "claim-not-seen-by-agent"
    NO_GROUP = "no-cgroup"
    GROUP = "cgroup-differs"
    PROCESSES = "processes-outside-cgroup"
    KUBELET = "kubelet-differs"
    OVERLAP = "overlap"


class Finding(msgspec.Struct, frozen=True):
    """`expected` and `found`: CPU lists, when there are two to compare; `detail`: an explanation,
    such as the owner of the CPUs that overlap."""

    kind: DriftKind
    container: str
    expected: str = ""
    found: str = ""
    detail: str = ""


class Examination(msgspec.Struct, frozen=True):
    """`seen` sorted by title; `remarks`: sources that could not be read, such as the missing
    snapshot of an agent."""

    seen: tuple[ObservedContainer, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]


def examine(settings: DoctorSettings) -> Examination:
    """Raises RpcError where the runtime does not answer, CgroupError without a cpuset hierarchy,
    SettingsError."""
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        observed = RuntimeView(cri, CgroupLocator(hierarchy)).observe()
    finally:
        cri.close()
    snapshot, remarks = _snapshot(Path(settings.state_dir) / "snapshot.json")
    given: dict[str, CpuSet] = {}
    try:
        given = CpuManagerStateView(settings.kubelet_dir).cpus().by_uid
    except StateFileError as error:
        remarks += (str(error),)
    seen = [
        _seen(pod, container, snapshot, given.get(pod.uid), hierarchy)
        for pod in observed.pods
        for container in pod.containers
        if container.state is ContainerState.RUNNING and not container.virtual
    ]
    seen.sort(key=lambda each: each.title)
    owners = snapshot.owners if snapshot else ()
    return Examination(tuple(seen), findings(seen, owners), remarks)


def findings(seen: Sequence[ObservedContainer], owners: Sequence[Owner]) -> tuple[Finding, ...]:
    """`owners` of the agent's snapshot, none without one."""
    found: list[Finding] = []
    for each in seen:
        found += _of_container(each, owners)
    return tuple(found)


def _of_container(seen: ObservedContainer, owners: Sequence[Owner]) -> list[Finding]:
    found: list[Finding] = []

    def add(
        kind: DriftKind, expected: CpuSet | None = None, got: CpuSet | None = None, detail: str = ""
    ) -> None:
        texts = ["" if cpus is None else str(cpus) for cpus in (expected, got)]
        found.append(Finding(kind, seen.title, texts[0], texts[1], detail))

    own = next((owner.cpus for owner in owners if owner.uid == seen.pod_uid), None)
    if seen.problem:
        add(DriftKind.CLAIM, seen.claimed, seen.group, seen.problem)
    elif seen.claimed and own is None:
        add(DriftKind.CLAIM_UNSEEN, seen.claimed, seen.group)
    elif seen.claimed and own is not None and seen.claimed != own:
        add(DriftKind.CLAIM, seen.claimed, own, f"CPUs {seen.claimed - own} are not online")
    if seen.group is None:
        add(DriftKind.NO_GROUP)
        return found
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
    return found


def _snapshot(path: Path) -> tuple[Snapshot | None, tuple[str, ...]]:
    try:
        return snapshots.decode(path.read_bytes()), ()
    except (OSError, SnapshotError) as error:
        return None, (f"the agent's decisions can't be read: {error}",)


def _seen(
    pod: Pod,
    container: Container,
    snapshot: Snapshot | None,
    kubelet: CpuSet | None,
    hierarchy: Hierarchy,
) -> ObservedContainer:
    of_pod = snapshot.pods.get(pod.uid) if snapshot else None
    wanted = of_pod.of(container.name) if of_pod else NOTHING
    claimed, problem = _claim(pod, of_pod)
    group = in_group = None
    if container.group is not None:
        try:
            group = hierarchy.effective_cpus(container.group)
            pids = hierarchy.processes(container.group)
            allowed = [processes.allowed_cpus(hierarchy.proc, pid) for pid in pids]
            in_group = union(CpuSet.parse(cpus) for cpus in allowed if cpus is not None)
        except CgroupError as error:
            problem = problem or str(error)
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
    )


def _claim(pod: Pod, wanted: PodWanted | None) -> tuple[CpuSet | None, str]:
    try:
        claimed = resource_status(pod.annotations).cpus() or None
    except AnnotationError as error:
        return None, str(error)
    return claimed, (wanted.refused or wanted.each.blocked) if wanted else ""
