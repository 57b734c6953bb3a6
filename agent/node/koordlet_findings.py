"""What a koordlet that has ended left on a node, as findings of the doctor. Changes nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from agent.allocate.colocation import koordlet_left
from agent.allocate.colocation.koordlet_left import LeftKind
from agent.cgroup import journal
from agent.cgroup.hierarchy import CgroupError, Controllers, Handles, Hierarchy
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.settings.agent import KubeletStateSettings
from agent.node import koordlet_process
from agent.node.colocation import koordlet
from agent.node.node_findings import NodeCode
from agent.node.runtime_view import RuntimeState
from agent.usage import STRATEGIES_FILE

_CODES: Final = {
    LeftKind.DANGER: NodeCode.LEFT_DANGER,
    LeftKind.QUOTA: NodeCode.LEFT_QUOTAS,
    LeftKind.BURST: NodeCode.LEFT_QUOTAS,
    LeftKind.PRIORITY: NodeCode.LEFT_PRIORITIES,
    LeftKind.MEMORY: NodeCode.LEFT_MEMORY,
    LeftKind.BATCH: NodeCode.LEFT_BATCH,
    LeftKind.CPUS: NodeCode.LEFT_CPUS,
}
_NAMED: Final = 8
_THROTTLES: Final = tuple(
    f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("bps", "iops")
)
_RESCTRL: Final = "sys/fs/resctrl"
_CLASSES: Final = ("LSR", "LS", "BE")
_OF_POD: Final = "koordlet-"
_PATHS: Final = (
    "run/koordlet",
    "run/koord-runtimeproxy",
    "etc/runtime/hookserver.d/koordlet.json",
)


def find(
    settings: KubeletStateSettings,
    hierarchy: Hierarchy,
    runtime: RuntimeState,
    kubelet: KubeletConfiguration | None,
) -> dict[NodeCode, str]:
    """Nothing while a koordlet runs: the values are its own. Raises CgroupError.

    `kubelet`: its configuration; None if it is not known."""
    if koordlet_process.find(os.path.join(settings.root, "proc")) is not None:
        return {}
    originals, values = journal.peek(Path(settings.state_dir) / "journal")
    controllers = Controllers(settings.cgroup_root, Handles(0))
    texts: dict[NodeCode, list[str]] = {}
    left = koordlet_left.left(
        koordlet.read(
            controllers,
            runtime.pods,
            lambda container: (
                runtime.statuses[container.id].resources.quota
                if container.id in runtime.statuses
                else None
            ),
            values,
        ),
        kubelet_protects=kubelet is None or kubelet.protects_memory,
    )
    static = kubelet is None or kubelet.static
    for each in (*left, *koordlet.cpus(hierarchy, runtime.pods, originals, static=static)):
        texts.setdefault(_CODES[each.kind], []).append(each.text)
    own = {group for group, file in values if file in _THROTTLES}
    groups = {group for pod in runtime.pods if (group := koordlet.pod_group(pod))}
    groups |= {group.rpartition("/")[0] for group in groups}
    texts[NodeCode.LEFT_DISKS] = list(_throttles(controllers, sorted(groups - own)))
    follows = os.path.exists(os.path.join(settings.state_dir, STRATEGIES_FILE))
    texts[NodeCode.LEFT_RESCTRL] = list(_resctrl(settings.root, classes=not follows))
    texts[NodeCode.LEFT_FILES] = [
        f"/{path}" for path in _PATHS if os.path.lexists(os.path.join(settings.root, path))
    ]
    return dict(_joined(texts))


def _joined(texts: Mapping[NodeCode, list[str]]) -> Iterator[tuple[NodeCode, str]]:
    for code, of_code in texts.items():
        if of_code:
            more = len(of_code) - _NAMED
            rest = [f"{more} more"] if more > 0 else []
            yield code, "; ".join((*of_code[:_NAMED], *rest))


def _throttles(controllers: Controllers, groups: Iterable[str]) -> Iterator[str]:
    for group in groups:
        for file in _THROTTLES:
            with contextlib.suppress(CgroupError):  # no such controller, or the group is gone
                if text := controllers.read(group, file):
                    yield f"{group} {file} is {' '.join(text.split())}"


def _resctrl(root: str, *, classes: bool) -> Iterator[str]:
    try:
        names = sorted(os.listdir(os.path.join(root, _RESCTRL)))
    except OSError:
        return
    for name in names:
        if name.startswith(_OF_POD) or (classes and name in _CLASSES):
            yield f"/{_RESCTRL}/{name}"
