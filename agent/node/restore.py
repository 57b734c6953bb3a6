"""Gives back what the agent took: the way out, with the agent stopped."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from agent.cgroup import limits as fields
from agent.cgroup import values, writer
from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.outcome import ValueOutcome, WriteOutcome
from agent.cri.client import Cri
from agent.host import locks
from agent.host.locks import Lock, LockedError
from agent.model import snapshot as snapshots
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.pods import Container, ContainerState
from agent.model.settings import options
from agent.model.settings.agent import RestoreSettings
from agent.model.snapshot import NOTHING, Wanted
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError


class Restored(msgspec.Struct, frozen=True):
    """`outcome` of cpusets, `values` of other files. `unasked`: why a container that was created on
    our CPUs could not be looked after, or ""."""

    outcome: WriteOutcome
    values: ValueOutcome
    unasked: str


def restore(settings: RestoreSettings) -> Restored:
    """Updates the runtime with the original values of its containers, so that it does not write
    ours again; restores every journalled file; a container that the proxy created on CPUs of ours,
    which is in no journal, gets its parent's. Then removes the snapshot, so that the proxy rewrites
    nothing more. Raises LockedError while an agent or an NRI plugin runs, CgroupError, OSError."""
    state = Path(settings.state_dir)
    lock = Lock(str(state / "agent.lock"))
    try:
        no_plugin = locks.lock_for_restore(settings.state_dir)
    except LockedError:
        lock.release()
        raise
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    controllers = Controllers(settings.cgroup_root, hierarchy.handles)
    journal = Journal(state / "journal")
    path = state / "snapshot.json"
    unasked = ""
    chosen: dict[str, CpuSet] = {}
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        managed = _managed(path, cri, hierarchy)
    except RpcError as error:
        managed, unasked = [], str(error)
    for container in managed:
        try:
            if container.group is not None:
                cri.update(container.id, _before_us(hierarchy, controllers, journal, container))
            if container.state is ContainerState.CREATED:
                cri.update(container.id, Wanted(str(hierarchy.effective_cpus("/"))))
            elif container.group is not None and container.group not in journal:
                chosen[container.group] = _of_parent(hierarchy, container.group)
        except (RpcError, CgroupError) as error:
            unasked = f"container {container.id}: {error}"
    cri.close()
    outcome = writer.restore(hierarchy, journal, chosen)
    others = values.restore(controllers, journal)
    hierarchy.close()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    no_plugin.release()
    lock.release()
    return Restored(outcome, others, unasked)


def _managed(path: Path, cri: Cri, hierarchy: Hierarchy) -> list[Container]:
    """The containers for which the last snapshot has a cpuset."""
    try:
        last = snapshots.decode(path.read_bytes())
    except (FileNotFoundError, snapshots.SnapshotError):
        return []
    observed = RuntimeView(cri, CgroupLocator(hierarchy)).observe()
    return [
        container
        for pod in observed.pods
        for container in pod.containers
        if not last.containers.get(container.id, NOTHING).hands_off
    ]


def _before_us(
    hierarchy: Hierarchy, controllers: Controllers, journal: Journal, container: Container
) -> Wanted:
    """What the runtime is to remember; where a group inherited, the CPUs that it got so."""
    group = container.group or "/"
    original = journal.originals.get(group)
    cpuset = original.cpus if original else ""
    texts = {file: each.value for (of, file), each in journal.values.items() if of == group}
    limits = fields.parsed(controllers, group, texts)
    return Wanted(cpuset or str(hierarchy.effective_cpus("/")), limits=limits)


def _of_parent(hierarchy: Hierarchy, group: str) -> CpuSet:
    """On v2 empty: the group inherits."""
    if hierarchy.version == 2:
        return EMPTY
    return hierarchy.own_cpus(group.rpartition("/")[0] or "/")
