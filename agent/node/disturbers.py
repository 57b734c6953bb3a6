"""Who still runs on the CPUs of owners: two looks at the machine, for commands."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Final

from agent.cgroup.hierarchy import Hierarchy
from agent.cri.client import Cri
from agent.hooks.agent_client import read_snapshot
from agent.host.files import Tree
from agent.model import snapshot as snapshots
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import union
from agent.model.pod.pods import Pod
from agent.model.settings import options
from agent.model.settings.agent import RestoreSettings
from agent.model.snapshot import Owner, SnapshotError
from agent.node.drift import group_reader
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.usage import party_of, sampled_pod
from agent.usage import QUIET_FILE, timers
from agent.usage.disturbers import (
    Disturbers,
    LookedOwner,
    OwnerInterval,
    OwnerLook,
    disturbers,
)
from agent.usage.threads import Threads
from agent.view import disturbers as view
from agent.view import quiet as quiet_view
from agent.view.disturbers import DisturbedOwner
from agent.view.quiet import ShownQuiet

MOST_OWNERS: Final = 64


class OwnersWatch:
    """Looks when it is made, and again when somebody asks.

    `root`: is where the host's files are."""

    def __init__(self, root: str, hierarchy: Hierarchy) -> None:
        self._tree = Tree(root)
        self._threads = Threads(root)
        self._hierarchy = hierarchy
        self._before = self._look()
        self._times = self._threads.times()

    def disturbers(
        self, owners: Iterable[LookedOwner], pods: Iterable[Pod]
    ) -> tuple[Disturbers, ...]:
        """What disturbed each owner since the first look.

        `pods`: are all pods of the node."""
        owners = tuple(owners)
        all_cpus = union(owner.cpus for owner in owners)
        threads = tuple(
            thread for thread in self._threads.since(self._times) if thread.cpus & all_cpus
        )
        now = self._look()
        group_of = group_reader(self._hierarchy)
        parties, pauses = {}, set()
        for pod in pods:
            if (sampled := sampled_pod(pod)) is not None:
                parties[sampled.group] = party_of(pod)
                pauses |= {pause.group for pause in pod.sandboxes if pause.group is not None}
        processes = {thread.process for thread in threads if not thread.kernel}
        return disturbers(
            owners,
            OwnerInterval(
                self._before,
                now,
                threads,
                {pid: group for pid in processes if (group := group_of(pid)) is not None},
                parties,
                frozenset(pauses),
                timers.read(self._tree.root),
            ),
        )

    def _look(self) -> OwnerLook:
        at = time.monotonic()
        return OwnerLook(
            at, self._tree.text("proc/interrupts") or "", self._tree.text("proc/softirqs") or ""
        )


def looked_owners(owners: Iterable[Owner], pods: Iterable[Pod]) -> tuple[LookedOwner, ...]:
    """The owners among the pods of the runtime."""
    groups = {pod.uid: sampled.group for pod in pods if (sampled := sampled_pod(pod)) is not None}
    return tuple(
        LookedOwner(
            owner.title,
            owner.cpus,
            frozenset(groups[uid] for uid in (owner.uid, *owner.sharers) if uid in groups),
        )
        for owner in owners
        if owner.cpus
    )


def disturbed_now(
    settings: RestoreSettings, quiet: ShownQuiet | None, seconds: float
) -> tuple[DisturbedOwner, ...]:
    """What disturbs the owners of this node in the next seconds, those that ask for quiet CPUs
    first, MOST_OWNERS at most. Raises CgroupError and RpcError.

    `quiet`: is what leaves their CPUs; None if nothing does."""
    owners = owners_of_node(settings.state_dir)
    if not owners:
        return ()
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    try:
        pods = runtime_pods(settings, hierarchy)
        watch = OwnersWatch(settings.root, hierarchy)
        time.sleep(seconds)
        return disturbed_owners(watch.disturbers(looked_owners(owners, pods), pods), quiet)
    finally:
        hierarchy.close()


def disturbed_owners(
    seen: Iterable[Disturbers], quiet: ShownQuiet | None
) -> tuple[DisturbedOwner, ...]:
    """The owners by title, those that ask for quiet CPUs first, MOST_OWNERS at most.

    `quiet`: is what leaves their CPUs; None if nothing does."""
    asked = {owner.title: owner.features for owner in quiet.owners} if quiet else {}
    features = quiet.features if quiet else None
    by_title = sorted(seen, key=lambda of: (of.owner.title not in asked, of.owner.title))
    return tuple(
        view.shown(of, features, asked.get(of.owner.title, ())) for of in by_title[:MOST_OWNERS]
    )


def runtime_pods(settings: RestoreSettings, hierarchy: Hierarchy) -> tuple[Pod, ...]:
    """The pods that the runtime of this node has. Raises RpcError."""
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    try:
        return tuple(RuntimeView(cri, CgroupLocator(hierarchy)).observe().pods)
    finally:
        cri.close()


def owners_of_node(state_dir: str) -> tuple[Owner, ...]:
    """The agent's last decisions name these owners. There are none without an agent."""
    try:
        return read_snapshot(os.path.join(state_dir, snapshots.FILE)).owners
    except (OSError, SnapshotError):
        return ()


def quiet_of_node(state_dir: str) -> ShownQuiet | None:
    """What leaves the CPUs of owners; None if the agent quiets none, or did not say it."""
    try:
        return quiet_view.read(os.path.join(state_dir, QUIET_FILE))
    except (OSError, JsonError):
        return None
