"""Looks at a node from outside its agent: annotation, kubelet checkpoint, snapshot, cgroup and
processes of every running container, side by side. Changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cri.client import Cri
from agent.host import processes
from agent.kubelet.statefile import StateFileError
from agent.model import snapshot as snapshots
from agent.model.annotations import AnnotationError, resource_status
from agent.model.cpuset import CpuSet, union
from agent.model.pods import Container, ContainerState, Pod
from agent.model.settings import options
from agent.model.settings.agent import DoctorSettings
from agent.model.snapshot import NOTHING, PodWanted, Snapshot, SnapshotError
from agent.node import drift
from agent.node.drift import Finding, ObservedContainer
from agent.node.kubelet_view import CpuManagerStateView
from agent.node.runtime_view import CgroupLocator, RuntimeView


class Examination(msgspec.Struct, frozen=True):
    """`seen` sorted by title; `remarks`: what could not be asked, such as an agent that has written
    no snapshot."""

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
    return Examination(tuple(seen), drift.findings(seen, owners), remarks)


def _snapshot(path: Path) -> tuple[Snapshot | None, tuple[str, ...]]:
    try:
        return snapshots.decode(path.read_bytes()), ()
    except (OSError, SnapshotError) as error:
        return None, (f"no decisions of an agent: {error}",)


def _seen(
    pod: Pod,
    container: Container,
    snapshot: Snapshot | None,
    kubelet: CpuSet | None,
    hierarchy: Hierarchy,
) -> ObservedContainer:
    of_pod = snapshot.pods.get(pod.uid) if snapshot else None
    wanted = of_pod.of(container.name) if of_pod else NOTHING
    claimed, trouble = _claim(pod, of_pod)
    group = in_group = None
    if container.group is not None:
        try:
            group = hierarchy.effective_cpus(container.group)
            pids = hierarchy.processes(container.group)
            allowed = [processes.allowed_cpus(hierarchy.proc, pid) for pid in pids]
            in_group = union(CpuSet.parse(cpus) for cpus in allowed if cpus is not None)
        except CgroupError as error:
            trouble = trouble or str(error)
    return ObservedContainer(
        pod_uid=pod.uid,
        title=f"{pod.title} {container.name}",
        qos=pod.qos,
        claimed=claimed,
        kubelet=kubelet,
        wanted=None if wanted.cpuset is None else CpuSet.parse(wanted.cpuset),
        group=group,
        processes=in_group or None,
        trouble=trouble,
    )


def _claim(pod: Pod, wanted: PodWanted | None) -> tuple[CpuSet | None, str]:
    try:
        claimed = resource_status(pod.annotations).cpus() or None
    except AnnotationError as error:
        return None, str(error)
    return claimed, (wanted.refused or wanted.each.blocked) if wanted else ""
