"""Where the applications of a host are that a NodeSLO names (Koordinator:
pkg/koordlet/util/host_application.go)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.model.node_slo import HostApplication
from agent.model.pod.qos import QoS
from agent.usage.sampler import qos_groups

_BY_QOS: Final = {
    QoS.LSR: "host-latency-sensitive",
    QoS.LS: "host-latency-sensitive",
    QoS.BE: "host-best-effort",
}


def groups(applications: Iterable[HostApplication], kubepods: str | None) -> dict[str, str]:
    """The cgroups by name; of several applications with one name, that of the first. An application
    without a name, and one whose cgroup is that of the whole machine, has none.

    `kubepods`: the kubelet's cgroup of all pods; None while it is not known."""
    by_name: dict[str, str] = {}
    for application in applications:
        group = _group(application, kubepods)
        if application.name and group not in (None, "/"):
            by_name.setdefault(application.name, group or "")
    return by_name


def is_be(application: HostApplication) -> bool:
    """Whether suppression counts the application among the BE pods: it is in their cgroup."""
    path = application.cgroup_path
    in_theirs = path is not None and path.base == "KubepodsBesteffort"
    return application.qos is QoS.BE and in_theirs


def _group(application: HostApplication, kubepods: str | None) -> str | None:
    path = application.cgroup_path
    if path is None:
        parts = [_BY_QOS.get(application.qos, "") if application.qos else "", application.name]
    else:
        parts = [path.parent_dir, path.relative_path]
        if path.base not in (None, "CgroupRoot"):
            if kubepods is None:
                return None
            burstable, besteffort = qos_groups(kubepods)
            of_class = {"KubepodsBurstable": burstable, "KubepodsBesteffort": besteffort}
            parts = [kubepods, of_class.get(path.base, ""), *parts]
    words = (word for part in parts for word in part.split("/"))
    return "/" + "/".join(word for word in words if word not in ("", "."))
