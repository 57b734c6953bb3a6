"""Writes the CPUs that a scheduler chose into the CPU manager's state of a stopped kubelet."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.cgroup.hierarchy import Hierarchy
from agent.discover import cpus as machine_cpus
from agent.host import boot, files, processes
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kubelet import configuration, cpu_manager_state, takeover
from agent.kubelet.configuration import ConfigurationError
from agent.kubelet.cpu_manager_state import CpuManagerState, Entries
from agent.kubelet.takeover import TakeoverError
from agent.model import settings as options
from agent.model import snapshot as snapshots
from agent.model.cpuset import EMPTY, CpuSet, CpuSetError
from agent.model.pods import Pod
from agent.model.resources import NodeConfiguration
from agent.model.settings import Settings
from agent.model.snapshot import Snapshot, SnapshotError
from agent.model.wanted import NOTHING
from agent.node import configured
from agent.node.observed import Observer
from agent.node.placement import Locator
from agent.runtime.cri import Cri

BACKUP_SUFFIX = ".topolet-backup"

_KUBELETS = ("kubelet", "k3s", "kubelite")
"""Programs that are a kubelet, or have one inside."""


class TakenOver(msgspec.Struct, frozen=True):
    """`nothing` says why nothing was written; else `backup` is where the old file is now.

    `remarks`: what could not be taken into account.
    """

    before: CpuManagerState
    after: CpuManagerState
    nothing: str = ""
    backup: str = ""
    remarks: tuple[str, ...] = ()


def take_over(settings: Settings) -> TakenOver:
    """Replaces the file atomically; the old one stays beside it. Raises StateFileError,
    TakeoverError, RpcError, CgroupError, DiscoveryError, ConfigurationError, SettingsError,
    OSError; then nothing has been written.
    """
    path = f"{settings.kubelet_dir}/{cpu_manager_state.FILE_NAME}"
    before = cpu_manager_state.read(path)
    if not before.static:
        why = f"the kubelet's CPU manager policy is {before.policy}: it gives no CPUs away"
        return TakenOver(before, before, why)
    proc = os.path.join(settings.root, "proc")
    _require_stopped(proc)
    snapshot = _snapshot(Path(settings.state_dir) / "snapshot.json")
    pods = _pods(settings, proc)
    kept, remarks = reserved(settings)
    try:
        entries = chosen(snapshot, pods)
    except CpuSetError as error:
        raise TakeoverError(f"the agent's snapshot: {error}") from error
    after = takeover.take_over(before, entries, kept)
    if after == before:
        return TakenOver(before, after, "the CPUs in it are the chosen ones", remarks=remarks)
    _require_stopped(proc)
    return TakenOver(before, after, "", write(path, after), remarks)


def chosen(snapshot: Snapshot, pods: Sequence[Pod]) -> Entries:
    """What a scheduler gave to pods, and the agent to their containers: each has all CPUs of its
    pod. Containers that are left alone, or were never seen, are not among them. Raises CpuSetError
    for a cpuset in the snapshot that is none."""
    own = {owner.uid: owner.cpus for owner in snapshot.owners}
    found: Entries = {}
    for pod in pods:
        cpus = own.get(pod.uid)
        names = [each.name for each in pod.containers if _wanted(snapshot, each.id) == cpus]
        if cpus and names:
            found[pod.uid] = dict.fromkeys(names, cpus)
    return found


def write(path: str, state: CpuManagerState) -> str:
    """Replaces the file, with its mode and owner; the path of the old one, which gets a number
    where there are older ones. Raises OSError."""
    old = os.stat(path)
    backup = _keep(path)
    files.replace(path, cpu_manager_state.encode(state), durable=True, mode=old.st_mode & 0o7777)
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(path, old.st_uid, old.st_gid)
    return backup


def _keep(path: str) -> str:
    """A second name for the file that is there now: what replaces it is another file."""
    number = 0
    while True:
        backup = f"{path}{BACKUP_SUFFIX}{f'.{number}' if number else ''}"
        with contextlib.suppress(FileExistsError):
            os.link(path, backup)
            return backup
        number += 1


def _require_stopped(proc: str) -> None:
    for name in _KUBELETS:
        for pid, _ in processes.named(proc, name):
            raise TakeoverError(f"{name} runs (process {pid}) and would write over it: stop it")


def _snapshot(path: Path) -> Snapshot:
    try:
        snapshot = snapshots.decode(path.read_bytes())
    except (OSError, SnapshotError) as error:
        raise TakeoverError(f"no decisions of an agent: {error}") from error
    if snapshot.boot_id != boot.boot_id():
        raise TakeoverError(f"no decisions of an agent: {path} is of before the machine's start")
    return snapshot


def _pods(settings: Settings, proc: str) -> tuple[Pod, ...]:
    hierarchy = Hierarchy(settings.cgroup_root, proc)
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        return Observer(cri, Locator(hierarchy)).look().pods
    finally:
        cri.close()
        hierarchy.close()


def _wanted(snapshot: Snapshot, container_id: str) -> CpuSet | None:
    cpuset = snapshot.containers.get(container_id, NOTHING).cpuset
    return None if cpuset is None else CpuSet.parse(cpuset)


def reserved(settings: Settings) -> tuple[CpuSet, tuple[str, ...]]:
    """What the kubelet keeps, by the configuration file in its folder: it has no command line while
    it is stopped."""
    path = f"{settings.kubelet_dir}/config.yaml"
    try:
        kubelet = configuration.of_object(documents.read(path), path)
    except FileNotFoundError:
        return EMPTY, (f"{path} is absent: CPUs that the kubelet reserves are not known",)
    except DocumentError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    static = msgspec.structs.replace(kubelet, cpu_manager_policy="static")
    topology = machine_cpus.read(settings.root)
    return configured.beside(NodeConfiguration(), static, topology).kubelet_reserved, ()
