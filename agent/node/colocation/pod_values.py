"""Reads what Topolet has set in the cgroups of a pod, for a command on its node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agent.cgroup import journal, limits, oom_scores
from agent.cgroup.hierarchy import OOM_SCORE_ADJ, CgroupError, Controllers, Hierarchy
from agent.cgroup.journal import OriginalValue
from agent.cri.client import Cri
from agent.model.pod.pods import Pod
from agent.model.settings import options
from agent.model.settings.agent import RestoreSettings
from agent.node.originals import group_values
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.node.usage import sampled_pod
from agent.usage import COLOCATION_FILE, STRATEGIES_FILE
from agent.usage.node_metric import reported_qos
from agent.usage.strategies import Strategies, read
from agent.view import colocation, pod_values
from agent.view.pod_values import FileValue, PodValues


def values_now(settings: RestoreSettings, title: str) -> PodValues | None:
    """The values of a pod of this node; None if the runtime does not have the pod. Raises
    CgroupError, JsonError, OSError and RpcError."""
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    try:
        pods = RuntimeView(cri, CgroupLocator(hierarchy)).observe().pods
        pod = next((pod for pod in pods if pod.title == title), None)
        if pod is None:
            return None
        path = Path(settings.state_dir) / "journal"
        controllers = Controllers(
            settings.cgroup_root,
            hierarchy.handles,
            group_values(settings.root, hierarchy, lambda: journal.peek(path)[1]),
        )
        return values_of(pod, controllers, settings.state_dir)
    finally:
        cri.close()
        hierarchy.close()


def values_of(pod: Pod, controllers: Controllers, state_dir: str) -> PodValues:
    """Raises JsonError and OSError."""
    try:
        strategies = read(os.path.join(state_dir, STRATEGIES_FILE))
    except FileNotFoundError:
        strategies = Strategies()
    try:
        last = colocation.read(os.path.join(state_dir, COLOCATION_FILE))
    except FileNotFoundError:
        last = None
    qos = reported_qos(pod.labels, pod.kube_class or "guaranteed")
    values = _values(pod, controllers, Path(state_dir) / "journal")
    return pod_values.explained(pod.title, qos, strategies, values, last)


def _values(pod: Pod, controllers: Controllers, path: Path) -> Iterator[FileValue]:
    sampled = sampled_pod(pod)
    if sampled is None:
        return
    names = {sampled.group: "", **{group: name for name, group in sampled.containers.items()}}
    originals, values = journal.peek(path)
    cpusets = (
        OriginalValue(each.group, pod_values.CPUSET, each.cpus) for each in originals.values()
    )
    entries = {(each.group, each.file): each for each in (*cpusets, *values.values())}
    for (group, file), entry in sorted(entries.items()):
        if group not in names:
            continue
        present, original = None, entry.value
        with contextlib.suppress(CgroupError):
            if file == OOM_SCORE_ADJ:
                present = oom_scores.present(controllers, group)
                original = oom_scores.original(entry, present)
            elif (present := controllers.read(group, file)) is not None:
                original = limits.original(entry, present)
        yield FileValue(names[group], file, present, original)
