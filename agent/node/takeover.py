"""Writes the CPUs that a scheduler chose into the CPU manager state of a stopped kubelet, in place
of those that its static policy assigned. The rest of the checkpoint stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.names import own_root
from agent.cri.client import Cri
from agent.discover import cpus as machine_cpus
from agent.hooks.agent_client import read_snapshot
from agent.host import files
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kubelet import configuration, cpu_manager_state
from agent.kubelet.configuration import ConfigurationError
from agent.kubelet.cpu_manager_state import CpuManagerState, Entries
from agent.kubelet.statefile import Checked
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.pod.pods import Pod
from agent.model.settings import options
from agent.model.settings.agent import KubeletStateSettings, RestoreSettings
from agent.model.snapshot import NOTHING, Snapshot, SnapshotError
from agent.node import kubelet_process, node_configuration
from agent.node.runtime_view import CgroupLocator, RuntimeView

BACKUP_SUFFIX = ".topolet-backup"


class TakeoverError(ValueError):
    """The state must not be written; the message names pod, container and CPUs."""


class TakenOver(msgspec.Struct, frozen=True):
    """The state before and after the takeover."""

    before: CpuManagerState
    after: CpuManagerState
    nothing: str = ""
    """Why no file was written, empty if one was."""
    backup: str = ""
    """The path of the old file, empty if none was written."""
    remarks: tuple[str, ...] = ()
    """What the takeover could not take into account."""


def take_over(settings: KubeletStateSettings) -> TakenOver:
    """Replaces the file atomically and keeps a backup. Raises StateFileError, TakeoverError,
    RpcError, CgroupError, DiscoveryError, ConfigurationError, SettingsError, OSError, before
    anything is written."""
    path = f"{settings.kubelet_dir}/{cpu_manager_state.FILE_NAME}"
    before = cpu_manager_state.read(path)
    if not before.static:
        why = f"the kubelet's CPU manager policy is {before.policy}: it assigns no CPUs"
        return TakenOver(before, before, why)
    proc = os.path.join(settings.root, "proc")
    own_group = own_group_of(settings, proc)
    _require_stopped(proc, own_group, settings.kubelet_dir)
    snapshot = _snapshot(Path(settings.state_dir) / snapshots.FILE)
    pods = _pods(settings, proc)
    kept, remarks = reserved(settings)
    try:
        entries = chosen(snapshot, pods)
    except CpuSetError as error:
        raise TakeoverError(f"the agent's snapshot: {error}") from error
    after = with_chosen(before, entries, kept)
    if after == before:
        return TakenOver(
            before, after, "its CPUs are already those that the scheduler chose", remarks=remarks
        )
    _require_stopped(proc, own_group, settings.kubelet_dir)
    return TakenOver(before, after, "", write(path, after), remarks)


def chosen(snapshot: Snapshot, pods: Sequence[Pod]) -> Entries:
    """The CPUs that a scheduler gave to pods, by container: each container has all CPUs of its pod.
    Omits excluded containers, and those that are not in the snapshot. Raises CpuSetError for an
    invalid cpuset in the snapshot."""
    own = {
        owner.uid: owner.cpus for owner in snapshot.owners if not (owner.kubelet or owner.claims)
    }
    entries: Entries = {}
    for pod in pods:
        cpus = own.get(pod.uid)
        names = [each.name for each in pod.containers if _wanted(snapshot, each.id) == cpus]
        if cpus and names:
            entries[pod.uid] = dict.fromkeys(names, cpus)
    return entries


def with_chosen(
    state: CpuManagerState,
    chosen: Mapping[str, Mapping[str, CpuSet]],
    reserved: CpuSet = EMPTY,
) -> CpuManagerState:
    """Replaces the CPUs in the state by the chosen ones, by pod uid and container name. The rest of
    the machine becomes its shared CPUs. Containers of one pod may have the same CPUs, as init
    containers have under the static policy.

    `reserved`: the CPUs that the kubelet reserves; it does not start when they are not among the
        shared CPUs.

    Raises TakeoverError."""
    _require_whole(state)
    machine = state.default | union(state.by_uid.values())
    entries = {uid: dict(containers) for uid, containers in state.entries.items()}
    for uid, containers in chosen.items():
        for name, cpus in containers.items():
            title = f"pod {uid}, container {name}"
            if not cpus:
                raise TakeoverError(f"{title}: no CPUs")
            if foreign := cpus - machine:
                raise TakeoverError(
                    f"{title}: the kubelet's state does not have CPUs {foreign} (only {machine})"
                )
            if kept := cpus & reserved:
                raise TakeoverError(f"{title}: the kubelet reserves CPUs {kept}")
            if uid in state.pods:
                raise TakeoverError(f"{title}: the kubelet gave CPUs {state.pods[uid]} to the pod")
            entries.setdefault(uid, {})[name] = cpus
    owner: dict[int, str] = {}
    for uid, title, cpus in _holdings(entries, state.pods):
        if other := next((owner[cpu] for cpu in cpus if owner.get(cpu, uid) != uid), None):
            both = CpuSet(cpu for cpu in cpus if owner.get(cpu) == other)
            raise TakeoverError(f"{title}: CPUs {both} also belong to pod {other}")
        owner |= dict.fromkeys(cpus, uid)
    default = machine - CpuSet(owner)
    if not default:
        raise TakeoverError(f"no CPU of {machine} would be left to share")
    return msgspec.structs.replace(state, default=default, entries=entries)


def _require_whole(state: CpuManagerState) -> None:
    if not state.static:
        raise TakeoverError(f"the kubelet's CPU manager policy is {state.policy}, not static")
    if state.version not in (2, 3, 4):
        raise TakeoverError(f"a state of version {state.version or 'unknown'} is not rewritten")
    if state.checked is Checked.MISMATCH:
        raise TakeoverError("the checksum does not match the content")
    if state.problems:
        raise TakeoverError(f"a part of it can't be read: {state.problems[0]}")
    if state.originals:
        raise TakeoverError(f"pod {min(state.originals)} has been resized in place")


def _holdings(
    entries: Mapping[str, Mapping[str, CpuSet]], pods: Mapping[str, CpuSet]
) -> Iterator[tuple[str, str, CpuSet]]:
    for uid, cpus in sorted(pods.items()):
        yield uid, f"pod {uid}", cpus
    for uid, containers in sorted(entries.items()):
        for name, cpus in sorted(containers.items()):
            yield uid, f"pod {uid}, container {name}", cpus


def write(path: str, state: CpuManagerState) -> str:
    """Replaces the file, and keeps its mode and owner. Returns the path of the backup, which gets a
    number when there are older ones. Raises OSError."""
    old = os.stat(path)
    backup = _keep(path)
    files.replace(path, cpu_manager_state.encode(state), durable=True, mode=old.st_mode & 0o7777)
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(path, old.st_uid, old.st_gid)
    return backup


def _keep(path: str) -> str:
    """Links the present file to another name, which it returns, because the file itself is then
    replaced."""
    number = 0
    while True:
        backup = f"{path}{BACKUP_SUFFIX}{f'.{number}' if number else ''}"
        with contextlib.suppress(FileExistsError):
            os.link(path, backup)
            return backup
        number += 1


def _require_stopped(proc: str, own_group: str | None, kubelet_dir: str) -> None:
    """Raises TakeoverError when a process is, or may be, the kubelet of this folder."""
    processes = kubelet_process.find(proc, own_group)
    for each in processes.kubelets:
        if kubelet_process.keeps_state_elsewhere(proc, each, kubelet_dir):
            continue
        why = f"{each.program} runs (process {each.pid}) and would write over it"
        raise TakeoverError(f"{why}: stop it")
    for doubt in processes.doubts:
        raise TakeoverError(f"a kubelet may run and would write over it: {doubt}")


def _snapshot(path: Path) -> Snapshot:
    try:
        snapshot = read_snapshot(str(path))
    except (OSError, SnapshotError) as error:
        raise TakeoverError(f"the agent's decisions can't be read: {error}") from error
    if snapshot.boot_id != files.boot_id():
        raise TakeoverError(f"the agent's snapshot {path} is older than the last boot")
    return snapshot


def own_group_of(settings: RestoreSettings, proc: str) -> str | None:
    """The root of this process's cgroup namespace in the host's cgroups, None when unknown. Raises
    CgroupError."""
    hierarchy = Hierarchy(settings.cgroup_root, proc)
    try:
        return own_root(hierarchy)
    finally:
        hierarchy.close()


def _pods(settings: KubeletStateSettings, proc: str) -> tuple[Pod, ...]:
    hierarchy = Hierarchy(settings.cgroup_root, proc)
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        return RuntimeView(cri, CgroupLocator(hierarchy)).observe().pods
    finally:
        cri.close()
        hierarchy.close()


def _wanted(snapshot: Snapshot, container_id: str) -> CpuSet | None:
    cpuset = snapshot.containers.get(container_id, NOTHING).cpuset
    return None if cpuset is None else CpuSet.parse(cpuset)


def reserved(settings: KubeletStateSettings) -> tuple[CpuSet, tuple[str, ...]]:
    """The CPUs that the kubelet reserves according to the configuration file in its folder: a
    stopped kubelet has no command line."""
    path = f"{settings.kubelet_dir}/config.yaml"
    try:
        kubelet = configuration.of_object(documents.read(path), path)
    except FileNotFoundError:
        return EMPTY, (f"{path} does not exist: the CPUs that the kubelet reserves are not known",)
    except DocumentError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return node_configuration.kept_by_kubelet(kubelet, machine_cpus.read(settings.root)), ()
