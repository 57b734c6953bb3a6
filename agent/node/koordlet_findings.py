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
from agent.cgroup import resctrl as resctrl_groups
from agent.cgroup.hierarchy import CgroupError, Controllers, Handles, Hierarchy
from agent.cgroup.journal import Original, OriginalValue
from agent.cgroup.resctrl import ControlGroups
from agent.kubelet.configuration import KubeletConfiguration
from agent.model.settings.agent import KubeletStateSettings
from agent.node import koordlet_process
from agent.node.colocation import koordlet
from agent.node.features import Key
from agent.node.node_findings import NodeCode
from agent.node.runtime_view import RuntimeState

_CODES: Final = {
    LeftKind.DANGER: NodeCode.LEFT_DANGER,
    LeftKind.QUOTA: NodeCode.LEFT_QUOTAS,
    LeftKind.BURST: NodeCode.LEFT_QUOTAS,
    LeftKind.PRIORITY: NodeCode.LEFT_PRIORITIES,
    LeftKind.MEMORY: NodeCode.LEFT_MEMORY,
    LeftKind.BATCH: NodeCode.LEFT_BATCH,
    LeftKind.CPUS: NodeCode.LEFT_CPUS,
    LeftKind.CACHE: NodeCode.LEFT_RESCTRL,
}
_NAMED: Final = 8
_THROTTLES: Final = tuple(
    f"blkio.throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("bps", "iops")
)
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
    originals: Mapping[str, Original] = {}
    values: Mapping[Key, OriginalValue] = {}
    with contextlib.suppress(OSError):  # no agent has replaced anything, as far as is known
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
    resctrl = ControlGroups(os.path.join(settings.root, resctrl_groups.FOLDER), hierarchy)
    for each in (
        *left,
        *koordlet.cpus(hierarchy, runtime.pods, originals, static=static),
        *koordlet.control_groups(resctrl, values),
    ):
        texts.setdefault(_CODES[each.kind], []).append(each.text)
    own = {group for group, file in values if file in _THROTTLES}
    groups = {group for pod in runtime.pods if (group := koordlet.pod_group(pod))}
    groups |= {group.rpartition("/")[0] for group in groups}
    texts[NodeCode.LEFT_DISKS] = list(_throttles(controllers, sorted(groups - own)))
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
